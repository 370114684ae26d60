"""Band keys → links: documents that share a band key are duplicate candidates.

With 20 bands of 13 rows, a pair of Jaccard similarity J shares a key with probability 1 - (1 - J**13)**20 (paper.md
4.3). Documents that are no copies of another (``copies.py``) enter the exchange with the keys of all bands: the number
of the band in the upper bits, the upper bits of the band's key below them. A unit reads one range of these keys, of one
band or of several, as a stream, so a key that millions of documents share takes no more memory than any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.exchange import stable_order

from .clusters import write_links
from .minhash import read_signatures
from .runs import KEY_BITS, CorpusUnit, Exchanged, write_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

    from mtnlg_data.engine import Summary


@dataclass(frozen=True)
class BandRunUnit(CorpusUnit):
    """Unit: the signatures of one shard → runs of its documents by band and key, without copies of other documents."""

    first: int
    signatures: Path
    copies: Exchanged
    output: Path


def write_band_runs(unit: BandRunUnit) -> Summary:
    """Write one shard's runs, a band sorted at a time, which fits the processor's caches."""
    signatures = read_signatures(unit.signatures)
    enters = signatures["count"].to_numpy() > 0
    for table in unit.copies.read_documents(unit.corpus, unit.first, len(enters)):
        enters[unit.corpus.numbers(table["sort"].to_numpy()) - unit.first] = False
    rows = np.flatnonzero(enters)
    keys = signatures["keys"].flatten().to_numpy().reshape(len(enters), signatures["keys"].type.list_size)
    bits = np.uint64((keys.shape[1] - 1).bit_length())
    with write_runs(unit.output) as runs:
        for band in range(keys.shape[1]):
            upper = np.uint64(band) << np.uint64(KEY_BITS - bits) if bits else np.uint64(0)
            of_band = keys[rows, band] >> bits | upper
            order = stable_order(of_band)
            runs.add(of_band[order], {"document": unit.first + rows[order]})
    return {"documents": len(rows)}


@dataclass(frozen=True)
class BandUnit(CorpusUnit):
    """Unit: one range of band keys → links of the documents that share one, as runs by document, each in both."""

    bands: Exchanged
    output: Path


def link_bands(unit: BandUnit) -> Summary:
    """Write the links of one key range. The documents of a key form a chain."""
    with write_links(unit.output, unit.corpus) as links:
        for chain in _chains(unit.bands.read(unit.number)):
            links.add(chain)
    return {"rows": links.rows}


def _chains(tables: Iterable[pa.Table]) -> Iterator[NDArray[np.int64]]:
    """Links [links, 2] from each document to the next of the same key."""
    last_key, last_document = np.empty(0, np.uint64), np.empty(0, np.int64)
    for table in tables:
        keys = np.concatenate([last_key, table["sort"].to_numpy()])
        documents = np.concatenate([last_document, table["document"].to_numpy()])
        same = keys[1:] == keys[:-1]
        yield np.stack([documents[:-1][same], documents[1:][same]], axis=1)
        last_key, last_document = keys[-1:], documents[-1:]
