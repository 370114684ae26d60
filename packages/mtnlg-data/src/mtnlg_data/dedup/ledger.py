"""The ledger of deduplication, ``removed.parquet``: each document that goes, its kept twin, how alike, which component.

Components stand together and are numbered over all groups. Beside it a byte a document, for the writing of the shards.

Shards without what the ledger removes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.document import Tallies, read_documents, rows_of, write_documents
from mtnlg_data.engine import key_of
from mtnlg_data.files import aside, replacing
from mtnlg_data.words import mix

from .representatives import LEDGER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Made, Shard
    from mtnlg_data.engine import Summary


ROWS_AT_ONCE = 65_536
SAMPLES = 12
SAMPLE_CHARACTERS = 600


@dataclass(frozen=True)
class Ledger:
    """Unit: the parts of all groups → one table, the groups in their order."""

    verified: str  # a digest of all that the ledger depends on
    shards: Sequence[Shard]
    documents: Sequence[tuple[str, int]]  # how many each source has
    parts: Sequence[Path]
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("ledger", self.verified)


def enter(unit: Ledger) -> Summary:
    """Run one unit; the summary has clusters by size, documents and removed by source, and pairs for a person's eye."""
    sizes: Counter[int] = Counter()
    removed: Counter[str] = Counter()
    samples: list[tuple[int, dict[str, Any]]] = []
    firsts = {shard.path.name: shard.first for shard in unit.shards}
    done = 0
    with aside(unit.output) as partial, pq.ParquetWriter(partial, LEDGER, compression="zstd") as writer:
        for path in unit.parts:
            table = pq.read_table(path)
            component = table["component"].to_numpy()
            sizes.update((np.bincount(component) + 1).tolist())
            for source in table["source"].value_counts().to_pylist():
                removed[source["values"]] += source["counts"]
            samples = sorted([*samples, *_drawn(table, firsts)], key=lambda drawn: drawn[0])[:SAMPLES]
            column = pa.array(component + done)
            writer.write(table.set_column(LEDGER.get_field_index("component"), LEDGER.field("component"), column))
            done += int(component.max(initial=-1)) + 1
    return {
        "components": done,
        "cluster_sizes": {str(size): sizes[size] for size in sorted(sizes)},
        "documents": dict(unit.documents),
        "removed": dict(sorted(removed.items())),
        "samples": _with_texts(unit.shards, [entry for _, entry in samples]),
    }


def _drawn(table: pa.Table, firsts: dict[str, int]) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a part that could be among the samples: a document is drawn by the hash of its number."""
    hashes = mix(_numbers(table, firsts).astype(np.uint64))
    order = np.argsort(hashes, kind="stable")[:SAMPLES]
    return list(zip(hashes[order].tolist(), table.take(pa.array(order)).to_pylist(), strict=True))


def _numbers(table: pa.Table, firsts: dict[str, int]) -> NDArray[np.int64]:
    """The number among all documents of every removed one."""
    shard = pc.index_in(table["shard"], pa.array(firsts, pa.string())).to_numpy()
    numbers: NDArray[np.int64] = np.array(list(firsts.values()), np.int64)[shard] + table["row"].to_numpy()
    return numbers


def _with_texts(shards: Sequence[Shard], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pairs for a person to judge, the least alike first."""
    places = {(entry[f"{end}shard"], entry[f"{end}row"]) for entry in entries for end in ("", "kept_")}
    texts: dict[tuple[str, int], str] = {}
    for shard in shards:
        rows = sorted(row for name, row in places if name == shard.path.name)
        for done, table in rows_of(shard.path, np.array(rows, np.int64), ["text"]) if rows else ():
            for row, text in zip(rows[done:], table["text"].to_pylist(), strict=False):
                texts[shard.path.name, row] = text[:SAMPLE_CHARACTERS]
    return [
        {
            "kept": entry["kept"],
            "dropped": entry["document"],
            "jaccard": round(entry["jaccard"], 4),
            "text_kept": texts[entry["kept_shard"], entry["kept_row"]],
            "text_dropped": texts[entry["shard"], entry["row"]],
        }
        for entry in sorted(entries, key=lambda entry: float(entry["jaccard"]))
    ]


@dataclass(frozen=True)
class Removed:
    """Unit: the ledger → bool[documents], whether each is removed."""

    ledger: Made
    shards: Sequence[Shard]
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("removed", self.ledger.key)


def mark(unit: Removed) -> Summary:
    """Run one unit."""
    firsts = {shard.path.name: shard.first for shard in unit.shards}
    is_removed = np.zeros(sum(shard.rows for shard in unit.shards), np.bool_)
    with pq.ParquetFile(unit.ledger.path) as file:
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=["shard", "row"]):
            is_removed[_numbers(pa.table(batch), firsts)] = True
    with replacing(unit.output) as handle:
        np.save(handle, is_removed)
    return {"removed": int(is_removed.sum())}


REASON = "duplicate"


@dataclass(frozen=True)
class Survivors:
    """Unit: one shard → its documents that stay."""

    shard: Shard
    removed: Made
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("survivors", self.shard.checksum, self.shard.path.name, self.removed.key)


def survive(unit: Survivors) -> Summary:
    """Run one unit."""
    tallies = Tallies()
    write_documents(unit.output, _kept(unit, tallies))
    return tallies.summary()


def _kept(unit: Survivors, tallies: Tallies) -> Iterator[pa.RecordBatch]:
    is_removed = np.load(unit.removed.path, mmap_mode="r")[unit.shard.first :]
    first = 0
    for batch in read_documents(unit.shard.path):
        stays = ~is_removed[first : first + batch.num_rows]
        lengths = pc.utf8_length(batch["text"]).to_pylist()
        for source, length, kept in zip(batch["source"].to_pylist(), lengths, stays.tolist(), strict=True):
            if kept:
                tallies[source].keep(length)
            else:
                tallies[source].drop(length, REASON)
        yield batch.filter(pa.array(stays)) if not stays.all() else batch
        first += batch.num_rows
