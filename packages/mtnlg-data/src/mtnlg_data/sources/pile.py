"""The Pile's format: JSON lines, zstandard, the subset that a document belongs to under ``meta.pile_set_name``.

Layout and subset names as published with the Pile (arXiv 2101.00027); eleven of its subsets are in MT-NLG's corpus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .jsonl import read_objects
from .record import Dropped, Record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path


def read_pile(path: Path, subsets: Collection[str] | None, largest: int) -> Iterator[Record | Dropped]:
    """The documents of these subsets (of all where ``subsets`` is None); those of others are not counted."""
    for item in read_objects(path, largest):
        if isinstance(item, Dropped):
            yield item
            continue
        number, row = item
        meta = row.get("meta")
        name = meta.get("pile_set_name") if isinstance(meta, dict) else None
        subset = name if isinstance(name, str) else None
        if subsets is not None and subset not in subsets:
            continue
        if isinstance(row.get("text"), str):
            yield Record(number, row["text"], subset=subset)
        else:
            yield Dropped("no_text", f"{path.name}: line {number + 1}", "no string under 'text'", subset)
