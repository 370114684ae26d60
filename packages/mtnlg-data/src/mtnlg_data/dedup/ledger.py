"""The ledger ``dropped/duplicates-*.parquet``, and the decision on each document of a shard.

A ledger row is one removed document, its kept twin, their Jaccard similarity and their component, identified by the
number of the document that it keeps. Rows are sorted by component, then by document. ``write_names`` takes the removed
documents of one shard and adds their names; ``write_ledger`` takes those whose twins are in one range of documents,
adds the twins' names, and writes a part of the ledger, with whole components.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.document import DocumentFile, read_rows
from mtnlg_data.exchange import write_rows
from mtnlg_data.files import atomic_path
from mtnlg_data.schema import required
from mtnlg_data.step import Outcome
from mtnlg_data.tally import DROPPED_SCHEMA
from mtnlg_data.text.hashing import fmix64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Int64s
    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary
    from mtnlg_data.exchange import Numbering, Range
    from mtnlg_data.step import Decide

REASON = "duplicate"
NAMES = ["id", "key", "source"]
#: ``score`` is the Jaccard similarity of the document and its kept twin, below the threshold where other documents
#: connect the two.
LEDGER_SCHEMA = pa.schema(
    [
        *DROPPED_SCHEMA,
        *required(pa.string(), "kept", "kept_key", "kept_source"),
        *required(pa.int64(), "component"),
        *required(pa.string(), "shard"),
        *required(pa.int64(), "row"),
        *required(pa.string(), "kept_shard"),
        *required(pa.int64(), "kept_row"),
    ]
)
SAMPLES = 12
SAMPLE_CHARACTERS = 600


def write_names(item: tuple[Shard, Range], output: Path, *, numbering: Numbering) -> Summary:
    """Write the removed documents of one shard, with their names and rows, keyed by the document that is kept."""
    shard, removals = item
    with write_rows(output) as runs:
        for table in removals.tables():
            rows = numbering.numbers(table["sort"].to_numpy()) - shard.first
            columns = {"score": table["score"], "shard": pa.repeat(shard.path.name, len(rows)), "row": rows}
            runs.add(numbering.keys(table["kept"].to_numpy()), {**_names(shard, rows), **columns})
    return {"removed": runs.rows}


def _names(shard: Shard, rows: Int64s) -> dict[str, pa.ChunkedArray]:
    """The names of these ascending rows."""
    table = pa.Table.from_batches(read_rows(shard.path, rows, NAMES))
    return dict(zip(NAMES, table.columns, strict=True))


def _twins(shards: Sequence[Shard], documents: Int64s) -> pa.Table:
    """Names and places of these ascending kept documents: one row per document."""
    shard_of = np.searchsorted([shard.first for shard in shards], documents, "right") - 1
    tables = []
    for number in np.unique(shard_of).tolist():
        shard = shards[number]
        rows = documents[shard_of == number] - shard.first
        names = {f"kept_{name}": column for name, column in _names(shard, rows).items()}
        places = {"kept_shard": pa.repeat(shard.path.name, len(rows)), "kept_row": rows}
        tables.append(pa.table({**names, "kept": names["kept_id"], **places}))
    return pa.concat_tables(tables).combine_chunks()


def write_ledger(item: tuple[Range, Sequence[Shard]], output: Path, *, numbering: Numbering) -> Summary:
    """Write the part of the ledger whose twins are in one range of documents; ``item`` has the range and its shards.

    The summary has the number of removed documents by source, of clusters by size, and sample pairs to review.
    """
    named, shards = item
    removed: Counter[str] = Counter()
    components, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    samples: list[tuple[int, dict[str, Any]]] = []
    with atomic_path(output) as partial, pq.ParquetWriter(partial, LEDGER_SCHEMA, compression="zstd") as writer:
        for rows in named.tables():
            component = numbering.numbers(rows["sort"].to_numpy())
            kept, place, counts = np.unique(component, return_inverse=True, return_counts=True)
            twins = _twins(shards, kept).take(pa.array(place))
            more = {"reason": pa.repeat(REASON, len(rows)), "component": component}
            columns = {**dict(zip(rows.column_names, rows.columns, strict=True)), **more}
            columns |= dict(zip(twins.column_names, twins.columns, strict=True))
            table = pa.table([columns[name] for name in LEDGER_SCHEMA.names], LEDGER_SCHEMA)
            writer.write_table(table)
            removed.update(table["source"].to_pylist())
            samples = _lowest([*samples, *_sample_rows(table)])
            components.append(kept)
            sizes.append(counts)
    _, place = np.unique(np.concatenate(components), return_inverse=True)  # a large component may be in several tables
    members = 1 + np.bincount(place, np.concatenate(sizes)).astype(np.int64)
    return {"removed": dict(removed), "cluster_sizes": sorted(Counter(members.tolist()).items()), "samples": samples}


def ledger_summary(parts: Iterable[Summary]) -> Summary:
    """Components, cluster sizes, pairs to review and removed documents of each source, of all parts together."""
    removed: Counter[str] = Counter()
    cluster_sizes: Counter[int] = Counter()
    samples: list[tuple[int, dict[str, Any]]] = []
    for part in parts:
        removed.update(part["removed"])
        cluster_sizes.update(dict(part["cluster_sizes"]))
        samples = _lowest([*samples, *part["samples"]])
    return {
        "components": cluster_sizes.total(),
        "cluster_sizes": {str(count): cluster_sizes[count] for count in sorted(cluster_sizes)},
        "removed": dict(sorted(removed.items())),
        "samples": [row for _, row in samples],
    }


def _lowest(samples: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    return sorted(samples, key=lambda sample: sample[0])[:SAMPLES]


def _sample_rows(table: pa.Table) -> list[tuple[int, dict[str, Any]]]:
    """The rows with the lowest hashes, as (hash, row)."""
    numbers = (table[name].to_numpy().astype(np.uint64) for name in ("component", "row"))
    hashes = fmix64(fmix64(next(numbers)) + next(numbers))
    order = np.argsort(hashes, kind="stable")[:SAMPLES]
    return list(zip(hashes[order].tolist(), table.take(pa.array(order)).to_pylist(), strict=True))


def sample_pairs(entries: Iterable[Mapping[str, Any]], shards: Sequence[Shard]) -> list[dict[str, Any]]:
    """Both texts of sampled ledger rows, the least similar pair first."""
    paths = {shard.path.name: shard.path for shard in shards}

    def beginning(shard: str, row: int) -> str:
        with DocumentFile(paths[shard], verify=False) as file:
            (batch,) = file.read_rows(np.array([row]), ["text"])
        return str(batch["text"][0])[:SAMPLE_CHARACTERS]

    return [
        {
            "kept": entry["kept"],
            "dropped": entry["id"],
            "jaccard": round(entry["score"], 4),
            "text_kept": beginning(entry["kept_shard"], entry["kept_row"]),
            "text_dropped": beginning(entry["shard"], entry["row"]),
        }
        for entry in sorted(entries, key=lambda entry: float(entry["score"]))
    ]


def drop_removed(shard: Shard, removals: Range, numbering: Numbering) -> Decide:
    """A function that drops a shard's removed documents, batch by batch."""
    stays = np.ones(shard.rows, np.bool_)
    stays[numbering.numbers(removals.column("sort", np.uint64)) - shard.first] = False
    first = 0

    def decide(batch: pa.RecordBatch) -> Outcome:
        nonlocal first
        return Outcome.keep(batch, stays[first : (first := first + batch.num_rows)], REASON)

    return decide
