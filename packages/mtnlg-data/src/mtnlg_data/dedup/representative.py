"""Components → the ledger of what is removed, and for the sake of which document.

Of each component the document from the best source stays (paper.md 4.3); among several of that source the one whose
id hashes lowest, so that neither shards nor order decide.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.dedup.graph import components
from mtnlg_data.dedup.verify import Shelf, jaccard
from mtnlg_data.engine import key_of
from mtnlg_data.files import aside
from mtnlg_data.shards import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.dedup.verify import Verification
    from mtnlg_data.engine import Summary
    from mtnlg_data.shards import Shard

#: ``jaccard`` is between the document and its kept twin: below the threshold where a chain of others joins the two.
LEDGER = pa.schema(
    [
        pa.field("document", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("kept", pa.string(), nullable=False),
        pa.field("kept_source", pa.string(), nullable=False),
        pa.field("jaccard", pa.float32(), nullable=False),
        pa.field("component", pa.int64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
    ]
)
ROWS_A_GROUP = 65_536
SAMPLES = 12
SAMPLE_CHARACTERS = 600


@dataclass(frozen=True)
class Ledger:
    """Unit: the edges of all bands → the removed documents, in the order of their numbers."""

    verifications: tuple[Verification, ...]
    shards: tuple[Shard, ...]
    priority: tuple[str, ...]
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("ledger", [u.key for u in self.verifications], [s[0].name for s in self.shards], self.priority)


def enter(unit: Ledger) -> Summary:
    """Run one unit; the summary has the number of components, their sizes, and some pairs with their texts."""
    documents, component = components([part.output for part in unit.verifications])
    ids, sources = _names(unit.shards, documents)
    kept = representatives(ids, sources, component, unit.priority)
    removed = np.flatnonzero(kept[component] != np.arange(len(documents)))
    twins = kept[component[removed]]
    shelf = Shelf(unit.verifications[0].sets)
    pairs = zip(documents[removed].tolist(), documents[twins].tolist(), strict=True)
    similarities = [jaccard(shelf(one), shelf(other)) for one, other in pairs]
    shard, row = _places(unit.shards, documents[removed])
    columns: list[Any] = [
        [ids[i] for i in removed],
        [sources[i] for i in removed],
        [ids[i] for i in twins],
        [sources[i] for i in twins],
        similarities,
        component[removed],
        [unit.shards[i].path.name for i in shard],
        row,
    ]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, LEDGER, strict=True)], LEDGER)
    with aside(unit.output) as partial:
        pq.write_table(table, partial, ROWS_A_GROUP, compression="zstd", compression_level=3)
    sizes = Counter(np.bincount(component).tolist())
    return {
        "components": len(kept),
        "cluster_sizes": {str(size): sizes[size] for size in sorted(sizes)},
        "samples": _samples(unit.shards, table, documents[removed], documents[twins]),
    }


def representatives(
    ids: Sequence[str], sources: Sequence[str], component: NDArray[np.int64], priority: Sequence[str]
) -> NDArray[np.int64]:
    """Of each component which of the documents stays; sources without a priority come last, all alike."""
    rank = {source: place for place, source in enumerate(priority)}
    kept: dict[int, tuple[tuple[int, bytes, str], int]] = {}
    for place, (name, source, number) in enumerate(zip(ids, sources, component.tolist(), strict=True)):
        claim = ((rank.get(source, len(rank)), _hash(name), name), place)
        kept[number] = min(kept.get(number, claim), claim)
    return np.array([kept[number][1] for number in range(len(kept))], np.int64)


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def _places(shards: Sequence[Shard], documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Shard and row of every document."""
    firsts = np.array([shard.first for shard in shards], np.int64)
    place = np.searchsorted(firsts, documents, side="right") - 1
    return place, documents - firsts[place]


def _names(shards: Sequence[Shard], documents: NDArray[np.int64]) -> tuple[list[str], list[str]]:
    """Id and source of every document."""
    ids: list[str] = []
    sources: list[str] = []
    place, row = _places(shards, documents)
    for number, shard in enumerate(shards):
        for _, table in rows_of(shard.path, row[place == number], ["id", "source"]):
            ids += table["id"].to_pylist()
            sources += table["source"].to_pylist()
    return ids, sources


def _samples(
    shards: Sequence[Shard], ledger: pa.Table, removed: NDArray[np.int64], kept: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Pairs for a person to judge, drawn by the hash of the removed document, the least alike first."""
    entries = ledger.select(["document", "kept", "jaccard"]).to_pylist()
    chosen = sorted(range(len(entries)), key=lambda i: _hash(entries[i]["document"]))[:SAMPLES]
    chosen.sort(key=lambda i: (entries[i]["jaccard"], i))
    return [
        {
            "kept": entries[i]["kept"],
            "dropped": entries[i]["document"],
            "jaccard": round(entries[i]["jaccard"], 4),
            "text_kept": _text(shards, kept[i]),
            "text_dropped": _text(shards, removed[i]),
        }
        for i in chosen
    ]


def _text(shards: Sequence[Shard], document: np.int64) -> str:
    place, row = _places(shards, np.array([document]))
    ((_, table),) = rows_of(shards[int(place[0])].path, row, ["text"])
    return str(table["text"][0].as_py())[:SAMPLE_CHARACTERS]
