"""Several token stores into one, without the texts they were made of.

``concatenate`` puts one store after the other. ``merge`` spreads the documents of each evenly over the whole, in their
order: document j of n stands at (j + 1/2) / n, ties go to the earlier store. Of shuffled stores it makes a shuffled
one, any stretch of which, the documents held out at its end included, has of every store its share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.files import sha256

from .store import TokenStore, writing_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

DOCUMENTS_AT_ONCE = 4096
MERGED = (np.dtype(np.uint16), np.dtype(np.int32))


def concatenate(prefixes: Sequence[Path], out: Path, vocabulary: int) -> TokenStore:
    """Write the stores one after the other as ``out``; memory does not grow with them."""
    with writing_store(out, vocabulary) as writer:
        for prefix in prefixes:
            store = TokenStore(prefix)
            for first in range(0, len(store), DOCUMENTS_AT_ONCE):
                writer.extend(*_documents(store, first, min(first + DOCUMENTS_AT_ONCE, len(store))))
    return TokenStore(out)


def merge(prefixes: Sequence[Path], out: Path) -> TokenStore:
    """Write the documents of all stores, each spread evenly over the whole, as ``out``.

    Memory does not grow with the stores. Raises ``Failure`` where they cannot have the same vocabulary: another token
    type, or another tokenizer.json beside them; and where ``out`` is one of them.
    """
    stores = [TokenStore(prefix) for prefix in prefixes]
    _alike(stores, out)
    blocks = -(-sum(map(len, stores)) // DOCUMENTS_AT_ONCE)
    with writing_store(out, np.iinfo(stores[0].dtype).max + 1) as writer:
        for block in range(blocks):
            stretches = [[_before(cut, blocks, len(store)) for cut in (block, block + 1)] for store in stores]
            places = [
                (np.arange(first, last) + 0.5) / max(1, len(store))
                for store, (first, last) in zip(stores, stretches, strict=True)
            ]
            order = np.argsort(np.concatenate(places), kind="stable")
            taken = [_documents(store, *stretch) for store, stretch in zip(stores, stretches, strict=True)]
            ids, sizes = (np.concatenate(each) for each in zip(*taken, strict=True))
            writer.extend(*picked(ids, sizes, order))
    return TokenStore(out)


def picked(
    ids: NDArray[np.integer[Any]], sizes: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """Of documents of these sizes, whose ids follow one another, those of ``order`` in that order."""
    ends = np.cumsum(sizes)
    bounds = zip((ends - sizes)[order].tolist(), ends[order].tolist(), strict=True)
    return np.concatenate([ids[:0], *(ids[begin:end] for begin, end in bounds)]), sizes[order]


def _alike(stores: Sequence[TokenStore], out: Path) -> None:
    first = stores[0]
    for store in stores:
        if store.prefix.resolve() == out.resolve():
            raise Failure(f"{out}: is one of the stores to merge; give another --out")
        if store.dtype != first.dtype or store.dtype not in MERGED:
            raise Failure(
                f"{store.prefix}: tokens of {store.dtype}, where {first.prefix} has {first.dtype}; "
                "give stores of one tokenizer, all of uint16 or all of int32"
            )
    beside = {store.prefix.with_name("tokenizer.json") for store in stores}
    known = sorted(path for path in beside if path.exists())
    for path in known:
        if sha256(path) != sha256(known[0]):
            raise Failure(f"{path}: another tokenizer than {known[0]}; tokenize one of the two again")


def _before(block: int, blocks: int, size: int) -> int:
    """How many j have (j + 1/2) / size < block / blocks."""
    return -(-(2 * size * block - blocks) // (2 * blocks)) if block else 0


def _documents(store: TokenStore, first: int, last: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """The ids of documents ``first`` to ``last``, one after another, and their sizes."""
    offsets = store.offsets(first, last)
    return store.read(int(offsets[0]), int(offsets[-1])), np.diff(offsets)
