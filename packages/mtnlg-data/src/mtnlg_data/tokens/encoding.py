"""Encoded documents on their way to a store: files sorted by key, merged by the exchange of ``mtnlg_data.exchange``.

A document's key is hash(seed, its own key), so the keys are uniform and the order of keys is a shuffle. A file has:

    ids, of all its documents in the order of their keys, padded to 8 bytes
    uint64[documents] keys | int64[documents + 1] where each document's ids begin, and the end | uint64 documents
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mtnlg_data.document import DocumentFile
from mtnlg_data.exchange import stable_order
from mtnlg_data.files import atomic_open
from mtnlg_data.tally import Tallies

from .encoder import batch_slices, load_tokenizer, open_encoder
from .merge import take_documents
from .store import dtype_for
from .tokenizer import document_key, vocabulary_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Shard
    from mtnlg_data.exchange import KeyRange, SortedFile
    from mtnlg_data.job import Done
    from mtnlg_data.steps.tokenize import Library
    from mtnlg_data.summary import Summary

TOKENS_PER_BATCH = 1 << 24  # in memory while files are merged
COUNT = struct.Struct("<Q")


class Encoded(NamedTuple):
    """Documents in the order of their keys: their keys, their ids, concatenated, and the number of ids of each."""

    keys: NDArray[np.uint64]
    ids: NDArray[np.integer[Any]]
    sizes: NDArray[np.int64]


def encoded_path(folder: Path, file: SortedFile) -> Path:
    """A file of the exchange."""
    return folder / f"{file.stem}.encoded"


def write_encoded(path: Path, batches: Iterable[Encoded]) -> int:
    """Write batches of documents whose keys ascend; returns the number of tokens."""
    keys, sizes = [np.empty(0, np.uint64)], [np.zeros(1, np.int64)]
    with atomic_open(path) as file:
        for batch in batches:
            file.write(batch.ids.data)
            keys.append(batch.keys)
            sizes.append(batch.sizes)
        file.write(bytes(-file.tell() % 8))
        begins = np.cumsum(np.concatenate(sizes))
        file.write(np.concatenate(keys).data)
        file.write(begins.data)
        file.write(COUNT.pack(len(begins) - 1))
    return int(begins[-1])


class EncodedFile:
    """A file of encoded documents open for reading by key, in the memory of what is read."""

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (documents,) = COUNT.unpack_from(self._mapping, len(self._mapping) - COUNT.size)
        begins = len(self._mapping) - COUNT.size - 8 * (documents + 1)
        self._dtype = dtype
        self._keys = np.frombuffer(self._mapping, np.uint64, documents, begins - 8 * documents)
        self._begins = np.frombuffer(self._mapping, np.int64, documents + 1, begins)

    def counts(self, bounds: Sequence[int]) -> NDArray[np.int64]:
        """Documents and tokens from each of these keys up to, not with, the next: int64[bounds - 1, 2]."""
        first, lasts = np.uint64(bounds[0]), np.array([bound - 1 for bound in bounds[1:]], np.uint64)
        documents = np.append(np.searchsorted(self._keys, first), np.searchsorted(self._keys, lasts, "right"))
        return np.diff(np.stack([documents, self._begins[documents]], axis=1), axis=0)

    def read(self, first: int, last: int) -> Encoded:
        """The documents with keys ``first`` to ``last``, inclusive."""
        begin = np.searchsorted(self._keys, np.uint64(first), "left")
        end = np.searchsorted(self._keys, np.uint64(last), "right")
        begins = self._begins[begin : end + 1]
        ids = np.frombuffer(
            self._mapping, self._dtype, int(begins[-1] - begins[0]), int(begins[0]) * self._dtype.itemsize
        )
        documents = Encoded(self._keys[begin:end].copy(), ids.copy(), np.diff(begins))
        if hasattr(mmap, "MADV_DONTNEED"):  # else every page that was read counts as memory of this process
            self._mapping.madvise(mmap.MADV_DONTNEED)
        return documents


class EncodedSource(NamedTuple):
    """The encoded files of a source, before its first merge."""

    folder: Path
    contents: str  # fingerprint of what wrote them
    vocabulary: int

    def fingerprint(self) -> object:
        """All but the place."""
        return self[1:]

    def file(self, file: SortedFile) -> EncodedFile:
        """A file of the exchange, opened."""
        return EncodedFile(encoded_path(self.folder, file), dtype_for(self.vocabulary))


def read_sorted(source: EncodedSource, keys: KeyRange) -> Iterator[Encoded]:
    """The documents of a range in the order of their keys, about ``TOKENS_PER_BATCH`` tokens at a time.

    Equal keys keep the order of the files and of their rows.
    """
    files = [*map(source.file, keys.files)]
    tokens = sum(int(file.counts([keys.first, keys.last + 1])[0, 1]) for file in files)
    for first, last in keys.split(max(1, -(-tokens // TOKENS_PER_BATCH))):
        all_keys, ids, sizes = map(np.concatenate, zip(*(file.read(first, last) for file in files), strict=True))
        order = stable_order(all_keys)
        yield Encoded(all_keys[order], *take_documents(ids, sizes, order))


class Encoding(NamedTuple):
    """How to encode; the library is in no key, since the ids are the same from all."""

    tokenizer: Done
    eod: int  # follows from the tokenizer
    seed: int
    library: Library

    def fingerprint(self) -> object:
        """What the ids and their order depend on."""
        return [self.tokenizer, self.seed]


def encode_groups(work: tuple[Shard, Sequence[int]], output: Path, how: Encoding) -> Summary:
    """Encode row groups of a shard, sorted by key; returns their tallies and the number of ``tokens``."""
    shard, groups = work
    tokenizer = load_tokenizer(how.tokenizer.output)
    eod, dtype = np.array(how.eod), dtype_for(vocabulary_size(tokenizer))
    encode = open_encoder(how.tokenizer.output, how.library)
    tallies = Tallies()
    keys: list[int] = []
    ids, sizes = [np.empty(0, dtype)], [np.empty(0, np.int64)]
    with DocumentFile(shard.path) as file:
        for group in groups:
            batch = file.read(group, ["key", "source", "text"])
            texts = batch["text"].to_pylist()
            keys += [document_key(how.seed, key) for key in batch["key"].to_pylist()]
            for source, text in zip(batch["source"].to_pylist(), texts, strict=True):
                tallies[source].keep(len(text))
            for bounds in batch_slices(texts):
                batch_ids, batch_sizes = encode(texts[bounds])
                ids.append(np.insert(batch_ids.astype(dtype), np.cumsum(batch_sizes), eod))
                sizes.append(batch_sizes + 1)
    all_keys = np.array(keys, np.uint64)
    order = stable_order(all_keys)
    documents = Encoded(all_keys[order], *take_documents(np.concatenate(ids), np.concatenate(sizes), order))
    return {**tallies.summary(), "tokens": write_encoded(output, [documents])}


def merge_encoded(work: tuple[EncodedSource, KeyRange], output: Path) -> Summary:
    """Merge some keys of some files into one of the exchange's next level; returns the number of tokens."""
    return {"tokens": write_encoded(output, read_sorted(*work))}


def count_ranges(work: tuple[EncodedSource, KeyRange, int], output: Path) -> Summary:
    """Count the documents and tokens of each of so many even ranges of keys: int64[ranges, 2]."""
    source, keys, ranges = work
    bounds = [*(first for first, _ in keys.split(ranges)), keys.last + 1]
    counts = sum(source.file(file).counts(bounds) for file in keys.files)
    with atomic_open(output) as file:
        np.save(file, counts)
    return {}
