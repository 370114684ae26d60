"""Runs → links: documents that share the key of a band are candidates for being duplicates.

With 20 bands of 13 rows a pair of Jaccard J shares a key with probability 1 - (1 - J**13)**20 (paper.md 4.3). The keys
of a band are sorted a part at a time, a part being a range of keys: ``KEYS_A_PART`` of them on average, however many
documents there are. Of documents of one run and one key only the first is sorted, so that a page that stands in the
corpus a million times costs no more memory.

A run: what deduplication keeps of the documents of one shard, in arrays of fixed width, read through a memory map.

    uint64[bands, documents]  the keys of each band, ascending
    uint32[bands, documents]  whose they are: rows of the shard; equal keys by row
    uint32[documents]         shingles of each document, repeats included

12 bytes a document and band, and 4. The keys of all shards that fall into a range lie in one piece of every run, so any
part of a band is read without the rest: an external sort whose second half nobody has to write.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.engine import key_of
from mtnlg_data.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary


KEYS_A_PART = 1 << 23
KEYS_A_UNIT = 1 << 20  # at least: of a small corpus a unit does several bands


@dataclass(frozen=True)
class BandPart:
    """Unit: one range of the keys of some bands, of all runs → int64[links, 2]: pairs of documents that share a key.

    The documents of a bucket are linked in a chain, or one chain a run and one between the runs.
    """

    bands: range
    part: int
    parts: int
    runs: Sequence[Run]
    signed: str  # a digest of the keys of all runs' units
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("band", list(self.bands), self.part, self.parts, self.signed)


def parts_of(documents: int) -> int:
    """Into how many ranges the keys of a band of so many documents are cut."""
    return -(-documents // KEYS_A_PART) or 1


def bands_at_once(documents: int, bands: int) -> list[range]:
    """The bands in turn, as many at once as make a unit worth its while."""
    step = max(1, KEYS_A_UNIT // max(1, documents))
    return [range(first, min(first + step, bands)) for first in range(0, bands, step)]


def link(unit: BandPart) -> Summary:
    """Run one unit."""
    count = 0
    with replacing(unit.output) as file:
        for band in unit.bands:
            for pairs in _links(unit, band):
                file.write(pairs.tobytes())
                count += len(pairs)
    return {"links": count}


def _links(unit: BandPart, band: int) -> Iterator[NDArray[np.int64]]:
    heads = [(np.empty(0, np.uint64), np.empty(0, np.int64))]
    for keys, numbers in _pieces(unit, band):
        pairs, is_head = chained(keys, numbers)
        yield pairs
        heads.append((keys[is_head], numbers[is_head]))
    keys, numbers = (np.concatenate(parts) for parts in zip(*heads, strict=True))
    del heads
    order = np.argsort(keys, kind="stable")
    yield chained(keys[order], numbers[order])[0]


def _pieces(unit: BandPart, band: int) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Of every run the band's keys in the unit's range, ascending, and whose they are."""
    first = max(1, (unit.part << 64) // unit.parts)  # above NO_KEY
    last = (unit.part + 1 << 64) // unit.parts - 1
    for run in unit.runs:
        keys = run.keys[band]
        here = slice(np.searchsorted(keys, np.uint64(first)), np.searchsorted(keys, np.uint64(last), side="right"))
        yield np.array(keys[here]), run.first + run.order[band, here].astype(np.int64)


def chained(keys: NDArray[np.uint64], numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """[links, 2], every document with the one before it of the same key, and who has no such; keys ascend."""
    same = keys[1:] == keys[:-1]
    is_head = np.concatenate([np.ones(min(1, len(keys)), np.bool_), ~same])
    return np.stack([numbers[:-1][same], numbers[1:][same]], axis=1), is_head


def links_in(path: Path) -> Iterator[NDArray[np.int64]]:
    """The links of one part, a million at a time."""
    with path.open("rb") as file:
        while len(pairs := np.fromfile(file, np.int64, 2 << 20)):
            yield pairs.reshape(-1, 2)


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
