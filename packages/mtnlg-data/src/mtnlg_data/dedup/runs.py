"""A run: what deduplication keeps of the documents of one shard, in arrays of fixed width, read through a memory map.

    uint64[bands, documents]  the keys of each band, ascending
    uint32[bands, documents]  whose they are: rows of the shard; equal keys by row
    uint32[documents]         shingles of each document, repeats included

12 bytes a document and band, and 4. The keys of all shards that fall into a range lie in one piece of every run, so any
part of a band is read without the rest: an external sort whose second half nobody has to write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.files import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NO_KEY = np.uint64(0)  # of a document without shingles


class Run(NamedTuple):
    """One run; its row r is document ``first + r`` of all."""

    path: Path
    first: int
    rows: int
    bands: int

    @property
    def keys(self) -> NDArray[np.uint64]:
        """[bands, documents], ascending within a band."""
        return np.memmap(self.path, np.uint64, "r", 0, (self.bands, self.rows))

    @property
    def order(self) -> NDArray[np.uint32]:
        """[bands, documents], the row that each of ``keys`` belongs to."""
        return np.memmap(self.path, np.uint32, "r", 8 * self.bands * self.rows, (self.bands, self.rows))

    @property
    def counts(self) -> NDArray[np.uint32]:
        """[documents], shingles of each."""
        return np.memmap(self.path, np.uint32, "r", 12 * self.bands * self.rows, (self.rows,))


def write_run(path: Path, keys: NDArray[np.uint64], counts: NDArray[np.uint32]) -> None:
    """Write the run of these keys, uint64[bands, documents] in the order of the documents; sorts them in place."""
    order = np.empty(keys.shape, np.uint32)
    for band, whose in zip(keys, order, strict=True):
        whose[:] = np.argsort(band, kind="stable")
        band[:] = band[whose]
    with replacing(path) as file:
        for part in (keys, order, counts):
            file.write(part.data)


def run_bytes(documents: int, bands: int) -> int:
    """What the runs of so many documents take on disk."""
    return documents * (12 * bands + 4)
