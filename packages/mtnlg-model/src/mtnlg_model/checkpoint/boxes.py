"""Boxes of a tensor: one half-open range per axis. Intersection, position in another box, check of a tiling.

A flat range [a, b) of a box's row-major elements, such as a ZeRO fragment, splits into at most 2d - 1 boxes, each
contiguous within the range: the rest of a row, full rows, the beginning of a row. So all reads and writes are of boxes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

Index = tuple[slice, ...]
Box = tuple[tuple[int, int], ...]

MAX_BOXES = 1024
"""Limit on different boxes of one tensor: no layout cuts finer, and comparing boxes takes quadratic time."""


def box_of(index: Index | None, shape: Sequence[int]) -> Box:
    """The box that ``index`` selects from a tensor of ``shape``; omitted axes are taken entirely.

    Raises ``ValueError`` for a step other than 1, a negative bound, or a bound outside the shape.
    """
    index = index or ()
    if len(index) > len(shape):
        raise ValueError(f"index of {len(index)} axes for a tensor of shape {list(shape)}")
    box = []
    for axis, size in enumerate(shape):
        cut = index[axis] if axis < len(index) else slice(None)
        start, stop = cut.start or 0, size if cut.stop is None else cut.stop
        if cut.step not in {None, 1} or not 0 <= start <= stop <= size:
            raise ValueError(f"axis {axis}: {start}:{stop}:{cut.step or 1} is not a range of step 1 within {size}")
        box.append((start, stop))
    return tuple(box)


def lengths(box: Box) -> tuple[int, ...]:
    """Size of each axis."""
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    """Number of elements."""
    return prod(stop - start for start, stop in box)


def intersection(one: Box, other: Box) -> Box | None:
    """The box of common elements; None if there are none."""
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def within(inner: Box, outer: Box) -> Index:
    """Index that selects ``inner`` from a tensor holding ``outer``."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(inner, outer, strict=True))


def split_flat_range(box: Box, first: int, last: int) -> Iterator[tuple[Box, int]]:
    """Split elements [first, last) of the flattened ``box`` into boxes, each with its offset from ``first``."""
    (start, _), rest = box[0], box[1:]
    row, reached = volume(rest), first
    while reached < last:
        number, begin = divmod(reached, row)
        full = 0 if begin else last // row - number
        if full:
            yield ((start + number, start + number + full), *rest), reached - first
        else:
            for inner, offset in split_flat_range(rest, begin, min(row, last - number * row)):
                yield ((start + number, start + number + 1), *inner), reached - first + offset
        reached = (number + max(full, 1)) * row


def contiguous_runs(inner: Box, outer: Box) -> Iterator[tuple[int, int]]:
    """Contiguous (offset, length) runs of elements of row-major ``outer`` that make up ``inner``, in order."""
    (start, stop), row = inner[0], volume(outer[1:])
    first, last = start - outer[0][0], stop - outer[0][0]
    if inner[1:] == outer[1:]:
        yield first * row, (last - first) * row
        return
    runs = list(contiguous_runs(inner[1:], outer[1:]))  # the same in every row
    yield from ((number * row + offset, length) for number in range(first, last) for offset, length in runs)


def explain_tiling(shape: Sequence[int], pieces: Sequence[tuple[Box, tuple[int, int] | None]]) -> str | None:
    """Why these pieces (a box, or a flat range of one) do not tile ``shape`` exactly once; None if they do."""
    flats: dict[Box, list[tuple[int, int] | None]] = {}
    for box, flat in pieces:
        flats.setdefault(box, []).append(flat)
    if len(flats) > MAX_BOXES:
        return f"{len(flats)} different boxes, more than {MAX_BOXES}"
    covered = 0
    for box, ranges in flats.items():
        size, inside = 1, len(box) == len(shape)
        for (start, stop), limit in zip(box, shape, strict=False):
            inside &= 0 <= start < stop <= limit
            size *= stop - start
        if not inside:
            return f"box {show(box)} is not inside shape {list(shape)}"
        why = None if ranges == [None] else _explain_ranges(box, size, [flat or (0, size) for flat in ranges])
        if why:
            return why
        covered += size
    # Nothing overlaps and as many elements are covered as there are: none is missing.
    if len(flats) > 1 and (overlap := _overlap(shape, flats)):
        return f"boxes {show(overlap[0])} and {show(overlap[1])} overlap"
    missing = prod(shape) - covered
    return f"{missing} of {prod(shape)} elements are missing" if missing else None


def _explain_ranges(box: Box, size: int, ranges: list[tuple[int, int]]) -> str | None:
    """Why these ranges do not tile the ``size`` elements of ``box`` exactly once; None if they do."""
    for first, last in ranges:
        if not 0 <= first < last <= size:
            return f"flat range {first}:{last} is not inside box {show(box)} of {size} elements"
    reached = 0
    for first, last in [*sorted(ranges), (size, size)]:
        if first != reached:
            fault = "missing" if first > reached else "present twice"
            return f"elements {min(first, reached)}:{max(first, reached)} of box {show(box)} are {fault}"
        reached = last
    return None


def _overlap(shape: Sequence[int], boxes: Collection[Box]) -> tuple[Box, Box] | None:
    """Two of the boxes that have elements in common; None if there are none."""
    # Sweep along the axis that is cut most often, comparing only boxes that share a coordinate there.
    axis = max(range(len(shape)), key=lambda n: len({box[n] for box in boxes}), default=0)
    active: list[Box] = []
    for box in sorted(boxes, key=lambda box: box[axis]):
        start = box[axis][0]
        active = [other for other in active if other[axis][1] > start]
        for other in active:
            if intersection(box, other):
                return other, box
        active.append(box)
    return None


def show(box: Box) -> str:
    """The box written as an index: ``[0:4,8:16]``."""
    return "[" + ",".join(f"{start}:{stop}" for start, stop in box) + "]"
