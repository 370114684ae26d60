"""Documents → token stores and their blend.

    tokenizer      trained on a sample, or read: tokenizer.json
    encode         some row groups of a shard: their documents as ids and an end token, sorted by hash(seed, id)
    gather         of every source a range of those keys, out of all that was encoded: a part of its store, sorted
    join           the parts of a source one after the other: its store, shuffled
    blend.json     what ``stream.open_stream`` reads

No unit holds more than about ``TEXT_AT_ONCE`` of text or ``TOKENS_AT_ONCE`` of tokens, whatever the shards and sources.
Ids are those of ``tokenizers``. A text that spells the end token is text: only ends of documents become it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.document import DocumentFile, Made, Shard, Tallies, in_order, numbered
from mtnlg_data.engine import key_of, run_units
from mtnlg_data.files import aside, sha256, write_json, write_text
from mtnlg_data.stream import Blend, BlendSource, held_out
from mtnlg_data.tally import stage

from .encoder import encoder, opened, some_at_once
from .merge import DOCUMENTS_AT_ONCE, concatenate, picked
from .store import bin_path, crc_path, dtype_for, idx_path, writing_store
from .tokenizer import EOD, TokenizeSettings, files_of, keyed, read, sample, size_of, text_bytes, trained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Engine, Summary

    from .encoder import Library


TEXT_AT_ONCE = 64_000_000
TOKENS_AT_ONCE = 1 << 26
COUNTED_AT_ONCE = 1 << 20
KEYS = 1 << 64


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
    """Unit: row groups of one shard → keys and ids of their documents, by key: an Arrow file that a map can read."""

    shard: Shard
    groups: tuple[int, ...]
    tokenizer: Made
    seed: int
    library: Library  # not in the key: it changes no id
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("encoding", self.shard.checksum, self.groups, self.tokenizer.key, self.seed)


def encode(unit: Encoding) -> Summary:
    """Run one unit."""
    tokenizer = opened(unit.tokenizer.path)
    eod, dtype = np.array(tokenizer.token_to_id(EOD)), dtype_for(size_of(tokenizer))
    encoded = encoder(unit.tokenizer.path, unit.library)
    tallies = Tallies()
    keys: list[int] = []
    ids, sizes = [np.empty(0, dtype)], [np.empty(0, np.int64)]
    for batch in _batches(unit):
        texts = batch["text"].to_pylist()
        keys += [keyed(unit.seed, name) for name in batch["id"].to_pylist()]
        for source, text in zip(batch["source"].to_pylist(), texts, strict=True):
            tallies[source].keep(len(text))
        for some in some_at_once(texts):
            flat, each = encoded(texts[some])
            ids.append(np.insert(flat.astype(dtype), np.cumsum(each), eod))
            sizes.append(each + 1)
    all_keys = np.array(keys, np.uint64)
    order = np.argsort(all_keys, kind="stable")
    tokens, lengths = picked(np.concatenate(ids), np.concatenate(sizes), order)
    _write_sorted(unit.output, all_keys[order], tokens, lengths)
    return {**tallies.summary(), "tokens": len(tokens)}


def _batches(unit: Encoding) -> Iterator[pa.RecordBatch]:
    with DocumentFile(unit.shard.path) as file:
        yield from (file.read(group, ["id", "source", "text"]) for group in unit.groups)


def _write_sorted(path: Path, keys: NDArray[np.uint64], ids: NDArray[Any], sizes: NDArray[np.int64]) -> None:
    lists = pa.LargeListArray.from_arrays(np.append(0, np.cumsum(sizes)), ids)
    batch = pa.record_batch({"key": keys, "ids": lists})
    with aside(path) as partial, pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)


@dataclass(frozen=True)
class Part:
    """Unit: the ``number``-th range of keys of what one source has encoded → a store, sorted."""

    encoded: Path  # a folder of files 0.arrow, 1.arrow, ...
    files: int
    contents: str  # digest of those files' keys
    number: int
    parts: int
    vocabulary: int
    prefix: Path

    @property
    def output(self) -> Path:
        """See ``Unit``."""
        return bin_path(self.prefix)

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("part", self.contents, self.number, self.parts, self.vocabulary)


def gather(unit: Part) -> Summary:
    """Run one unit. Equal keys stay in the order of the shards and of the rows in them."""
    first, last = (number * KEYS // unit.parts for number in (unit.number, unit.number + 1))
    paths = [unit.encoded / f"{number}.arrow" for number in range(unit.files)]
    keys, ids, sizes = map(np.concatenate, zip(*(_between(path, first, last - 1) for path in paths), strict=True))
    order = np.argsort(keys, kind="stable")
    with writing_store(unit.prefix, unit.vocabulary) as writer:
        for begin in range(0, len(order), DOCUMENTS_AT_ONCE):
            writer.extend(*picked(ids, sizes, order[begin : begin + DOCUMENTS_AT_ONCE]))
    return {"files": _beside(unit.prefix)}


def _between(path: Path, first: int, last: int) -> tuple[NDArray[np.uint64], NDArray[Any], NDArray[np.int64]]:
    """Keys, ids and sizes of the documents whose keys lie from ``first`` to ``last``, read through a map."""
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        keys, offsets = batch["key"].to_numpy(), batch["ids"].offsets.to_numpy()
        begin, end = np.searchsorted(keys, np.uint64(first), "left"), np.searchsorted(keys, np.uint64(last), "right")
        ids = batch["ids"].values.to_numpy()[offsets[begin] : offsets[end]]
        return keys[begin:end].copy(), ids.copy(), np.diff(offsets[begin : end + 1])


@dataclass(frozen=True)
class Join:
    """Unit: the parts of one source → its store; the output is the .bin, .idx and .crc lie beside it."""

    parts: tuple[Part, ...]
    validation: float
    prefix: Path

    @property
    def output(self) -> Path:
        """See ``Unit``."""
        return bin_path(self.prefix)

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("join", [part.key for part in self.parts], self.validation)


def join(unit: Join) -> Summary:
    """Run one unit; ``unigrams`` counts the tokens of the documents that are trained on."""
    vocabulary = unit.parts[0].vocabulary
    store = concatenate([part.prefix for part in unit.parts], unit.prefix, vocabulary)
    trained_on = store.offset(len(store) - held_out(len(store), unit.validation))
    unigrams = np.zeros(vocabulary, np.int64)
    for first in range(0, trained_on, COUNTED_AT_ONCE):
        unigrams += np.bincount(store.read(first, min(first + COUNTED_AT_ONCE, trained_on)), minlength=vocabulary)
    return {
        "documents": store.documents,
        "tokens": store.tokens,
        "store": store.checksum(),
        "unigrams": unigrams.tolist(),
        "files": _beside(unit.prefix),
    }


def _beside(prefix: Path) -> list[str]:
    """The files of a store beside its .bin, which is the unit's output."""
    return [idx_path(prefix).name, crc_path(prefix).name]


@dataclass(frozen=True)
class Blending:
    """Unit: what is known of all stores → blend.json."""

    blend: Blend
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("blend", self.blend.model_dump(mode="json"))


def write_blend(unit: Blending) -> Summary:
    """Run one unit."""
    write_json(unit.output, unit.blend.model_dump(mode="json"))
    return {}


def tokenize_documents(
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
    settings.check()
    if missing := [source for source in shards_by_source if weights.get(source, 0) <= 0]:
        raise Failure(f"source {missing[0]}: weight {weights.get(missing[0])} in the blend; it must be above zero")
    shards = {source: numbered(paths) for source, paths in shards_by_source.items()}
    if empty := [source for source, own in shards.items() if not sum(shard.rows for shard in own)]:
        raise Failure(f"source {empty[0]} has no document left to tokenize; take it out of the blend or filter it less")
    own_weights = {source: weights[source] for source in shards}
    vocabulary = Vocabulary(settings, shards, own_weights, out / "tokenizer.json")
    learned = run_units(engine, learn, [vocabulary], "tokenize: vocabulary")[0]
    encodings = {
        source: _encodings(own, Made.by(vocabulary), settings, out / "state" / source) for source, own in shards.items()
    }
    accounts = run_units(engine, encode, [unit for own in encodings.values() for unit in own], "tokenize: encode")
    by_unit = iter(accounts)
    joins = [
        Join(
            _parts(own, sum(next(by_unit)["tokens"] for _ in own), learned["vocabulary"], out / "state" / source),
            settings.validation,
            out / source,
        )
        for source, own in encodings.items()
    ]
    run_units(engine, gather, [part for unit in joins for part in unit.parts], "tokenize: shuffle")
    stores = dict(zip(shards, run_units(engine, join, joins, "tokenize: stores"), strict=True))
    blending = Blending(_blend(settings, learned, own_weights, stores), out / "blend.json")
    run_units(engine, write_blend, [blending], "tokenize: blend")
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


def _encodings(shards: Sequence[Shard], tokenizer: Made, settings: TokenizeSettings, folder: Path) -> list[Encoding]:
    pieces = [(shard, groups) for shard in shards for groups in _pieces(shard.path)]
    return [
        Encoding(shard, groups, tokenizer, settings.seed, settings.library, folder / f"{number}.arrow")
        for number, (shard, groups) in enumerate(pieces)
    ]


def _pieces(shard: Path) -> list[tuple[int, ...]]:
    """The row groups of a shard, so many together as hold ``TEXT_AT_ONCE``."""
    pieces: list[tuple[int, ...]] = []
    room = 0
    for group, size in enumerate(text_bytes(shard)):
        if room < size:
            pieces.append(())
            room = TEXT_AT_ONCE
        pieces[-1] += (group,)
        room -= size
    return pieces


def _parts(encodings: Sequence[Encoding], tokens: int, vocabulary: int, folder: Path) -> tuple[Part, ...]:
    contents = key_of([unit.key for unit in encodings])
    count = -(-tokens // TOKENS_AT_ONCE)
    return tuple(
        Part(folder, len(encodings), contents, number, count, vocabulary, folder / f"part-{number}")
        for number in range(count)
    )


def _blend(
    settings: TokenizeSettings, learned: Summary, weights: Mapping[str, float], stores: Mapping[str, Summary]
) -> Blend:
    sources = [
        BlendSource(
            name=source,
            prefix=source,
            weight=weights[source],
            documents=store["documents"],
            tokens=store["tokens"],
            sha256=store["store"],
        )
        for source, store in stores.items()
    ]
    return Blend(
        seed=settings.seed,
        vocabulary=learned["vocabulary"],
        eod=learned["eod"],
        validation=settings.validation,
        sources=tuple(sources),
    )


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
