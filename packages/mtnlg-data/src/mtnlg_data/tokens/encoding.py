"""Encodes documents to token ids, shuffles them with ``mtnlg_data.exchange``, and writes them to a store.

The key of a row is hash(seed, key of the document), so keys are uniform and their order is a shuffle. A row has a
document's ids as bytes, including its end token and, if there is one, its beginning token.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from mtnlg_data.document import DocumentFile, shard_source
from mtnlg_data.exchange import write_rows
from mtnlg_data.tally import Tallies
from mtnlg_data.text.arrays import binary_column, text_lengths, texts_of
from mtnlg_data.text.hashing import salted_hashes

from .blend import held_out
from .chat import ChatEncoder, UnusableChat
from .encoder import batch_slices, open_encoder
from .store import bin_path, dtype_for, idx_path, span_digest, writing_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.exchange import Range
    from mtnlg_data.job import Done
    from mtnlg_data.steps.tokenize import Library
    from mtnlg_data.summary import Summary

    from .chat import Chat


class Encoding(NamedTuple):
    """How to encode; the library is not in the fingerprint, since all libraries give the same ids."""

    tokenizer: Done
    vocabulary: int  # size; follows from the tokenizer, as does ``around``
    around: Sequence[int]  # the ids that begin and end a document, or only the one that ends it
    seed: int
    library: Library
    chat: Chat | None = None

    def fingerprint(self) -> object:
        """What the ids and their order depend on."""
        return [self.tokenizer, self.seed, *([self.chat] if self.chat else [])]


def encode_groups(work: tuple[Shard, Sequence[int]], output: Path, how: Encoding) -> Summary:
    """Encode row groups of a shard to rows by key; returns the tallies and the number of ``tokens``."""
    shard, groups = work
    if how.chat and shard_source(shard.path) in how.chat.sources:
        return _encode_chats(shard, groups, output, how)
    around, dtype = how.around, dtype_for(how.vocabulary)
    encode = open_encoder(how.tokenizer.output, how.library)
    tally = (tallies := Tallies())[shard_source(shard.path)]
    tokens = 0
    with DocumentFile(shard.path) as file, write_rows(output) as rows:
        for group in groups:
            batch = file.read(group, ["key", "text"])
            texts, lengths = batch["text"].to_pylist(), text_lengths(batch["text"])
            keys = salted_hashes(batch["key"].to_pylist(), str(how.seed))
            tally.measure(lengths, lengths)
            for part in batch_slices(texts):
                ids, sizes = encode(texts[part])
                ends = np.cumsum(sizes)
                places = np.column_stack([ends - sizes, ends])[:, -len(around) :]
                ids = np.insert(ids.astype(dtype), places.ravel(), np.tile(around, len(sizes)))
                rows.add(keys[part], {"ids": binary_column(ids, np.cumsum([0, *(sizes + len(around))]))})
                tokens += len(ids)
    return {**tallies.summary(), "tokens": tokens}


def _encode_chats(shard: Shard, groups: Sequence[int], output: Path, how: Encoding) -> Summary:
    """Like `encode_groups`, for a source of chats, with an additional column ``mask``."""
    assert how.chat  # noqa: S101  (`encode_groups` has looked)
    encode = ChatEncoder(how.tokenizer.output, how.chat, how.around[-1])
    tally = (tallies := Tallies())[shard_source(shard.path)]
    tokens = 0
    with DocumentFile(shard.path) as file, write_rows(output) as rows:
        for group in groups:
            batch = file.read(group, ["key", "text"])
            keys, ids, masks = list[str](), list[bytes](), list[bytes]()
            for key, text in zip(batch["key"].to_pylist(), batch["text"].to_pylist(), strict=True):
                try:
                    numbers, learned = encode(text)
                except UnusableChat as reason:
                    tally.drop(len(text), str(reason))
                    continue
                tally.keep(len(text))
                keys.append(key)
                ids.append(np.array(numbers, dtype_for(how.vocabulary)).tobytes())
                masks.append(bytes(learned))
                tokens += len(numbers)
            columns = {"ids": pa.array(ids, pa.large_binary()), "mask": pa.array(masks, pa.large_binary())}
            rows.add(salted_hashes(keys, str(how.seed)), columns)
    return {**tallies.summary(), "tokens": tokens}


def write_store(item: tuple[Range, int, bool], output: Path, *, vocabulary: int, validation: float) -> Summary:
    """Write a store, whose ``.bin`` is ``output``; ``unigrams`` counts the tokens of documents that are not held out.

    ``item`` has the rows, their number and whether they are masked: then a store of masks, ``PREFIX.mask``, is written
    beside it; ``mask`` is its checksum. Raises ``ValueError`` as ``StoreWriter.extend`` does.
    """
    rows, documents, masked = item
    prefix, dtype = output.with_suffix(""), dtype_for(vocabulary)
    training = documents - held_out(documents, validation)
    unigrams = np.zeros(vocabulary, np.int64)
    tokens = 0
    beside = prefix.with_name(f"{prefix.name}.mask")
    with writing_store(prefix, vocabulary) as writer, ExitStack() as stack:
        mask = stack.enter_context(writing_store(beside, 2, np.dtype(np.uint8))) if masked else None
        for batch in chain.from_iterable(table.to_batches() for table in rows.tables()):
            data, bounds = texts_of(batch["ids"])
            ids, sizes = data[bounds[0] : bounds[-1]].view(dtype), np.diff(bounds) // dtype.itemsize
            trained = sizes[: max(0, training - writer.documents)].sum()
            unigrams += np.bincount(ids[:trained], minlength=vocabulary)
            writer.extend(ids, sizes)
            if mask:
                data, bounds = texts_of(batch["mask"])
                mask.extend(data[bounds[0] : bounds[-1]], sizes)
            tokens += len(ids)
    paths = [output, idx_path(prefix)]
    masks = [bin_path(beside), idx_path(beside)] if masked else []
    return {
        "documents": writer.documents,
        "tokens": tokens,
        "store": span_digest(paths),
        "unigrams": unigrams.tolist(),
        "files": [path.name for path in (*paths[1:], *masks)],
        **({"mask": span_digest(masks)} if masks else {}),
    }
