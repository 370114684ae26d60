"""Finds what recurs over all shards, by hash: an external sort with ``mtnlg_data.exchange``.

    shards → things by hash → repeats by shard                 documents, lines, windows
    shards → anchors by hash → those that recur, by shard      windows are compared only around these

Of equal things the one in the document of the best source stays; among several from that source, the one in the
document whose key has the lowest hash. The choice depends neither on the cut into shards nor on the order of the
arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.document import read_documents
from mtnlg_data.exchange import begins, repeated, stable_order, write_rows
from mtnlg_data.text.arrays import BYTES_AT_A_TIME, texts_of
from mtnlg_data.text.hashing import document_orders

from .tokens import anchor_keys, find_documents, find_lines, find_windows, windows_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import UInt32s
    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary
    from mtnlg_data.exchange import Numbering, Range

PLACE = pa.binary(16)  # place of a thing as four numbers: shard, row of its document, first byte, end byte (exclusive)


def write_things(
    item: tuple[Shard, int, Range | None],
    output: Path,
    *,
    kind: str,
    measure: int,
    priority: Sequence[str],
) -> Summary:
    """Write one shard's things of a kind, documents, lines or windows, by hash.

    ``item`` has the shard, its number and, for windows, its recurring anchors; ``measure`` is the length of the
    shortest line, or of a window.
    """
    shard, number, anchors = item
    recurring = np.empty(0, np.uint64) if anchors is None else anchors.column("hash", np.uint64)
    with write_rows(output) as things:
        for first, batch in _batches(shard, ["text", "source", "key"], small=kind != "documents"):
            if kind == "documents":
                found = find_documents(batch["text"])
            elif kind == "lines":
                found = find_lines(batch["text"], measure)
            else:
                texts = texts_of(batch["text"])
                found = windows_with(find_windows(texts, measure), texts, measure, recurring)
            shards = np.full(len(found.keys), number)
            places = np.column_stack([shards, first + found.texts, found.begins, found.ends]).astype(np.uint32)
            place = pa.Array.from_buffers(PLACE, len(places), [None, pa.py_buffer(places)])
            things.add(found.keys, {"order": document_orders(batch, priority)[found.texts], "place": place})
    return {"rows": things.rows}


def write_anchors(item: tuple[Shard, int], output: Path, *, length: int) -> Summary:
    """Write the anchors of one shard, each once, by hash; ``again`` says whether the shard has it more than once."""
    shard, number = item
    windows = (find_windows(texts_of(batch["text"]), length) for _, batch in _batches(shard, ["text"]))
    keys = np.concatenate([np.empty(0, np.uint64), *map(anchor_keys, windows)])
    distinct, counts = np.unique(keys, return_counts=True)
    with write_rows(output) as anchors:
        anchors.add(distinct, {"again": counts > 1, "shard": np.full(len(distinct), number, np.uint32)})
    return {"rows": anchors.rows}


def _batches(shard: Shard, columns: Sequence[str], *, small: bool = True) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches of the shard's documents, each as (row of its first document, batch)."""
    first = 0
    for batch in read_documents(shard.path, columns, batch_bytes=BYTES_AT_A_TIME if small else None):
        yield first, batch
        first += batch.num_rows


def write_repeats(things: Range, output: Path, *, shards: Numbering) -> Summary:
    """Write the repeats of one range of hashes, by shard: of equal things all but the one that stays."""
    with write_rows(output) as repeats:
        for table in _repeats(things.tables()):
            repeats.add(shards.keys(places(table)[:, 0]), {"place": table["place"]})
    return {"repeated": repeats.rows}


def places(table: pa.Table) -> UInt32s:
    """Shard, row, first byte and end byte (exclusive) of each thing [things, 4]."""
    column = table["place"].combine_chunks()
    return np.frombuffer(column.buffers()[1], np.uint32).reshape(-1, 4)[column.offset :][: len(column)]


def _repeats(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """All rows of each key except the one with the lowest order, or the first of several such rows."""
    stays: list[pa.Table] = []  # the row of the last key that stays so far
    for table in tables:
        rows = pa.concat_tables([*stays, table])
        keys, orders = rows["sort"].to_numpy(), rows["order"].to_numpy()
        again = np.flatnonzero(repeated(keys))
        again = again[stable_order(orders[again])]
        again = again[stable_order(keys[again])]
        first = begins(keys[again])
        yield rows.take(pa.array(again[~first]))
        in_last = again[first & (keys[again] == keys[-1])]
        stays = [rows.slice(in_last[0] if len(in_last) else len(keys) - 1, 1)]


def write_recurring(anchors: Range, output: Path, *, shards: Numbering) -> Summary:
    """Write the recurring anchors of one range of hashes, once for each shard that has them."""
    with write_rows(output) as recurring:
        for rows in _whole_keys(anchors.tables()):
            keys = rows["sort"].to_numpy()
            recurs = rows["again"].to_numpy() | repeated(keys)
            recurring.add(shards.keys(rows["shard"].to_numpy()[recurs]), {"hash": keys[recurs]})
    return {"repeated": recurring.rows}


def _whole_keys(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Regroup the rows into tables that hold all rows of a key; a key has at most one row per shard."""
    remaining: list[pa.Table] = []
    for table in tables:
        rows = pa.concat_tables([*remaining, table])
        keys = rows["sort"].to_numpy()
        last = int(np.searchsorted(keys, keys[-1]))
        yield rows.slice(0, last)
        remaining = [rows.slice(last)]
    yield from remaining
