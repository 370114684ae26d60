"""Shards → runs: what each shard holds of one kind of repeats.

Of equals the document of the best source stays, then that with the lowest hash of its key (another hash than fuzzy
deduplication takes). That depends neither on the cut into shards nor on the order of the arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.document import read_documents
from mtnlg_data.engine import Unit
from mtnlg_data.text.arrays import small_batches, texts_of
from mtnlg_data.text.hashing import hash_strings

from .runs import Repeats, write_anchors, write_run
from .tokens import anchor_keys, find_documents, find_lines, find_windows, windows_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary

    from .settings import ExactSettings
    from .tokens import Items

SOURCE_BIT = np.uint64(48)  # of a document's order: above, the rank of its source; below, the hash of its key
KEY_BITS = np.uint64(16)
ITEM_MEMORY_BYTES = 72  # of a thing while its run is sorted


@dataclass(frozen=True)
class RunUnit(Unit):
    """Unit: one shard → its run of one kind: documents, lines, anchors or windows."""

    kind: str
    shard: Shard
    number: int  # of the shard
    settings: ExactSettings
    priority: Sequence[str]
    anchors: Repeats | None  # which of the shard's recur, for windows
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        settings = self.settings
        measures = {
            "documents": (),
            "lines": (settings.shortest_line,),
            "anchors": (settings.substring_unit, settings.substring_length),
            "windows": (settings.substring_unit, settings.substring_length),
        }
        anchors = self.anchors and self.anchors.rows.digest
        return (self.kind, self.shard.checksum, self.shard.path.name, self.number, measures[self.kind], anchors,
                self.priority)  # fmt: skip


def scan_shard(unit: RunUnit) -> Summary:
    """Write the run of one shard; the summary has its heads and tails."""
    if unit.kind == "anchors":
        return write_anchors(unit.output, unit.number, np.concatenate([np.empty(0, np.uint64), *_anchors(unit)]))
    keys, orders = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    spans = [np.empty((0, 3), np.uint32)]
    for first, batch_orders, items in _items(unit):
        keys.append(items.keys)
        orders.append(batch_orders[items.texts])
        spans.append(np.empty((len(items.keys), 3), np.uint32))
        for column, values in enumerate((first + items.texts, items.begins, items.ends)):
            spans[-1][:, column] = values
    return write_run(unit.output, unit.number, np.concatenate(keys), np.concatenate(orders), np.concatenate(spans))


def _batches(unit: RunUnit, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Small batches of the shard's documents, each with the row of its first."""
    first = 0
    for batch in read_documents(unit.shard.path, columns):
        for part in small_batches(batch):
            yield first, part
            first += part.num_rows


def _anchors(unit: RunUnit) -> Iterator[NDArray[np.uint64]]:
    settings = unit.settings
    for _, batch in _batches(unit, ["text"]):
        yield anchor_keys(find_windows(texts_of(batch["text"]), settings.substring_unit, settings.substring_length))


def _items(unit: RunUnit) -> Iterator[tuple[int, NDArray[np.uint64], Items]]:
    """The things of each batch, with the row of its first document and the order of all."""
    settings = unit.settings
    repeated = np.empty(0, np.uint64) if unit.anchors is None else unit.anchors.read()
    for first, batch in _batches(unit, ["text", "source", "key"]):
        column = batch["text"]
        if unit.kind == "documents":
            items = find_documents(column)
        elif unit.kind == "lines":
            items = find_lines(column, settings.shortest_line)
        else:
            texts = texts_of(column)
            windows = find_windows(texts, settings.substring_unit, settings.substring_length)
            items = windows_with(windows, texts, settings.substring_length, repeated)
        yield first, _orders(batch, unit.priority), items


def _orders(batch: pa.RecordBatch, priority: Sequence[str]) -> NDArray[np.uint64]:
    """Order of each document in the corpus; sources outside ``priority`` share the last rank."""
    rank = {source: place for place, source in enumerate(priority)}
    sources = batch["source"].dictionary_encode()
    ranks = np.array([rank.get(source, len(rank)) for source in sources.dictionary.to_pylist()], np.uint64)
    return np.asarray(ranks.take(sources.indices) << SOURCE_BIT | hash_strings(batch["key"]) >> KEY_BITS)
