"""Exact copies: of the documents of one content hash one goes on, before any is compared with another.

A page that stands a hundred million times in a corpus is a hundred million equal rows in one range of hashes. They are
read as a stream, twice: to choose the one that stays, and to list the others. What becomes of that one is known only
after near duplicates are; ``RemovalUnit`` gives its fate to its copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.text.hashing import hash_strings

from .minhash import read_signatures
from .runs import CorpusUnit, Exchanged, write_runs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary

KEPT_BY = "by-kept"  # folder of the copies by the document that stays, below that of the copies by themselves


@dataclass(frozen=True)
class ContentUnit(CorpusUnit):
    """Unit: the signatures of one shard → runs of its documents by content hash, with what decides who stays."""

    first: int
    signatures: Path
    priority: Sequence[str]
    output: Path


def write_contents(unit: ContentUnit) -> Summary:
    """Write one shard's runs."""
    signatures = read_signatures(unit.signatures)
    low, high, order = (signatures[name].to_numpy() for name in ("low", "high", "order"))
    rank = source_ranks(signatures["source"].to_numpy(), unit.priority)
    with write_runs(unit.output) as runs:
        runs.add(low, {"high": high, "rank": rank, "order": order, "document": unit.first + np.arange(len(low))})
    return {"documents": len(low)}


def source_ranks(sources: NDArray[np.uint64], priority: Sequence[str]) -> NDArray[np.uint32]:
    """Rank of each source, by its hash; those outside ``priority`` share the last rank."""
    hashes = hash_strings(pa.array(priority, pa.string()))
    by_hash = np.argsort(hashes)
    place = np.searchsorted(hashes[by_hash], sources)
    rank = np.append(by_hash, len(priority))[place]
    return np.where(np.append(hashes, np.uint64(0))[rank] == sources, rank, len(priority)).astype(np.uint32)


@dataclass(frozen=True)
class CopyUnit(CorpusUnit):
    """Unit: one range of content hashes → the copies, by document; and in ``KEPT_BY``, by the one that stays."""

    contents: Exchanged
    output: Path


def find_copies(unit: CopyUnit) -> Summary:
    """Write the copies of one range of hashes."""
    kept = _choose_kept(unit)
    by_kept = unit.output.parent / KEPT_BY / unit.output.name
    with write_runs(unit.output) as copies, write_runs(by_kept) as of_kept:
        lows = np.ascontiguousarray(kept["low"])
        for table in unit.contents.read(unit.number) if len(kept) else ():
            low = table["sort"].to_numpy()
            place = np.searchsorted(lows, low)
            found = lows[np.minimum(place, len(kept) - 1)] == low
            contents, place = _rows(table.filter(pa.array(found))), place[found]
            for offset in range(_most_of_one(lows)):  # more than 1 only where half of two hashes are equal
                twin = kept[np.minimum(place + offset, len(kept) - 1)]
                is_copy = (twin["low"] == contents["low"]) & (twin["high"] == contents["high"])
                is_copy &= (place + offset < len(kept)) & (twin["document"] != contents["document"])
                document, stays = contents["document"][is_copy], twin["document"][is_copy]
                copies.add(unit.corpus.keys(document), {"kept": stays})
                of_kept.add(unit.corpus.keys(stays), {"copy": document})
    return {"copies": copies.rows, "files": [f"{KEPT_BY}/{unit.output.name}"]}


CONTENT = np.dtype(
    [("low", np.uint64), ("high", np.uint64), ("rank", np.uint32), ("order", np.uint64), ("document", np.int64)]
)


def _rows(table: pa.Table) -> NDArray[np.void]:
    """The rows of a table of contents."""
    rows = np.empty(table.num_rows, CONTENT)
    for name, column in zip(CONTENT.names or (), ("sort", "high", "rank", "order", "document"), strict=True):
        rows[name] = table[column].to_numpy()
    return rows


def _choose_kept(unit: CopyUnit) -> NDArray[np.void]:
    """Of each content that occurs again, the document that stays, and a few that occur once; by content."""
    kept = [np.empty(0, CONTENT)]
    for table in unit.contents.read(unit.number):
        low = table["sort"].to_numpy()
        again = (low == low[0]) | (low == low[-1])  # others may be in the tables around this one
        again[1:] |= low[1:] == low[:-1]
        again[:-1] |= low[:-1] == low[1:]
        kept.append(_first_of_each(_rows(table.filter(pa.array(again)))))
    return _first_of_each(np.concatenate(kept))


def _first_of_each(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The row of each content that stays before the others, by content."""
    rows = rows[np.lexsort(tuple(rows[name] for name in reversed(CONTENT.names or ())))]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (rows["low"][1:] != rows["low"][:-1]) | (rows["high"][1:] != rows["high"][:-1])
    return rows[is_first]


def _most_of_one(ascending: NDArray[np.uint64]) -> int:
    """How often the most frequent of these values occurs."""
    begins = np.flatnonzero(np.append(True, ascending[1:] != ascending[:-1]))
    return int(np.diff(np.append(begins, len(ascending))).max(initial=0))


@dataclass(frozen=True)
class RemovalUnit(CorpusUnit):
    """Unit: near duplicates and copies of one range of documents that stay or go → all documents to be removed."""

    near: Exchanged  # removed documents, each with the one that is kept and their similarity
    copies: Exchanged  # by the document that stays
    output: Path


def write_removals(unit: RemovalUnit) -> Summary:
    """Write the removed documents: near duplicates, and copies with what their twin is a near duplicate of, if any."""
    keys, kept, score = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for table in unit.near.read(unit.number):
        keys.append(table["sort"].to_numpy())
        kept.append(table["kept"].to_numpy())
        score.append(table["score"].to_numpy())
    removed, kept_by, scores = np.concatenate(keys), np.concatenate(kept), np.concatenate(score)
    with write_runs(unit.output) as runs:
        runs.add(removed, {"kept": kept_by, "score": scores})
        for table in unit.copies.read(unit.number):
            twin = table["sort"].to_numpy()
            place = np.searchsorted(removed, twin)
            goes = np.append(removed, np.uint64(0))[place] == twin
            goes &= place < len(removed)
            fate = np.minimum(place, max(0, len(removed) - 1))[goes]
            stays, similarity = unit.corpus.numbers(twin), np.ones(len(twin), np.float32)
            stays[goes], similarity[goes] = kept_by[fate], scores[fate]
            runs.add(unit.corpus.keys(table["copy"].to_numpy()), {"kept": stays, "score": similarity})
    return {"removed": runs.rows}
