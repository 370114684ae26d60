"""The ledger ``dropped/duplicates-*.parquet``, and the shards without what it removes.

A ledger row is one removed document, its kept twin, their Jaccard similarity and their component, which goes by the
number of the document that it keeps. Rows are by component, then by document. A unit takes the removed documents of one
shard and adds their names; another those whose twins are in one range of documents, adds the names of these, and writes
its part of the ledger, which has components whole.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.document import DocumentFile, read_documents, read_rows, write_documents
from mtnlg_data.engine import Unit
from mtnlg_data.files import atomic_path
from mtnlg_data.tally import DROPPED_SCHEMA, Tallies
from mtnlg_data.text.arrays import text_lengths
from mtnlg_data.text.hashing import fmix64

from .runs import Corpus, CorpusUnit, Exchanged, write_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

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
class NamesUnit(CorpusUnit):
    """Unit: the removed documents of one shard → runs by the document that is kept, with their names and rows."""

    shard: Shard
    removals: Exchanged
    output: Path


def write_names(unit: NamesUnit) -> Summary:
    """Write one shard's removed documents."""
    with write_runs(unit.output) as runs:
        for table in unit.removals.read_documents(unit.corpus, unit.shard.first, unit.shard.rows):
            rows = unit.corpus.numbers(table["sort"].to_numpy()) - unit.shard.first
            names = pa.Table.from_batches([batch for _, batch in read_rows(unit.shard.path, rows, NAMES)])
            shard = pa.repeat(unit.shard.path.name, len(rows))
            columns = {**_columns(names), "score": table["score"], "shard": shard, "row": rows}
            runs.add(unit.corpus.keys(table["kept"].to_numpy()), columns)
    return {"removed": runs.rows}


def _columns(table: pa.Table) -> Mapping[str, pa.ChunkedArray]:
    return dict(zip(table.column_names, table.columns, strict=True))


class _Names:
    """Names and places of kept documents. Asked for in their order, a shard is opened once."""

    def __init__(self, shards: Sequence[Shard], stack: ExitStack) -> None:
        self._shards = shards
        self._firsts = [shard.first for shard in shards]
        self._stack = stack
        self._open: tuple[int, DocumentFile] | None = None

    def of(self, documents: NDArray[np.int64]) -> pa.Table:
        """One row for each of these documents, which ascend."""
        shard_of = np.searchsorted(self._firsts, documents, "right") - 1
        tables = []
        for number in np.unique(shard_of).tolist():
            rows = documents[shard_of == number] - self._firsts[number]
            names = pa.Table.from_batches([batch for _, batch in self._file(number).read_rows(rows, NAMES)])
            columns = {f"kept_{name}": column for name, column in _columns(names).items()}
            shard = pa.repeat(self._shards[number].path.name, len(rows))
            tables.append(pa.table({**columns, "kept": columns["kept_id"], "kept_shard": shard, "kept_row": rows}))
        return pa.concat_tables(tables).combine_chunks()

    def _file(self, number: int) -> DocumentFile:
        if self._open is None or self._open[0] != number:
            self._stack.close()
            self._open = number, self._stack.enter_context(DocumentFile(self._shards[number].path))
        return self._open[1]


@dataclass(frozen=True)
class LedgerUnit(Unit):
    """Unit: the removed documents whose twins are in one range of documents → a part of the ledger."""

    corpus: Corpus
    number: int  # of the range
    shards: Sequence[Shard]  # that the range is in
    removed: Exchanged
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("ledger", self.removed.digest, self.number, self.removed.ranges)


def write_ledger(unit: LedgerUnit) -> Summary:
    """Write a part; the summary counts what it removes, and clusters by size, and has pairs to review."""
    removed: Counter[str] = Counter()
    cluster_sizes: Counter[int] = Counter()
    samples: list[tuple[int, dict[str, Any]]] = []
    last, size = -1, 0  # component of the last row, and how many rows it has so far
    with (
        atomic_path(unit.output) as partial,
        pq.ParquetWriter(partial, LEDGER_SCHEMA, compression="zstd") as writer,
        ExitStack() as stack,
    ):
        names = _Names(unit.shards, stack)
        for rows in unit.removed.read(unit.number):
            component = unit.corpus.numbers(rows["sort"].to_numpy())
            kept, place, counts = np.unique(component, return_inverse=True, return_counts=True)
            twins = names.of(kept).take(pa.array(place))
            columns = {**_columns(rows), **_columns(twins), "reason": pa.repeat(REASON, len(rows))}
            columns["component"] = component
            table = pa.table([columns[name] for name in LEDGER_SCHEMA.names], LEDGER_SCHEMA)
            writer.write_table(table)
            removed.update(table["source"].to_pylist())
            samples = _lowest([*samples, *_sample_rows(table)])
            if kept[0] == last:
                counts[0] += size
            elif size:
                cluster_sizes[size + 1] += 1
            cluster_sizes.update((counts[:-1] + 1).tolist())
            last, size = int(kept[-1]), int(counts[-1])
    if size:
        cluster_sizes[size + 1] += 1
    return {"removed": dict(removed), "cluster_sizes": sorted(cluster_sizes.items()), "samples": samples}


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
    """The rows of lowest hash, each with its hash."""
    numbers = (table[name].to_numpy().astype(np.uint64) for name in ("component", "row"))
    hashes = fmix64(fmix64(next(numbers)) + next(numbers))
    order = np.argsort(hashes, kind="stable")[:SAMPLES]
    return list(zip(hashes[order].tolist(), table.take(pa.array(order)).to_pylist(), strict=True))


def sampled_rows(entries: Iterable[Mapping[str, Any]], shard: str) -> tuple[int, ...]:
    """The rows of this shard that sampled ledger rows name."""
    sides = ((entry[f"{side}shard"], entry[f"{side}row"]) for entry in entries for side in ("", "kept_"))
    return tuple(sorted({row for name, row in sides if name == shard}))


def sample_pairs(
    entries: Iterable[Mapping[str, Any]], survivors: Iterable[tuple[SurvivorUnit, Summary]]
) -> list[dict[str, Any]]:
    """Both texts of sampled ledger rows, the least similar pair first."""
    texts = {
        (unit.shard.path.name, row): text
        for unit, summary in survivors
        for row, text in zip(unit.sampled, summary["samples"], strict=True)
    }
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
    removals: Exchanged
    shard: Shard
    sampled: tuple[int, ...]  # rows to be shown, which follow from the removals
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("survivors", self.shard.checksum, self.shard.path.name, self.removals.digest)


def write_survivors(unit: SurvivorUnit) -> Summary:
    """Write one shard without its removed documents; tallies its sources, and returns the begins of sampled texts."""
    tallies, samples = Tallies(), list[str]()
    write_documents(unit.output, _surviving_batches(unit, tallies, samples))
    return {**tallies.summary(), "samples": samples}


def _surviving_batches(unit: SurvivorUnit, tallies: Tallies, samples: list[str]) -> Iterator[pa.RecordBatch]:
    sampled = np.array(unit.sampled, np.int64)
    document_stays = np.ones(unit.shard.rows, np.bool_)
    for table in unit.removals.read_documents(unit.corpus, unit.shard.first, unit.shard.rows):
        document_stays[unit.corpus.numbers(table["sort"].to_numpy()) - unit.shard.first] = False
    first = 0
    for batch in read_documents(unit.shard.path):
        stays = document_stays[first : first + batch.num_rows]
        lengths = text_lengths(batch["text"])
        sources = batch["source"].dictionary_encode()
        for number, source in enumerate(sources.dictionary.to_pylist()):
            own = sources.indices.to_numpy() == number
            tallies[source].measure(lengths[own], lengths[own & stays])
            if removed := int((own & ~stays).sum()):
                tallies[source].reasons[REASON] += removed
        shown = sampled[slice(*np.searchsorted(sampled, [first, first + batch.num_rows]))] - first
        samples += (text[:SAMPLE_CHARACTERS] for text in batch["text"].take(pa.array(shown)).to_pylist())
        yield batch.filter(pa.array(stays)) if not stays.all() else batch
        first += batch.num_rows
