"""Files of uint64 columns, their rows sorted by the first, on the way of the exchange from shards to ranges and back.

A file is uint64[columns, rows]. Units that merge some into one hold about ``ROWS_PER_BATCH`` rows.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.engine import Unit
from mtnlg_data.exchange import stable_order
from mtnlg_data.files import atomic_open

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import StageFolder, Summary
    from mtnlg_data.exchange import Exchange, KeyRange, SortedFile

ROWS_PER_BATCH = 1 << 20


def columns_path(folder: Path, file: SortedFile) -> Path:
    """A file of the exchange."""
    return folder / f"{file.stem}.columns"


def open_columns(path: Path, columns: int) -> NDArray[np.uint64]:
    """The columns of a file, as a memory map."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return np.empty((columns, 0), np.uint64)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, np.uint64).reshape(columns, -1)


def read_sorted(folder: Path, keys: KeyRange, columns: int) -> tuple[int, Iterator[NDArray[np.uint64]]]:
    """How many rows a range has, and the rows, sorted, in batches.

    Equal ones keep the order of the files and of their rows.
    """
    files = [open_columns(columns_path(folder, file), columns) for file in keys.files]
    rows = sum(end - begin for begin, end in (_places(file, keys.first, keys.last) for file in files))
    return rows, _batches(files, keys, max(1, -(-rows // ROWS_PER_BATCH)))


def _batches(files: list[NDArray[np.uint64]], keys: KeyRange, parts: int) -> Iterator[NDArray[np.uint64]]:
    width = keys.last + 1 - keys.first
    for part in range(parts):
        first, last = (keys.first + number * width // parts for number in (part, part + 1))
        slices = [slice(*_places(file, first, last - 1)) for file in files]
        batch = np.concatenate([file[:, own] for file, own in zip(files, slices, strict=True)], axis=1)
        yield batch[:, stable_order(batch[0])]


def _places(file: NDArray[np.uint64], first: int, last: int) -> tuple[int, int]:
    """Begin and end of the rows with keys ``first`` to ``last``, inclusive."""
    begin, end = np.searchsorted(file[0], np.uint64(first)), np.searchsorted(file[0], np.uint64(last), "right")
    return int(begin), int(end)


@dataclass(frozen=True)
class MergeUnit(Unit):
    """Unit: a range of some files -> one file of the exchange's next level."""

    folder: Path
    keys: KeyRange
    columns: int
    contents: str  # digest of the keys of the units that wrote the first level
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("merge", self.contents, self.keys, self.columns)


def merge_columns(unit: MergeUnit) -> Summary:
    """Merge the files; returns the number of rows."""
    rows, batches = read_sorted(unit.folder, unit.keys, unit.columns)
    place = 0
    with atomic_open(unit.output) as output:
        output.truncate(8 * unit.columns * rows)
        for batch in batches:
            for number, column in enumerate(batch):
                output.seek(8 * (number * rows + place))
                output.write(np.ascontiguousarray(column).data)
            place += batch.shape[1]
    return {"rows": place}


def merge_levels(stage: StageFolder, label: str, exchange: Exchange, first: tuple[Path, int, str]) -> None:
    """Merge files, level by level, until a range is in few enough of them.

    ``first`` has the folder, the number of columns and the digest of those as written.
    """
    folder, columns, contents = first
    for level in exchange.merges():
        units = [MergeUnit(folder, keys, columns, contents, columns_path(folder, merged)) for merged, keys in level]
        stage.run(merge_columns, units, label)
