"""The ledger ``dropped/duplicates.parquet``, and the shards without what it removes.

A ledger row is one removed document, its kept twin, their Jaccard similarity and their component, which goes by the
number of the document that it keeps. Rows are by component, then by document. A unit takes the removed documents of one
shard and adds their names; another those whose twins are in one shard, and adds the names of these.
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
from mtnlg_data.files import atomic_path
from mtnlg_data.tally import DROPPED_SCHEMA, Tallies
from mtnlg_data.words import fmix64

from .runs import Corpus, Exchanged, write_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary

REASON = "duplicate"
NAMES = ["id", "key", "source"]
#: ``score`` is the Jaccard similarity of the document and its kept twin, below the threshold where other documents
#: connect the two.
LEDGER_SCHEMA = pa.schema(
    [
        *DROPPED_SCHEMA,
        pa.field("kept", pa.string(), nullable=False),
        pa.field("kept_key", pa.string(), nullable=False),
        pa.field("kept_source", pa.string(), nullable=False),
        pa.field("component", pa.int64(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.int64(), nullable=False),
        pa.field("kept_shard", pa.string(), nullable=False),
        pa.field("kept_row", pa.int64(), nullable=False),
    ]
)
SAMPLES = 12
SAMPLE_CHARACTERS = 600


@dataclass(frozen=True)
class NamesUnit(Unit):
    """Unit: the removed documents of one shard → runs by the document that is kept, with their names and rows."""

    corpus: Corpus
    number: int  # of the shard
    shard: Shard
    removals: Exchanged
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("names", self.removals.digest, self.number)


def write_names(unit: NamesUnit) -> Summary:
    """Write one shard's removed documents; the summary counts them by source."""
    removed: Counter[str] = Counter()
    with write_runs(unit.output) as runs:
        for table in unit.removals.read_documents(unit.corpus, unit.shard.first, unit.shard.rows):
            rows = unit.corpus.numbers(table["sort"].to_numpy()) - unit.shard.first
            names = pa.Table.from_batches([batch for _, batch in read_rows(unit.shard.path, rows, NAMES)])
            removed.update(names["source"].to_pylist())
            shard = pa.repeat(unit.shard.path.name, len(rows))
            columns = {**_columns(names), "score": table["score"], "shard": shard, "row": rows}
            runs.add(unit.corpus.keys(table["kept"].to_numpy()), columns)
    return {"removed": dict(sorted(removed.items()))}


def _columns(table: pa.Table) -> Mapping[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


@dataclass(frozen=True)
class LedgerPartUnit(Unit):
    """Unit: the removed documents whose twins are in one shard → its part of the ledger."""

    corpus: Corpus
    number: int  # of the shard
    shard: Shard
    removed: Exchanged
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("ledger part", self.removed.digest, self.number)


def write_ledger_part(unit: LedgerPartUnit) -> Summary:
    """Write one part."""
    with atomic_path(unit.output) as partial, pq.ParquetWriter(partial, LEDGER_SCHEMA, compression="zstd") as writer:
        for table in unit.removed.read_documents(unit.corpus, unit.shard.first, unit.shard.rows):
            component = unit.corpus.numbers(table["sort"].to_numpy())
            kept, place = np.unique(component - unit.shard.first, return_inverse=True)
            names = pa.Table.from_batches([batch for _, batch in read_rows(unit.shard.path, kept, NAMES)])
            columns = {
                **_columns(table),
                **{f"kept_{name}": names[name].take(pa.array(place)) for name in NAMES},
                "reason": pa.repeat(REASON, len(place)),
                "component": component,
                "kept_shard": pa.repeat(unit.shard.path.name, len(place)),
                "kept_row": kept[place],
            }
            columns["kept"] = columns["kept_id"]
            writer.write_table(pa.table([columns[name] for name in LEDGER_SCHEMA.names], LEDGER_SCHEMA))
    return {}


@dataclass(frozen=True)
class LedgerUnit(Unit):
    """Unit: the parts of the ledger → one table, in their order."""

    digest: str  # of everything that the ledger depends on
    parts: Path  # folder of ``count`` parts
    count: int
    documents: Sequence[tuple[str, int]]  # of each source
    removed: Sequence[tuple[str, int]]
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("ledger", self.digest)


def part_path(folder: Path, number: int) -> Path:
    """A part of the ledger."""
    return folder / f"{number:07d}.parquet"


def write_ledger(unit: LedgerUnit) -> Summary:
    """Join the parts, a row group at a time; the summary has cluster sizes, and rows of pairs to review."""
    cluster_sizes: Counter[int] = Counter()
    samples: list[tuple[int, dict[str, Any]]] = []
    last, size = -1, 0  # component of the last row, and how many rows it has so far
    with atomic_path(unit.output) as partial, pq.ParquetWriter(partial, LEDGER_SCHEMA, compression="zstd") as writer:
        for number in range(unit.count):
            with pq.ParquetFile(part_path(unit.parts, number)) as file:
                for group in range(file.num_row_groups):
                    table = file.read_row_group(group)
                    writer.write_table(table)
                    samples = sorted([*samples, *_sample_rows(table)], key=lambda sample: sample[0])[:SAMPLES]
                    components, counts = np.unique(table["component"].to_numpy(), return_counts=True)
                    if components[0] == last:
                        counts[0] += size
                    elif size:
                        cluster_sizes[size + 1] += 1
                    cluster_sizes.update((counts[:-1] + 1).tolist())
                    last, size = int(components[-1]), int(counts[-1])
    if size:
        cluster_sizes[size + 1] += 1
    return {
        "components": cluster_sizes.total(),
        "cluster_sizes": {str(count): cluster_sizes[count] for count in sorted(cluster_sizes)},
        "documents": dict(unit.documents),
        "removed": dict(unit.removed),
        "samples": [row for _, row in samples],
    }


def _sample_rows(table: pa.Table) -> list[tuple[int, dict[str, Any]]]:
    """The rows of lowest hash, each with its hash."""
    numbers = (table[name].to_numpy().astype(np.uint64) for name in ("component", "row"))
    hashes = fmix64(fmix64(next(numbers)) + next(numbers))
    order = np.argsort(hashes, kind="stable")[:SAMPLES]
    return list(zip(hashes[order].tolist(), table.take(pa.array(order)).to_pylist(), strict=True))


def sample_pairs(shards: Mapping[str, Path], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Both texts of these ledger rows, the least similar pair first; ``shards`` by file name."""
    places = sorted({(entry[f"{side}shard"], entry[f"{side}row"]) for entry in entries for side in ("", "kept_")})
    texts: dict[tuple[str, int], str] = {}
    for name in {name for name, _ in places}:
        rows = [row for shard, row in places if shard == name]
        for first, batch in read_rows(shards[name], np.array(rows), ["text"]):
            for row, text in zip(rows[first:], batch["text"].to_pylist(), strict=False):
                texts[name, row] = text[:SAMPLE_CHARACTERS]
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
class SurvivorUnit(Unit):
    """Unit: one shard → its documents that stay."""

    corpus: Corpus
    shard: Shard
    removals: Exchanged
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("survivors", self.shard.checksum, self.shard.path.name, self.removals.digest)


def write_survivors(unit: SurvivorUnit) -> Summary:
    """Write one shard without its removed documents; the summary has the tallies of its sources."""
    tallies = Tallies()
    write_documents(unit.output, _surviving_batches(unit, tallies))
    return tallies.summary()


def _surviving_batches(unit: SurvivorUnit, tallies: Tallies) -> Iterator[pa.RecordBatch]:
    document_stays = np.ones(unit.shard.rows, np.bool_)
    for table in unit.removals.read_documents(unit.corpus, unit.shard.first, unit.shard.rows):
        document_stays[unit.corpus.numbers(table["sort"].to_numpy()) - unit.shard.first] = False
    first = 0
    for batch in read_documents(unit.shard.path):
        stays = document_stays[first : first + batch.num_rows]
        lengths = pc.utf8_length(batch["text"]).to_pylist()
        for source, length, is_kept in zip(batch["source"].to_pylist(), lengths, stays.tolist(), strict=True):
            if is_kept:
                tallies[source].keep(length)
            else:
                tallies[source].drop(length, REASON)
        yield batch.filter(pa.array(stays)) if not stays.all() else batch
        first += batch.num_rows
