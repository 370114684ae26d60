"""Documents to token ids, shuffled, and these to a store, by the exchange of ``mtnlg_data.exchange``.

A document's key is hash(seed, its own key), so the keys are uniform and the order of keys is a shuffle. Rows have a
document's ids, its end token and, if there is one, its beginning token included, as bytes.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.document import DocumentFile
from mtnlg_data.exchange import KEYS, read_rows, write_rows
from mtnlg_data.tally import Tallies
from mtnlg_data.text.arrays import binary_column, texts_of

from .blend import held_out
from .encoder import batch_slices, open_encoder
from .store import dtype_for, idx_path, span_digest, writing_store
from .tokenizer import document_key

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done
    from mtnlg_data.steps.tokenize import Library
    from mtnlg_data.summary import Summary


class Encoding(NamedTuple):
    """How to encode; the library is in no key, since the ids are the same from all."""

    tokenizer: Done
    vocabulary: int  # follows from the tokenizer, as do
    around: Sequence[int]  # the ids that begin and end a document, or the one that ends it
    seed: int
    library: Library

    def fingerprint(self) -> object:
        """What the ids and their order depend on."""
        return [self.tokenizer, self.seed]


def encode_groups(work: tuple[Shard, Sequence[int]], output: Path, how: Encoding) -> Summary:
    """Encode row groups of a shard, into rows by key; returns their tallies and the number of ``tokens``."""
    shard, groups = work
    around, dtype = how.around, dtype_for(how.vocabulary)
    encode = open_encoder(how.tokenizer.output, how.library)
    tallies, tokens = Tallies(), 0
    with DocumentFile(shard.path) as file, write_rows(output) as rows:
        for group in groups:
            batch = file.read(group, ["key", "source", "text"])
            texts = batch["text"].to_pylist()
            keys = np.array([document_key(how.seed, key) for key in batch["key"].to_pylist()], np.uint64)
            for source, text in zip(batch["source"].to_pylist(), texts, strict=True):
                tallies[source].keep(len(text))
            for part in batch_slices(texts):
                ids, sizes = encode(texts[part])
                ends = np.cumsum(sizes)
                places = np.column_stack([ends - sizes, ends])[:, -len(around) :]
                ids = np.insert(ids.astype(dtype), places.ravel(), np.tile(around, len(sizes)))
                rows.add(keys[part], {"ids": binary_column(ids, np.cumsum([0, *(sizes + len(around))]))})
                tokens += len(ids)
    return {**tallies.summary(), "tokens": tokens}


class StoreWrite(NamedTuple):
    """A store that is to be written: files of rows, each of the keys after those of the one before."""

    pieces: Sequence[Path]
    contents: str  # fingerprint of the rows
    documents: int
    vocabulary: int
    validation: float

    def fingerprint(self) -> object:
        """All but the place."""
        return self[1:]


def write_store(work: StoreWrite, output: Path) -> Summary:
    """Write a store, whose ``.bin`` is ``output``; ``unigrams`` counts the tokens of documents that are not held out.

    Raises ``ValueError`` as ``StoreWriter.extend`` does.
    """
    prefix, dtype = output.with_suffix(""), dtype_for(work.vocabulary)
    training = work.documents - held_out(work.documents, work.validation)
    unigrams = np.zeros(work.vocabulary, np.int64)
    tokens = 0
    with writing_store(prefix, work.vocabulary) as writer:
        tables = chain.from_iterable(read_rows([piece], 0, KEYS - 1) for piece in work.pieces)
        for batch in chain.from_iterable(table.to_batches() for table in tables):
            data, bounds = texts_of(batch["ids"])
            ids, sizes = data[bounds[0] : bounds[-1]].view(dtype), np.diff(bounds) // dtype.itemsize
            trained = sizes[: max(0, training - writer.documents)].sum()
            unigrams += np.bincount(ids[:trained], minlength=work.vocabulary)
            writer.extend(ids, sizes)
            tokens += len(ids)
    paths = [output, idx_path(prefix)]
    return {
        "documents": writer.documents,
        "tokens": tokens,
        "training_tokens": int(unigrams.sum()),
        "store": span_digest(paths),
        "unigrams": unigrams.tolist(),
        "files": [paths[1].name],
    }
