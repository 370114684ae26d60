"""Runs → links: documents that share a band key are duplicate candidates.

With 20 bands of 13 rows, a pair of Jaccard similarity J shares a key with probability 1 - (1 - J**13)**20 (paper.md
4.3). A run holds what deduplication keeps of one shard, in arrays of fixed width, read through a memory map:

    uint64[bands, documents]  the keys of each band, ascending
    uint32[bands, documents]  the shard row that each key belongs to; equal keys by row
    uint32[documents]         number of shingles of each document, repeats included

That is 12 bytes per document and band, plus 4. Keys are ascending, so a range of a band's keys is contiguous in every
run and is read without the rest: an external sort without its merge pass. A unit sorts one range of about
``KEYS_PER_RANGE`` keys, however many documents there are. Only the first document of each key and run enters that sort,
so a page that the corpus holds a million times takes no more memory than any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.engine import Unit
from mtnlg_data.files import atomic_open

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary

NO_KEY = np.uint64(0)  # of a document without shingles
KEYS_PER_RANGE = 1 << 23
MIN_KEYS_PER_UNIT = 1 << 20  # a unit of a small corpus takes several bands


class SignatureRun(NamedTuple):
    """A shard's run on disk; its row r is document ``first + r`` of the corpus."""

    path: Path
    first: int
    rows: int
    bands: int

    @property
    def keys(self) -> NDArray[np.uint64]:
        """Band keys [bands, documents], ascending within a band."""
        return np.memmap(self.path, np.uint64, "r", 0, (self.bands, self.rows))

    @property
    def order(self) -> NDArray[np.uint32]:
        """Shard row of each key [bands, documents]."""
        return np.memmap(self.path, np.uint32, "r", 8 * self.bands * self.rows, (self.bands, self.rows))

    @property
    def counts(self) -> NDArray[np.uint32]:
        """Number of shingles of each document."""
        return np.memmap(self.path, np.uint32, "r", 12 * self.bands * self.rows, (self.rows,))


def write_run(path: Path, keys: NDArray[np.uint64], counts: NDArray[np.uint32]) -> None:
    """Write a run of keys uint64[bands, documents] in document order; sorts them in place."""
    order = np.empty(keys.shape, np.uint32)
    for band, rows in zip(keys, order, strict=True):
        rows[:] = np.argsort(band, kind="stable")
        band[:] = band[rows]
    with atomic_open(path) as file:
        for array in (keys, order, counts):
            file.write(array.data)


def run_file_bytes(documents: int, bands: int) -> int:
    """Bytes on disk of the runs of this many documents."""
    return documents * (12 * bands + 4)


@dataclass(frozen=True)
class BandUnit(Unit):
    """Unit: one key range of some bands, over all runs → int64[links, 2], pairs of documents that share a key.

    The documents of a bucket form a chain: one chain per run, and one between the runs.
    """

    bands: range
    part: int  # the key range, of ``parts``
    parts: int
    runs: Sequence[SignatureRun]
    signatures: str  # digest of the keys of all signature units
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("band", list(self.bands), self.part, self.parts, self.signatures)


def count_key_ranges(documents: int) -> int:
    """Number of ranges that a band's keys are split into, for this many documents."""
    return -(-documents // KEYS_PER_RANGE) or 1


def group_bands(documents: int, bands: int) -> list[range]:
    """Consecutive bands by unit: enough of them for ``MIN_KEYS_PER_UNIT`` keys."""
    step = max(1, MIN_KEYS_PER_UNIT // max(1, documents))
    return [range(first, min(first + step, bands)) for first in range(0, bands, step)]


def link_bands(unit: BandUnit) -> Summary:
    """Write the links of one key range."""
    count = 0
    with atomic_open(unit.output) as file:
        for band in unit.bands:
            for links in _band_links(unit, band):
                file.write(links.tobytes())
                count += len(links)
    return {"links": count}


def _band_links(unit: BandUnit, band: int) -> Iterator[NDArray[np.int64]]:
    """Links within each run, then links between the first documents of each run and key."""
    first = max(1, (unit.part << 64) // unit.parts)  # above NO_KEY
    last = (unit.part + 1 << 64) // unit.parts - 1
    heads = [(np.empty(0, np.uint64), np.empty(0, np.int64))]
    for run in unit.runs:
        band_keys = run.keys[band]
        begin = np.searchsorted(band_keys, np.uint64(first))
        end = np.searchsorted(band_keys, np.uint64(last), side="right")
        keys, documents = np.array(band_keys[begin:end]), run.first + run.order[band, begin:end].astype(np.int64)
        links, is_head = chain_links(keys, documents)
        yield links
        heads.append((keys[is_head], documents[is_head]))
    keys, documents = (np.concatenate(columns) for columns in zip(*heads, strict=True))
    del heads
    order = np.argsort(keys, kind="stable")
    yield chain_links(keys[order], documents[order])[0]


def chain_links(keys: NDArray[np.uint64], documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Links [links, 2] from each document to the next of the same key, and which is its key's first; keys ascend."""
    same = keys[1:] == keys[:-1]
    is_head = np.concatenate([np.ones(min(1, len(keys)), np.bool_), ~same])
    return np.stack([documents[:-1][same], documents[1:][same]], axis=1), is_head


def read_links(path: Path) -> Iterator[NDArray[np.int64]]:
    """Read one unit's links, a million at a time."""
    with path.open("rb") as file:
        while len(links := np.fromfile(file, np.int64, 2 << 20)):
            yield links.reshape(-1, 2)
