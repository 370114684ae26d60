"""Exact copies: of documents with equal content hashes one is kept, before any documents are compared.

A page that occurs a hundred million times in a corpus is a hundred million equal rows in one range of hashes. They are
streamed twice: to choose the document that stays, and to list the others. Whether that document is itself removed is
known only once near duplicates are found; ``write_removals`` then records its copies accordingly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.exchange import begins, write_rows
from mtnlg_data.text.hashing import hash_strings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary
    from mtnlg_data.exchange import Numbering, Range

CONTENT = np.dtype(
    [("low", np.uint64), ("high", np.uint64), ("rank", np.uint32), ("order", np.uint64), ("document", np.int64)]
)


def find_copies(contents: Range, output: Path, *, numbering: Numbering, priority: Sequence[str]) -> Summary:
    """Write each pair of a copy and the document that stays, of one range of content hashes, under either document.

    ``other`` is the other document of the pair; ``stays`` says whether ``other`` is the document that stays.
    """
    kept = _choose_kept(contents, priority)
    lows = np.ascontiguousarray(kept["low"])
    with write_rows(output) as copies:
        for table in contents.tables() if len(kept) else ():
            low, high, document = (table[name].to_numpy() for name in ("sort", "high", "document"))
            twin = kept[np.minimum(np.searchsorted(lows, low), len(kept) - 1)]
            is_copy = (twin["low"] == low) & (twin["high"] == high) & (twin["document"] != document)
            pairs = np.stack([document[is_copy], twin["document"][is_copy]])
            for (one, other), stays in ((pairs, True), (pairs[::-1], False)):
                copies.add(numbering.keys(one), {"other": other, "stays": np.full(len(one), stays)})
    return {"copies": copies.rows // 2}


def source_ranks(sources: NDArray[np.uint64], priority: Sequence[str]) -> NDArray[np.uint32]:
    """Rank of each source, by its hash; those outside ``priority`` share the last rank."""
    hashes = hash_strings(pa.array(priority, pa.string()))
    by_hash = np.argsort(hashes)
    place = np.searchsorted(hashes[by_hash], sources)
    rank = np.append(by_hash, len(priority))[place]
    return np.where(np.append(hashes, np.uint64(0))[rank] == sources, rank, len(priority)).astype(np.uint32)


def _choose_kept(contents: Range, priority: Sequence[str]) -> NDArray[np.void]:
    """The document that stays of each content that recurs, and a few that occur once; sorted by content."""
    kept = [np.empty(0, CONTENT)]
    for table in contents.tables():
        low = table["sort"].to_numpy()
        again = (low == low[0]) | (low == low[-1])  # equal ones may be in the tables before and after
        again[1:] |= low[1:] == low[:-1]
        again[:-1] |= low[:-1] == low[1:]
        rows = np.empty(int(again.sum()), CONTENT)
        for name, column in (("low", "sort"), ("high", "high"), ("order", "order"), ("document", "document")):
            rows[name] = table[column].to_numpy()[again]
        rows["rank"] = source_ranks(table["source"].to_numpy()[again], priority)
        kept.append(_first_of_each(rows))
    return _first_of_each(np.concatenate(kept))


def _first_of_each(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The preferred row of each content, sorted by content."""
    rows = rows[np.lexsort(tuple(rows[name] for name in reversed(CONTENT.names or ())))]
    return rows[begins(rows["low"]) | begins(rows["high"])]


def write_removals(item: tuple[Range, Range], output: Path, *, numbering: Numbering) -> Summary:
    """Write what is removed for one range of documents: near duplicates in the range, and copies of its documents.

    A copy whose twin is a near duplicate is recorded with the document kept for that twin. ``item`` has the near
    duplicates, then the copies. Rows are keyed by the removed document.
    """
    near, copies = item
    tables = [*near.tables()]
    removed, kept, score = (
        np.concatenate([np.empty(0, dtype), *(table[name].to_numpy() for table in tables)])
        for name, dtype in (("sort", np.uint64), ("kept", np.int64), ("score", np.float32))
    )
    with write_rows(output) as runs:
        runs.add(removed, {"kept": kept, "score": score})
        for table in copies.tables():
            goes_with = ~table["stays"].to_numpy()
            twin, copy = (table[name].to_numpy()[goes_with] for name in ("sort", "other"))
            place = np.minimum(np.searchsorted(removed, twin), max(0, len(removed) - 1))
            stays, similarity = numbering.numbers(twin), np.ones(len(twin), np.float32)
            if len(removed):
                goes = removed[place] == twin
                stays[goes], similarity[goes] = kept[place[goes]], score[place[goes]]
            runs.add(numbering.keys(copy), {"kept": stays, "score": similarity})
    return {"removed": runs.rows}
