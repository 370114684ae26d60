"""A store of known size, written in its place by many tasks at once.

    allocate_store   the two files at their size, under ``state``, and the header of the index
    write_range      one range of keys: its bytes of ``.bin``, and its entries in the three arrays of ``.idx``
    write_store      the files renamed to where the store belongs

A range that is written is not written again, so its bytes must still be there: where the files are not, whatever was
done for them is forgotten (``allocate_store``). A range that is written twice has the same bytes in the same place.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.files import atomic_open, atomic_path, sync_directory

from .blend import held_out
from .encoding import EncodedSource, read_sorted
from .store import HEADER, bin_path, dtype_for, idx_path, pack_header, span_digest

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.exchange import KeyRange
    from mtnlg_data.summary import Summary


class PlacedStore(NamedTuple):
    """The files at work, and what the store will hold."""

    prefix: Path
    source: EncodedSource
    documents: int
    tokens: int
    validation: float

    def fingerprint(self) -> object:
        """The store, wherever its files are."""
        return self[1:]

    @property
    def width(self) -> int:
        """Bytes of a token."""
        return dtype_for(self.source.vocabulary).itemsize

    def sizes(self) -> dict[Path, int]:
        """The size of each file."""
        idx_bytes = HEADER.size + 12 * self.documents + 8 * (self.documents + 1)
        return {bin_path(self.prefix): self.tokens * self.width, idx_path(self.prefix): idx_bytes}


def allocate_store(placed: PlacedStore) -> None:
    """Make files of the store's size where they are not there, and forget what tasks wrote into others.

    The folder is this store's alone.
    """
    folder, sizes = placed.prefix.parent, placed.sizes()
    if all(path.exists() and path.stat().st_size == size for path, size in sizes.items()):
        return
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in ("*.json", "*"):  # manifests first: without one a task runs again
        for path in folder.glob(pattern):
            path.unlink()
        sync_directory(folder)
    for path, size in sizes.items():
        with atomic_path(path) as partial, partial.open("r+b") as file:
            file.truncate(size)
            if path == idx_path(placed.prefix):
                file.write(pack_header(placed.documents, dtype_for(placed.source.vocabulary)))
                file.seek(size - 8)
                file.write(np.array(placed.documents, "<i8").tobytes())  # where the last document ends


class RangeWrite(NamedTuple):
    """A range of keys of a store, and how many documents and tokens are before it."""

    placed: PlacedStore
    keys: KeyRange
    document: int
    token: int


def write_range(work: RangeWrite, output: Path) -> Summary:
    """Write the documents of a range; they are on disk before ``output`` is, which counts each training token.

    Raises ``ValueError`` for an id outside the vocabulary, which would wrap in uint16 unnoticed, and for a document of
    more tokens than the index can say.
    """
    placed, keys, document, token = work
    vocabulary, training = placed.source.vocabulary, placed.documents - held_out(placed.documents, placed.validation)
    lengths_at, offsets_at = HEADER.size, HEADER.size + 4 * placed.documents
    unigrams = np.zeros(vocabulary, np.int64)
    with (
        bin_path(placed.prefix).open("r+b", buffering=0) as tokens,
        idx_path(placed.prefix).open("r+b", buffering=0) as index,
    ):
        for _, ids, sizes in read_sorted(placed.source, keys):
            if len(ids) and int(ids.max()) >= vocabulary:
                raise ValueError(f"token id {ids.max()} outside the vocabulary of {vocabulary}")
            if len(sizes) and int(sizes.max()) > np.iinfo(np.int32).max:
                raise ValueError(f"a document of {sizes.max()} tokens: the index counts them in int32")
            _write_at(tokens.fileno(), placed.width * token, ids)
            offsets = placed.width * (token + np.cumsum(sizes) - sizes)
            _write_at(index.fileno(), lengths_at + 4 * document, sizes.astype("<i4"))
            _write_at(index.fileno(), offsets_at + 8 * document, offsets.astype("<i8"))
            bounds = np.arange(document, document + len(sizes), dtype="<i8")
            _write_at(index.fileno(), offsets_at + 8 * (placed.documents + document), bounds)
            unigrams += np.bincount(ids[: sizes[: max(0, training - document)].sum()], minlength=vocabulary)
            document += len(sizes)
            token += len(ids)
        os.fsync(tokens.fileno())
        os.fsync(index.fileno())
    with atomic_open(output) as file:
        np.save(file, unigrams)
    return {}


def _write_at(handle: int, place: int, array: NDArray[np.generic]) -> None:
    content = memoryview(array.tobytes())
    while content:  # one write moves at most 2 GiB
        written = os.pwrite(handle, content, place)
        content, place = content[written:], place + written


def range_path(placed: PlacedStore, number: int) -> Path:
    """The output of ``write_range`` for a range."""
    return placed.prefix.with_name(f"range-{number:07d}")


def write_store(work: tuple[PlacedStore, int], output: Path) -> Summary:
    """Put the files in place, the index last; ``unigrams`` counts each token of the documents that are not held out.

    ``work`` is the store and the number of its ranges, ``output`` its ``.bin``.
    """
    placed, ranges = work
    paths = [output, idx_path(output.with_suffix(""))]
    unigrams = sum(np.load(range_path(placed, number)) for number in range(ranges))
    paths[1].unlink(missing_ok=True)  # never leave an index beside the tokens of another run
    for written, path in zip(placed.sizes(), paths, strict=True):
        written.rename(path)
    sync_directory(output.parent)
    return {
        "documents": placed.documents,
        "tokens": placed.tokens,
        "training_tokens": int(unigrams.sum()),
        "store": span_digest(paths),
        "unigrams": unigrams.tolist(),
        "files": [paths[1].name],
    }
