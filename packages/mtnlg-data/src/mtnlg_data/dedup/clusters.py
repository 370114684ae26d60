"""Band keys → links → clusters of candidates.

With 20 bands of 13 rows, a pair of Jaccard similarity J shares a key with probability 1 - (1 - J**13)**20 (paper.md
4.3). Documents that are not copies of another (``copies.py``) enter the exchange with the keys of all bands: the number
of the band in the upper bits, the upper bits of the band's key below them. A task reads one range of these keys, of one
band or of several, as a stream, so a key that millions of documents share takes no more memory than any other.

Documents that are connected by shared keys form a cluster, and a duplicate is always in the same cluster as its twin. A
cluster is identified by its lowest document, the root. One task unites all links: it holds ``FOREST_BYTES`` per
document of the corpus, 2.6 GB for the paper's 320 million, and fails before it begins if the machine has too little
memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.engine.machine import memory_bytes
from mtnlg_data.exchange import KEY_BITS, stable_order, write_rows
from mtnlg_data.files import atomic_path

from .minhash import read_signatures
from .union_find import UNLINKED, find_all_roots, new_forest, unite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Int64s
    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary
    from mtnlg_data.exchange import Numbering, Range
    from mtnlg_data.job import Done

FOREST_BYTES = 8  # per document of the corpus
LINK = pa.schema({"one": pa.int64(), "other": pa.int64()})
LABELS_AT_A_TIME = 1 << 20


def write_band_rows(item: tuple[Shard, Done, Range], output: Path, *, numbering: Numbering) -> Summary:
    """Write rows of one shard's documents, except copies of others, by band and key, sorting one band at a time.

    ``item`` has the shard, its contents and the copies of its documents.
    """
    shard, contents, copies = item
    signatures = read_signatures(contents.output)
    enters = signatures["count"].to_numpy() > 0
    for table in copies.tables():
        is_copy = table["stays"].to_numpy()
        enters[numbering.numbers(table["sort"].to_numpy()[is_copy]) - shard.first] = False
    rows = np.flatnonzero(enters)
    keys = signatures["keys"].flatten().to_numpy().reshape(len(enters), signatures["keys"].type.list_size)
    bits = np.uint64((keys.shape[1] - 1).bit_length())
    with write_rows(output) as runs:
        for band in range(keys.shape[1]):
            upper = np.uint64(band) << np.uint64(KEY_BITS - bits) if bits else np.uint64(0)
            of_band = keys[rows, band] >> bits | upper
            order = stable_order(of_band)
            runs.add(of_band[order], {"document": shard.first + rows[order]})
    return {"documents": len(rows)}


def link_bands(bands: Range, output: Path) -> Summary:
    """Write the links of one range of keys, unordered. The documents that share a key form a chain."""
    links = 0
    with atomic_path(output) as partial, pa.ipc.new_file(str(partial), LINK) as file:
        for chain in _chains(bands.tables()):
            file.write_batch(pa.record_batch([*chain], LINK))
            links += chain.shape[1]
    return {"links": links}


def _chains(tables: Iterable[pa.Table]) -> Iterator[Int64s]:
    """Links [2, links] from each document to the next of the same key."""
    last_key, last_document = np.empty(0, np.uint64), np.empty(0, np.int64)
    for table in tables:
        keys = np.concatenate([last_key, table["sort"].to_numpy()])
        documents = np.concatenate([last_document, table["document"].to_numpy()])
        same = keys[1:] == keys[:-1]
        yield np.stack([documents[:-1][same], documents[1:][same]])
        last_key, last_document = keys[-1:], documents[-1:]


def write_clusters(links: Sequence[Done], output: Path, *, numbering: Numbering) -> Summary:
    """Write each linked document's root, by document. Raises ``Failure`` if there is too little memory."""
    check_memory(numbering.total)
    parent = new_forest(numbering.total)
    for done in links:
        with pa.memory_map(str(done.output)) as source, pa.ipc.open_file(source) as file:
            for number in range(file.num_record_batches):
                unite(parent, *(column.to_numpy() for column in file.get_batch(number)))
    find_all_roots(parent)
    with write_rows(output) as runs:
        for first in range(0, len(parent), LABELS_AT_A_TIME):
            roots = parent[first : first + LABELS_AT_A_TIME]
            linked = np.flatnonzero(roots != UNLINKED)
            runs.add(numbering.keys(first + linked), {"root": roots[linked]})
    return {"candidates": runs.rows}


def check_memory(documents: int) -> None:
    """Raise ``Failure`` if this machine cannot hold the forest of this many documents in half of its memory."""
    memory = memory_bytes()
    if FOREST_BYTES * documents > memory // 2:
        raise Failure(
            f"deduplicate: {documents:,} documents take {FOREST_BYTES * documents / 1e9:.1f} GB in one process, and "
            f"this machine has {memory / 1e9:.1f} GB, of which it may take half; use a larger one, or deduplicate "
            "parts of the corpus first"
        )
