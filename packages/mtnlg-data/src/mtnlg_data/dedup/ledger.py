"""The ledger ``dropped/duplicates.parquet``, and the shards without what it removes.

A ledger row is one removed document, its kept twin, their Jaccard similarity and their component. The rows of a
component are consecutive, and components are numbered over all groups. The ledger becomes a mask of one byte per
document, by which the surviving documents are written.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.document import read_documents, read_rows, write_documents
from mtnlg_data.engine import Unit
from mtnlg_data.files import atomic_open, atomic_path
from mtnlg_data.tally import Tallies
from mtnlg_data.words import fmix64

from .representatives import LEDGER_SCHEMA, REASON

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard, UnitOutput
    from mtnlg_data.engine import Summary


BATCH_ROWS = 65_536
SAMPLES = 12
SAMPLE_CHARACTERS = 600


@dataclass(frozen=True)
class LedgerUnit(Unit):
    """Unit: the groups' parts of the ledger → one table, in the order of the groups."""

    ledger: str  # digest of everything that the ledger depends on
    shards: Sequence[Shard]
    documents: Sequence[tuple[str, int]]  # per source
    parts: Sequence[Path]
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("ledger", self.ledger)


def write_ledger(unit: LedgerUnit) -> Summary:
    """Join the parts; the summary has cluster sizes, documents and removed per source, and sample pairs to review."""
    cluster_sizes: Counter[int] = Counter()
    removed: Counter[str] = Counter()
    samples: list[tuple[int, dict[str, Any]]] = []
    firsts = {shard.path.name: shard.first for shard in unit.shards}
    components = 0
    with atomic_path(unit.output) as partial, pq.ParquetWriter(partial, LEDGER_SCHEMA, compression="zstd") as writer:
        for path in unit.parts:
            table = pq.read_table(path)
            component = table["component"].to_numpy()
            cluster_sizes.update((np.bincount(component) + 1).tolist())
            for source in table["source"].value_counts().to_pylist():
                removed[source["values"]] += source["counts"]
            samples = sorted([*samples, *_sample_rows(table, firsts)], key=lambda sample: sample[0])[:SAMPLES]
            index = LEDGER_SCHEMA.get_field_index("component")
            numbered = table.set_column(index, LEDGER_SCHEMA.field(index), pa.array(component + components))
            writer.write(numbered)
            components += int(component.max(initial=-1)) + 1
    return {
        "components": components,
        "cluster_sizes": {str(size): cluster_sizes[size] for size in sorted(cluster_sizes)},
        "documents": dict(unit.documents),
        "removed": dict(sorted(removed.items())),
        "samples": _sample_pairs(unit.shards, [row for _, row in samples]),
    }


def _sample_rows(table: pa.Table, firsts: dict[str, int]) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a part with the lowest hashes of their document numbers, each with its hash."""
    hashes = fmix64(_document_numbers(table, firsts).astype(np.uint64))
    order = np.argsort(hashes, kind="stable")[:SAMPLES]
    return list(zip(hashes[order].tolist(), table.take(pa.array(order)).to_pylist(), strict=True))


def _document_numbers(table: pa.Table, firsts: dict[str, int]) -> NDArray[np.int64]:
    """Corpus-wide number of each removed document, given the first number of each shard."""
    shard = pc.index_in(table["shard"], pa.array(firsts, pa.string())).to_numpy()
    numbers: NDArray[np.int64] = np.array(list(firsts.values()), np.int64)[shard] + table["row"].to_numpy()
    return numbers


def _sample_pairs(shards: Sequence[Shard], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both texts of these ledger rows, the least similar pair first."""
    places = {(entry[f"{side}shard"], entry[f"{side}row"]) for entry in entries for side in ("", "kept_")}
    texts: dict[tuple[str, int], str] = {}
    for shard in shards:
        rows = sorted(row for name, row in places if name == shard.path.name)
        for first, batch in read_rows(shard.path, np.array(rows, np.int64), ["text"]) if rows else ():
            for row, text in zip(rows[first:], batch["text"].to_pylist(), strict=False):
                texts[shard.path.name, row] = text[:SAMPLE_CHARACTERS]
    return [
        {
            "kept": entry["kept"],
            "dropped": entry["id"],
            "jaccard": round(entry["score"], 4),
            "text_kept": texts[entry["kept_shard"], entry["kept_row"]],
            "text_dropped": texts[entry["shard"], entry["row"]],
        }
        for entry in sorted(entries, key=lambda entry: float(entry["score"]))
    ]


@dataclass(frozen=True)
class RemovalMaskUnit(Unit):
    """Unit: the ledger → bool[documents], True where a document is removed."""

    ledger: UnitOutput
    shards: Sequence[Shard]
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("removed", self.ledger.key)


def write_removal_mask(unit: RemovalMaskUnit) -> Summary:
    """Write the mask as one .npy file."""
    firsts = {shard.path.name: shard.first for shard in unit.shards}
    is_removed = np.zeros(sum(shard.rows for shard in unit.shards), np.bool_)
    with pq.ParquetFile(unit.ledger.path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=["shard", "row"]):
            is_removed[_document_numbers(pa.table(batch), firsts)] = True
    with atomic_open(unit.output) as mask:
        np.save(mask, is_removed)
    return {"removed": int(is_removed.sum())}


@dataclass(frozen=True)
class SurvivorUnit(Unit):
    """Unit: one shard → its documents that stay."""

    shard: Shard
    removed: UnitOutput
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("survivors", self.shard.checksum, self.shard.path.name, self.removed.key)


def write_survivors(unit: SurvivorUnit) -> Summary:
    """Write one shard without its removed documents; the summary has the tallies of its sources."""
    tallies = Tallies()
    write_documents(unit.output, _surviving_batches(unit, tallies))
    return tallies.summary()


def _surviving_batches(unit: SurvivorUnit, tallies: Tallies) -> Iterator[pa.RecordBatch]:
    is_removed = np.load(unit.removed.path, mmap_mode="r")[unit.shard.first :]
    first = 0
    for batch in read_documents(unit.shard.path):
        stays = ~is_removed[first : first + batch.num_rows]
        lengths = pc.utf8_length(batch["text"]).to_pylist()
        for source, length, is_kept in zip(batch["source"].to_pylist(), lengths, stays.tolist(), strict=True):
            if is_kept:
                tallies[source].keep(length)
            else:
                tallies[source].drop(length, REASON)
        yield batch.filter(pa.array(stays)) if not stays.all() else batch
        first += batch.num_rows
