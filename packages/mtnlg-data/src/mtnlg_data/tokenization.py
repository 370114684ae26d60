"""Documents → token stores and their blend.

    tokenizer      trained on a sample, or read: tokenizer.json
    encode         every shard's documents as ids and an end token, sorted by hash(seed, id)
    merge          of every source the sorted shards into one store: so it is shuffled, in one sequential pass
    blend.json     what ``stream.open_stream`` reads

Ids are those of ``tokenizers``. A text that spells the end token is text: only ends of documents become it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from .console import Failure
from .document import read_documents
from .engine import key_of, manifest_path, run_units
from .files import aside, sha256, write_json, write_text
from .funnel import stage
from .shards import Made, Shard, Tallies, in_order, numbered
from .store import TokenStore, bin_path, dtype_for, idx_path, writing_store
from .stream import Blend, BlendSource, held_out
from .vocabulary import EOD, TokenizeSettings, files_of, keyed, read, sample, size_of, trained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .engine import Engine, Summary

__all__ = ["TokenizeSettings", "tokenize"]

DOCUMENTS_AT_ONCE = 256
COUNTED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Vocabulary:
    """Unit: settings, and where it is trained the shards of all sources → tokenizer.json."""

    settings: TokenizeSettings
    shards: dict[str, list[Shard]]
    weights: dict[str, float]
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        settings = self.settings
        if settings.vocabulary is None:
            return key_of("vocabulary", settings.kind, [sha256(file) for file in files_of(settings)])
        checksums = {source: [shard.checksum for shard in shards] for source, shards in self.shards.items()}
        how = (settings.vocabulary, settings.seed, settings.sample_bytes)
        return key_of("vocabulary", how, checksums, self.weights)


def learn(unit: Vocabulary) -> Summary:
    """Run one unit."""
    settings = unit.settings
    if settings.vocabulary is None:
        tokenizer = read(files_of(settings))
    else:
        texts = sample(unit.shards, unit.weights, settings.seed, settings.sample_bytes)
        tokenizer = trained(texts, settings.vocabulary)
    write_text(unit.output, tokenizer.to_str(pretty=True))
    return {"vocabulary": size_of(tokenizer), "eod": tokenizer.token_to_id(EOD)}


@dataclass(frozen=True)
class Encoding:
    """Unit: one shard → its documents' keys and ids, by key, as an Arrow file that is read through a memory map."""

    shard: Shard
    tokenizer: Made
    seed: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("encoding", self.shard.checksum, self.tokenizer.key, self.seed)


def encode(unit: Encoding) -> Summary:
    """Run one unit."""
    tokenizer = _tokenizer(unit.tokenizer)
    eod, dtype = tokenizer.token_to_id(EOD), dtype_for(size_of(tokenizer))
    tallies = Tallies()
    keys: list[int] = []
    documents: list[NDArray[Any]] = []
    for batch in read_documents(unit.shard.path, ["id", "source", "text"]):
        for first in range(0, batch.num_rows, DOCUMENTS_AT_ONCE):
            some = batch.slice(first, DOCUMENTS_AT_ONCE).to_pydict()
            keys += [keyed(unit.seed, name) for name in some["id"]]
            for source, text in zip(some["source"], some["text"], strict=True):
                tallies[source].keep(len(text))
            encodings = tokenizer.encode_batch_fast(some["text"], add_special_tokens=False)
            documents += [np.array([*encoding.ids, eod], dtype) for encoding in encodings]
    order = np.argsort(np.array(keys, np.uint64), kind="stable")
    schema = pa.schema([("key", pa.uint64()), ("ids", pa.large_list(pa.from_numpy_dtype(dtype)))])
    with aside(unit.output) as partial, pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        for first in range(0, len(order), DOCUMENTS_AT_ONCE):
            some_of = order[first : first + DOCUMENTS_AT_ONCE]
            ids = [documents[place] for place in some_of]
            offsets = np.cumsum([0, *map(len, ids)])
            lists = pa.LargeListArray.from_arrays(offsets, np.concatenate(ids))
            file.write_batch(
                pa.record_batch([pa.array([keys[place] for place in some_of], pa.uint64()), lists], schema)
            )
    return {**tallies.summary(), "tokens": sum(map(len, documents))}


@lru_cache(maxsize=1)
def _tokenizer(made: Made) -> Tokenizer:
    """Read once a worker."""
    tokenizer = Tokenizer.from_file(str(made.path))
    tokenizer.encode_special_tokens = True  # that is: encode what looks like a special token as the text it is
    return tokenizer


@dataclass(frozen=True)
class Merge:
    """Unit: the encoded shards of one source → its store; the output is the .bin, the .idx lies beside it."""

    prefix: Path
    encodings: tuple[Encoding, ...]
    vocabulary: int
    validation: float

    @property
    def output(self) -> Path:
        """See ``Unit``."""
        return bin_path(self.prefix)

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("merge", [unit.key for unit in self.encodings], self.vocabulary, self.validation)


def merge(unit: Merge) -> Summary:
    """Run one unit; ``unigrams`` counts the tokens of the documents that are trained on."""
    documents = sum(part.shard.rows for part in unit.encodings)
    trained_on = documents - held_out(documents, unit.validation)
    unigrams = np.zeros(unit.vocabulary, np.int64)
    pending: list[NDArray[Any]] = []
    size = 0
    ordered = heapq.merge(*(_encoded(number, part.output) for number, part in enumerate(unit.encodings)))
    with writing_store(unit.prefix, unit.vocabulary) as writer:
        for place, (*_, ids) in enumerate(ordered):
            writer.add(ids)
            if place < trained_on:
                pending.append(ids)
                size += len(ids)
            if size >= COUNTED_AT_ONCE:
                unigrams += np.bincount(np.concatenate(pending), minlength=unit.vocabulary)
                pending, size = [], 0
    if pending:
        unigrams += np.bincount(np.concatenate(pending), minlength=unit.vocabulary)
    store = TokenStore(unit.prefix)
    return {
        "documents": store.documents,
        "tokens": store.tokens,
        "sha256": store.checksum(),
        "index_sha256": sha256(idx_path(unit.prefix)),
        "unigrams": unigrams.tolist(),
    }


def _encoded(number: int, path: Path) -> Iterator[tuple[int, int, int, NDArray[Any]]]:
    """Key, shard, row and ids of one encoded shard, in its order; the first three settle every comparison."""
    row = 0
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        for batch in map(reader.get_batch, range(reader.num_record_batches)):
            lists = batch["ids"]
            offsets, ids = lists.offsets.to_numpy(), lists.values.to_numpy()
            for place, key in enumerate(batch["key"].to_pylist()):
                yield key, number, row, ids[offsets[place] : offsets[place + 1]]
                row += 1


def tokenize(
    shards_by_source: Mapping[str, Sequence[Path]],
    out: Path,
    settings: TokenizeSettings,
    weights: Mapping[str, float],
    engine: Engine,
) -> Summary:
    """Write ``out/tokenizer.json``, a store a source and ``out/blend.json``; returns the stage's account.

    It has also ``tokens`` by source, the ``vocabulary``, and ``unigram_entropy_nats``: the entropy of one token of the
    blend's training split, which is what a model that knows nothing but frequencies would reach.
    """
    if missing := [source for source in shards_by_source if weights.get(source, 0) <= 0]:
        raise Failure(f"source {missing[0]}: weight {weights.get(missing[0])} in the blend; it must be above zero")
    state = out / "state"
    shards = {source: numbered(paths) for source, paths in shards_by_source.items()}
    if empty := [source for source, own in shards.items() if not sum(shard.rows for shard in own)]:
        raise Failure(f"source {empty[0]} has no document left to tokenize; take it out of the blend or filter it less")
    own_weights = {source: weights[source] for source in shards}
    vocabulary = Vocabulary(settings, shards, own_weights, out / "tokenizer.json")
    learned = run_units(engine, learn, [vocabulary], "tokenize: vocabulary")[0]
    made = Made.by(vocabulary)
    parts = {
        source: tuple(Encoding(shard, made, settings.seed, state / f"{shard.path.stem}.arrow") for shard in own)
        for source, own in shards.items()
    }
    accounts = run_units(engine, encode, [part for own in parts.values() for part in own], "tokenize: encode")
    merges = [Merge(out / source, own, learned["vocabulary"], settings.validation) for source, own in parts.items()]
    stores = dict(zip(shards, _merged(merges, engine), strict=True))
    blend = Blend(
        seed=settings.seed,
        vocabulary=learned["vocabulary"],
        eod=learned["eod"],
        validation=settings.validation,
        sources=tuple(
            BlendSource(
                name=source, prefix=source, weight=weights[source], **_without(store, "index_sha256", "unigrams")
            )
            for source, store in stores.items()
        ),
    )
    write_json(out / "blend.json", blend.model_dump(mode="json"))
    return {
        **stage("tokenize", accounts, in_order(accounts, list(shards))),
        "tokens": {
            source: {
                "documents": store["documents"],
                "tokens": store["tokens"],
                "weight": weights[source],
                "epochs_at": None,
            }
            for source, store in stores.items()
        },
        "vocabulary": learned["vocabulary"],
        "unigram_entropy_nats": entropy(own_weights, {source: store["unigrams"] for source, store in stores.items()}),
    }


def _merged(merges: Sequence[Merge], engine: Engine) -> list[Summary]:
    """Run the merges; a store whose .idx is gone or damaged is written again."""
    summaries = run_units(engine, merge, merges, "tokenize: stores")
    for unit, summary in zip(merges, summaries, strict=True):
        index = idx_path(unit.prefix)
        if not index.exists() or sha256(index) != summary["index_sha256"]:
            manifest_path(unit.output).unlink()
    return run_units(engine, merge, merges, "tokenize: stores")


def _without(summary: Summary, *names: str) -> Summary:
    return {name: value for name, value in summary.items() if name not in names}


def entropy(weights: Mapping[str, float], unigrams: Mapping[str, Sequence[int]]) -> float:
    """Entropy in nats of the mixture, by weight, of the sources' unigram distributions."""
    whole = sum(weights.values())
    shares = [
        weights[source] / whole * np.array(counts, np.float64) / max(1, sum(counts))
        for source, counts in unigrams.items()
    ]
    mixture = np.sum(shares, axis=0)
    present = mixture[mixture > 0]
    return float(-(present * np.log(present)).sum())
