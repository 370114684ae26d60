"""Exact copies: of documents with equal content hashes one is kept, before any documents are compared.

A page that occurs a hundred million times in a corpus is a hundred million equal rows in one range of hashes. They are
streamed twice: to choose the document that stays, and to list the others. Whether that document is itself removed is
known only once near duplicates are found; ``write_removals`` then records its copies accordingly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.exchange import begins, repeated, write_rows

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary
    from mtnlg_data.exchange import Numbering, Range

CONTENT = np.dtype([("sort", np.uint64), ("high", np.uint64), ("order", np.uint64), ("document", np.int64)])


def find_copies(contents: Range, output: Path, *, numbering: Numbering) -> Summary:
    """Write each pair of a copy and the document that stays, of one range of content hashes, under either document.

    ``other`` is the other document of the pair; ``stays`` says whether ``other`` is the document that stays.
    """
    kept = _choose_kept(contents)
    lows = np.ascontiguousarray(kept["sort"])
    with write_rows(output) as copies:
        for table in contents.tables() if len(kept) else ():
            low, high, document = (table[name].to_numpy() for name in ("sort", "high", "document"))
            twin = kept[np.minimum(np.searchsorted(lows, low), len(kept) - 1)]
            is_copy = (twin["sort"] == low) & (twin["high"] == high) & (twin["document"] != document)
            pairs = np.stack([document[is_copy], twin["document"][is_copy]])
            for (one, other), stays in ((pairs, True), (pairs[::-1], False)):
                copies.add(numbering.keys(one), {"other": other, "stays": np.full(len(one), stays)})
    return {"copies": copies.rows // 2}


def _choose_kept(contents: Range) -> NDArray[np.void]:
    """The document that stays of each content that recurs, and a few that occur once; sorted by content."""
    kept = [np.empty(0, CONTENT)]
    for table in contents.tables():
        again = repeated(table["sort"].to_numpy())
        again[[0, -1]] = True  # equal ones may be in the tables before and after
        rows = np.empty(int(again.sum()), CONTENT)
        for name in CONTENT.names or ():
            rows[name] = table[name].to_numpy()[again]
        kept.append(_first_of_each(rows))
    return _first_of_each(np.concatenate(kept))


def _first_of_each(rows: NDArray[np.void]) -> NDArray[np.void]:
    """The preferred row of each content, sorted by content."""
    rows = rows[np.lexsort(tuple(rows[name] for name in reversed(CONTENT.names or ())))]
    return rows[begins(rows["sort"]) | begins(rows["high"])]


def write_removals(item: tuple[Range, Range], output: Path, *, numbering: Numbering) -> Summary:
    """Write what is removed for one range of documents: near duplicates in the range, and copies of its documents.

    A copy whose twin is a near duplicate is recorded with the document kept for that twin. ``item`` has the near
    duplicates, then the copies. Rows are keyed by the removed document.
    """
    near, copies = item
    columns = (("sort", np.uint64), ("kept", np.int64), ("score", np.float32))
    removed, kept, score = (near.column(name, dtype) for name, dtype in columns)
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
