"""Merge token stores into one, without the texts they were made of.

``merge`` interleaves them: document j of a store of n is placed at (j + 1/2) / n of the output; ties go to the earlier
store. So shuffled stores give a shuffled store: any stretch of it, including the documents held out at its end, has a
proportional share from every store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.files import sha256

from .store import TokenStore, idx_path, writing_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

DOCUMENTS_PER_BATCH = 4096
MERGEABLE_DTYPES = (np.dtype(np.uint16), np.dtype(np.int32))


def merge(prefixes: Sequence[Path], out: Path) -> TokenStore:
    """Interleave the documents of all stores as ``out``, in constant memory.

    Raises ``Failure`` where the stores cannot have the same vocabulary (token types or the tokenizer.json beside them
    differ), where one is given twice, and where ``out`` is one of them.
    """
    stores = [TokenStore(prefix) for prefix in prefixes]
    _check_mergeable(stores, prefixes, out)
    blocks = -(-sum(map(len, stores)) // DOCUMENTS_PER_BATCH)
    with writing_store(out, np.iinfo(stores[0].dtype).max + 1) as writer:
        for block in range(blocks):
            ranges = [[_documents_before(cut, blocks, len(store)) for cut in (block, block + 1)] for store in stores]
            places = [
                (np.arange(first, last) + 0.5) / max(1, len(store))
                for store, (first, last) in zip(stores, ranges, strict=True)
            ]
            order = np.argsort(np.concatenate(places), kind="stable")
            documents = [_read_documents(store, *bounds) for store, bounds in zip(stores, ranges, strict=True)]
            ids, sizes = (np.concatenate(arrays) for arrays in zip(*documents, strict=True))
            writer.extend(*take_documents(ids, sizes, order))
    return TokenStore(out)


def take_documents(
    ids: NDArray[np.integer[Any]], sizes: NDArray[np.int64], order: NDArray[np.int64]
) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """Take documents by index: ``ids`` holds them concatenated, ``sizes`` their lengths, ``order`` the indices."""
    ends = np.cumsum(sizes)
    bounds = zip((ends - sizes)[order].tolist(), ends[order].tolist(), strict=True)
    return np.concatenate([ids[:0], *(ids[begin:end] for begin, end in bounds)]), sizes[order]


def _check_mergeable(stores: Sequence[TokenStore], prefixes: Sequence[Path], out: Path) -> None:
    first = stores[0]
    places = [prefix.resolve() for prefix in prefixes]
    for number, store in enumerate(stores):
        if places[number] in places[:number]:
            raise Failure(f"{store.prefix}: given twice")
        if idx_path(mask := prefixes[number].with_name(f"{prefixes[number].name}.mask")).exists():
            raise Failure(f"{mask}.idx: stores with masks are not merged; give each a source of its own in blend.json")
        if places[number] == out.resolve():
            raise Failure(f"{out}: is one of the stores to merge; give another --out")
        if store.dtype != first.dtype or store.dtype not in MERGEABLE_DTYPES:
            raise Failure(
                f"{store.prefix}: tokens of {store.dtype}, where {first.prefix} has {first.dtype}; "
                "give stores of one tokenizer, all of uint16 or all of int32"
            )
    paths = {prefix.with_name("tokenizer.json") for prefix in prefixes}
    tokenizers = sorted(path for path in paths if path.exists())
    for path in tokenizers:
        if sha256(path) != sha256(tokenizers[0]):
            raise Failure(f"{path}: another tokenizer than {tokenizers[0]}; tokenize one of the two again")


def _documents_before(block: int, blocks: int, size: int) -> int:
    """The number of j with (j + 1/2) / size < block / blocks."""
    return -(-(2 * size * block - blocks) // (2 * blocks)) if block else 0


def _read_documents(store: TokenStore, first: int, last: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """Documents ``first`` to ``last`` (exclusive): their ids, concatenated, and their sizes."""
    offsets = store.offsets(first, last)
    return store.read(int(offsets[0]), int(offsets[-1])), np.diff(offsets)
