"""Boxes of a tensor: half-open ranges, one an axis; how pieces tile a tensor and where one box lies inside another.

A flat range [a, b) of a box's row-major flattening, such as a ZeRO fragment, is at most 2d - 1 boxes, each of which
lies contiguous within it: the rest of a row, whole rows, the beginning of a row. So everything here is about boxes.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Index = tuple[slice, ...]
Box = tuple[tuple[int, int], ...]

MOST_BOXES = 1024
"""More different boxes of one tensor are refused: no layout cuts so, and comparing them takes their square."""


def box_of(index: Index | None, shape: Sequence[int]) -> Box:
    """The box that ``index`` means in a tensor of ``shape``; axes left out are whole.

    Raises ``ValueError`` for a step, a negative bound, or a bound outside the shape.
    """
    index = index or ()
    if len(index) > len(shape):
        raise ValueError(f"index of {len(index)} axes for a tensor of shape {list(shape)}")
    box = []
    for axis, size in enumerate(shape):
        cut = index[axis] if axis < len(index) else slice(None)
        start, stop = cut.start or 0, size if cut.stop is None else cut.stop
        if cut.step not in {None, 1} or not 0 <= start <= stop <= size:
            raise ValueError(f"axis {axis}: {start}:{stop}:{cut.step or 1} is no range with step 1 within {size}")
        box.append((start, stop))
    return tuple(box)


def lengths(box: Box) -> tuple[int, ...]:
    """Size of every axis."""
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    """Number of elements."""
    return prod(stop - start for start, stop in box)


def intersection(one: Box, other: Box) -> Box | None:
    """What both hold; None when that is nothing."""
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def within(inner: Box, outer: Box) -> Index:
    """Index of ``inner`` in a tensor that holds ``outer``."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(inner, outer, strict=True))


def fragment(box: Box, first: int, last: int) -> Iterator[tuple[Box, int]]:
    """The boxes that elements [first, last) of the flattened ``box`` make up, each with its offset from ``first``."""
    (start, _), rest = box[0], box[1:]
    row = volume(rest)
    top, bottom = -(-first // row), last // row
    parts = [(bottom, first - bottom * row, last - bottom * row)] if top > bottom else []
    if top <= bottom and first < top * row:
        parts.append((top - 1, first - (top - 1) * row, row))
    for number, begin, end in parts:
        for inner, offset in fragment(rest, begin, end):
            yield ((start + number, start + number + 1), *inner), offset
    if top < bottom:
        yield ((start + top, start + bottom), *rest), top * row - first
    if top <= bottom and bottom * row < last:
        for inner, offset in fragment(rest, 0, last - bottom * row):
            yield ((start + bottom, start + bottom + 1), *inner), bottom * row - first + offset


def runs(inner: Box, outer: Box) -> Iterator[tuple[int, int]]:
    """(offset, length) in elements of the stretches of row-major ``outer`` that hold ``inner``, in order."""
    sizes = lengths(outer)
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    cut = max((axis for axis in range(len(sizes)) if inner[axis] != outer[axis]), default=0)
    length = (inner[cut][1] - inner[cut][0]) * strides[cut]
    base = sum((inner[axis][0] - outer[axis][0]) * strides[axis] for axis in range(cut + 1))
    if cut == 0:
        yield base, length
        return
    # The last axis in one go: a slice of a large matrix has a stretch a row.
    count, stride = inner[cut - 1][1] - inner[cut - 1][0], strides[cut - 1]
    for steps in product(*(range(inner[axis][1] - inner[axis][0]) for axis in range(cut - 1))):
        first = base + sum(step * stride for step, stride in zip(steps, strides, strict=False))
        yield from ((offset, length) for offset in range(first, first + count * stride, stride))


def explain_tiling(shape: Sequence[int], pieces: Sequence[tuple[Box, tuple[int, int] | None]]) -> str | None:
    """Why these pieces (a box, or a flat range of it) do not tile ``shape`` exactly once; None if they do."""
    flats: dict[Box, list[tuple[int, int]]] = {}
    for box, flat in pieces:
        if len(box) != len(shape) or not all(0 <= a < b <= n for (a, b), n in zip(box, shape, strict=True)):
            return f"box {show(box)} is not inside shape {list(shape)}"
        first, last = flat or (0, volume(box))
        if not 0 <= first < last <= volume(box):
            return f"flat range {first}:{last} is not inside box {show(box)} of {volume(box)} elements"
        flats.setdefault(box, []).append((first, last))
    if len(flats) > MOST_BOXES:
        return f"{len(flats)} different boxes, more than {MOST_BOXES}"
    return _explain_flats(flats) or _explain_boxes(shape, list(flats))


def _explain_flats(flats: dict[Box, list[tuple[int, int]]]) -> str | None:
    for box, ranges in flats.items():
        reached = 0
        for first, last in [*sorted(ranges), (volume(box), volume(box))]:
            if first != reached:
                fault = "missing" if first > reached else "there twice"
                return f"elements {min(first, reached)}:{max(first, reached)} of box {show(box)} are {fault}"
            reached = last
    return None


def _explain_boxes(shape: Sequence[int], boxes: list[Box]) -> str | None:
    axis = max(range(len(shape)), key=lambda n: len({box[n] for box in boxes}), default=0)
    active: list[Box] = []
    for box in sorted(boxes, key=lambda box: box[axis]):
        active = [other for other in active if other[axis][1] > box[axis][0]]
        twice = next((other for other in active if intersection(box, other)), None)
        if twice is not None:
            return f"boxes {show(twice)} and {show(box)} overlap"
        active.append(box)
    missing = prod(shape) - sum(volume(box) for box in boxes)
    return f"{missing} of {prod(shape)} elements are missing" if missing else None


def show(box: Box) -> str:
    """The box as one writes an index: ``[0:4,8:16]``."""
    return "[" + ",".join(f"{start}:{stop}" for start, stop in box) + "]"
