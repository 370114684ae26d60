"""The tokenize stage: documents to token stores and their blend, in five steps of units.

    tokenizer   trained on a sample of all documents, or read: tokenizer.json
    encode      some row groups of a shard: ids of the documents, each with an end token, sorted by hash(seed, key)
    part        a range of these keys from all encoded files of a source: a part of its store, sorted
    store       the parts of a source, concatenated: its store, shuffled
    blend       the stores and their weights: blend.json, which ``stream.open_stream`` reads

No unit holds more than about ``TEXT_BYTES_PER_UNIT`` of text or ``TOKENS_PER_UNIT`` tokens, however many shards and
sources there are. Ids are those of ``tokenizers``. A text that spells the end token is encoded as text, so that the end
token stands at ends of documents only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from mtnlg_data.console import Failure
from mtnlg_data.document import DocumentFile, Shard, UnitOutput, number_shards, text_bytes
from mtnlg_data.engine import StageFolder, Unit, key_of
from mtnlg_data.engine.units import verified_summary
from mtnlg_data.files import atomic_path, write_json
from mtnlg_data.tally import Tallies, order_sources, stage_summary

from .blend import Blend, BlendSource, held_out
from .encoder import batch_slices, load_tokenizer, open_encoder
from .merge import DOCUMENTS_PER_BATCH, concatenate, take_documents
from .store import bin_path, crc_path, dtype_for, idx_path, writing_store
from .tokenizer import TokenizerUnit, document_key, vocabulary_size, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.engine import Engine, Summary

    from .encoder import Library
    from .tokenizer import TokenizeSettings

TEXT_BYTES_PER_UNIT = 64_000_000
TOKENS_PER_UNIT = 1 << 26
TOKENS_PER_COUNT = 1 << 20
KEYS = 1 << 64
SEQUENCE = 2048  # tokens of the paper's samples (4.1): a store with fewer is warned of


@dataclass(frozen=True)
class EncodeUnit(Unit):
    """Unit: some row groups of one shard -> a memory-mappable Arrow file of document keys and ids, sorted by key."""

    shard: Shard
    groups: tuple[int, ...]
    tokenizer: UnitOutput
    eod: int  # follows from the tokenizer
    seed: int
    library: Library
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("encoding", self.shard.checksum, self.groups, self.tokenizer.key, self.seed)


def encode_groups(unit: EncodeUnit) -> Summary:
    """Encode row groups; returns their tallies and the number of ``tokens``."""
    tokenizer = load_tokenizer(unit.tokenizer.path)
    eod, dtype = np.array(unit.eod), dtype_for(vocabulary_size(tokenizer))
    encode = open_encoder(unit.tokenizer.path, unit.library)
    tallies = Tallies()
    keys: list[int] = []
    ids, sizes = [np.empty(0, dtype)], [np.empty(0, np.int64)]
    with DocumentFile(unit.shard.path) as file:
        for group in unit.groups:
            batch = file.read(group, ["key", "source", "text"])
            texts = batch["text"].to_pylist()
            keys += [document_key(unit.seed, key) for key in batch["key"].to_pylist()]
            for source, text in zip(batch["source"].to_pylist(), texts, strict=True):
                tallies[source].keep(len(text))
            for bounds in batch_slices(texts):
                batch_ids, batch_sizes = encode(texts[bounds])
                ids.append(np.insert(batch_ids.astype(dtype), np.cumsum(batch_sizes), eod))
                sizes.append(batch_sizes + 1)
    all_keys = np.array(keys, np.uint64)
    order = np.argsort(all_keys, kind="stable")
    tokens, lengths = take_documents(np.concatenate(ids), np.concatenate(sizes), order)
    lists = pa.LargeListArray.from_arrays(np.append(0, np.cumsum(lengths)), tokens)
    _write_arrow(unit.output, pa.record_batch({"key": all_keys[order], "ids": lists}))
    return {**tallies.summary(), "tokens": len(tokens)}


def _write_arrow(path: Path, batch: pa.RecordBatch) -> None:
    with atomic_path(path) as partial, pa.OSFile(str(partial), "wb") as raw, pa.ipc.new_file(raw, batch.schema) as file:
        file.write_batch(batch)


@dataclass(frozen=True)
class PartUnit(Unit):
    """Unit: the ``number``-th of ``parts`` ranges of keys, from all encoded files of a source -> a store, sorted."""

    encoded: Path  # a folder of files 0.arrow, 1.arrow, ...
    files: int
    contents: str  # digest of these files' keys
    number: int
    parts: int
    vocabulary: int
    output: Path  # its .bin

    def _key_parts(self) -> tuple[object, ...]:
        return ("part", self.contents, self.number, self.parts, self.vocabulary)


def write_part(unit: PartUnit) -> Summary:
    """Sort the documents of a range by key; equal keys keep the order of the shards and of their rows."""
    first, last = (number * KEYS // unit.parts for number in (unit.number, unit.number + 1))
    paths = [unit.encoded / f"{number}.arrow" for number in range(unit.files)]
    keys, ids, sizes = map(np.concatenate, zip(*(_read_range(path, first, last - 1) for path in paths), strict=True))
    order = np.argsort(keys, kind="stable")
    with writing_store(unit.output.with_suffix(""), unit.vocabulary) as writer:
        for begin in range(0, len(order), DOCUMENTS_PER_BATCH):
            writer.extend(*take_documents(ids, sizes, order[begin : begin + DOCUMENTS_PER_BATCH]))
    return {"files": _other_files(unit.output)}


def _read_range(path: Path, first: int, last: int) -> tuple[NDArray[np.uint64], NDArray[Any], NDArray[np.int64]]:
    """Keys, ids and sizes of the documents with keys ``first`` to ``last`` inclusive, through a memory map."""
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        keys, offsets = batch["key"].to_numpy(), batch["ids"].offsets.to_numpy()
        begin, end = np.searchsorted(keys, np.uint64(first), "left"), np.searchsorted(keys, np.uint64(last), "right")
        ids = batch["ids"].values.to_numpy()[offsets[begin] : offsets[end]]
        return keys[begin:end].copy(), ids.copy(), np.diff(offsets[begin : end + 1])


def _other_files(output: Path) -> list[str]:
    """The files of a store beside its .bin."""
    prefix = output.with_suffix("")
    return [idx_path(prefix).name, crc_path(prefix).name]


@dataclass(frozen=True)
class StoreUnit(Unit):
    """Unit: the parts of one source -> its store."""

    parts: tuple[PartUnit, ...]
    validation: float
    output: Path  # its .bin

    def _key_parts(self) -> tuple[object, ...]:
        return ("join", [part.key for part in self.parts], self.validation)


def write_store(unit: StoreUnit) -> Summary:
    """Concatenate the parts; ``unigrams`` counts each token of the documents that are not held out."""
    vocabulary = unit.parts[0].vocabulary
    parts = [part.output.with_suffix("") for part in unit.parts]
    store = concatenate(parts, unit.output.with_suffix(""), vocabulary)
    train_tokens = store.offset(len(store) - held_out(len(store), unit.validation))
    unigrams = np.zeros(vocabulary, np.int64)
    for first in range(0, train_tokens, TOKENS_PER_COUNT):
        tokens = store.read(first, min(first + TOKENS_PER_COUNT, train_tokens))
        unigrams += np.bincount(tokens, minlength=vocabulary)
    return {
        "documents": store.documents,
        "tokens": store.tokens,
        "training_tokens": train_tokens,
        "store": store.checksum(),
        "unigrams": unigrams.tolist(),
        "files": _other_files(unit.output),
    }


@dataclass(frozen=True)
class BlendUnit(Unit):
    """Unit: the blend -> blend.json."""

    blend: Blend
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("blend", self.blend.model_dump(mode="json"))


def write_blend(unit: BlendUnit) -> Summary:
    """Write blend.json; returns no counts."""
    write_json(unit.output, unit.blend.model_dump(mode="json"))
    return {}


def tokenize_documents(
    shards_by_source: Mapping[str, Sequence[Path]],
    out: Path,
    settings: TokenizeSettings,
    weights: Mapping[str, float],
    engine: Engine,
) -> Summary:
    """Write ``out/tokenizer.json``, a store per source and ``out/blend.json``; returns the stage's summary.

    Beside the documents kept, the summary has ``tokens`` by source, the size of the ``vocabulary``, and
    ``unigram_entropy_nats``: the entropy of single tokens in the blend's training split, which is the loss of a model
    that knows token frequencies only. Raises ``Failure`` where a source has no weight or no documents.
    """
    settings.check()
    if unweighted := [source for source in shards_by_source if weights.get(source, 0) <= 0]:
        source = unweighted[0]
        raise Failure(f"source {source}: weight {weights.get(source)} in the blend; it must be above zero")
    shards = {source: number_shards(paths) for source, paths in shards_by_source.items()}
    if empty := [source for source, own in shards.items() if not sum(shard.rows for shard in own)]:
        raise Failure(f"source {empty[0]} has no document left to tokenize; take it out of the blend or filter it less")
    own_weights = {source: weights[source] for source in shards}

    stage = StageFolder(out, "tokenize", engine)
    tokenizer_unit = TokenizerUnit(settings, shards, own_weights, out / "tokenizer.json")
    tokenizer = stage.run(write_tokenizer, [tokenizer_unit], "tokenize: vocabulary")[0]
    encode_units = {
        source: _encode_units(own, UnitOutput.of(tokenizer_unit), tokenizer["eod"], settings, stage.state / source)
        for source, own in shards.items()
    }
    all_encode_units = [unit for units in encode_units.values() for unit in units]
    encoded = stage.run(encode_groups, all_encode_units, "tokenize: encode")
    in_turn = iter(encoded)
    store_units = []
    for source, units in encode_units.items():
        tokens = sum(summary["tokens"] for summary in islice(in_turn, len(units)))
        parts = _part_units(units, tokens, tokenizer["vocabulary"], stage.state / source)
        store_units.append(StoreUnit(parts, settings.validation, bin_path(out / source)))
    # A part holds what its store holds, so it goes with the end of the stage, when all stores are there.
    to_shuffle = [part for unit in store_units if verified_summary(unit) is None for part in unit.parts]
    stage.run(write_part, to_shuffle, "tokenize: shuffle", scratch=True)
    stores = dict(zip(shards, stage.run(write_store, store_units, "tokenize: stores"), strict=True))

    tokens_by_source = {
        source: {"documents": store["documents"], "tokens": store["tokens"], "weight": weights[source]}
        for source, store in stores.items()
    }
    blend = Blend(
        seed=settings.seed,
        vocabulary=tokenizer["vocabulary"],
        eod=tokenizer["eod"],
        validation=settings.validation,
        sources=tuple(
            BlendSource(name=source, prefix=source, sha256=stores[source]["store"], **counts)
            for source, counts in tokens_by_source.items()
        ),
    )
    stage.run(write_blend, [BlendUnit(blend, out / "blend.json")], "tokenize: blend")
    stage.finish(None)
    unigrams = {source: store["unigrams"] for source, store in stores.items()}
    return {
        **stage_summary("tokenize", encoded, order_sources(encoded, list(shards))),
        "alarms": [
            _short_store_alarm(source, store["training_tokens"])
            for source, store in stores.items()
            if store["training_tokens"] <= SEQUENCE
        ],
        "tokens": tokens_by_source,
        "vocabulary": tokenizer["vocabulary"],
        "unigram_entropy_nats": unigram_entropy(own_weights, unigrams),
    }


def _short_store_alarm(source: str, tokens: int) -> dict[str, str]:
    """The alarm of a source that is too small for one sample of the paper's length; ``open_stream`` leaves it out."""
    few = f"tokenize leaves {tokens:,} training tokens of {source}, fewer than one sample of {SEQUENCE:,} + 1"
    return {"source": source, "message": f"{few}; a sequence of {max(0, tokens - 1):,} or less uses the source"}


def _encode_units(
    shards: Sequence[Shard], tokenizer: UnitOutput, eod: int, settings: TokenizeSettings, folder: Path
) -> list[EncodeUnit]:
    work = [(shard, groups) for shard in shards for groups in _split_row_groups(shard.path)]
    return [
        EncodeUnit(shard, groups, tokenizer, eod, settings.seed, settings.library, folder / f"{number}.arrow")
        for number, (shard, groups) in enumerate(work)
    ]


def _split_row_groups(shard: Path) -> list[tuple[int, ...]]:
    """Consecutive row groups of a shard, gathered up to ``TEXT_BYTES_PER_UNIT``."""
    units: list[tuple[int, ...]] = []
    room = 0
    for group, size in enumerate(text_bytes(shard)):
        if room < size:
            units.append(())
            room = TEXT_BYTES_PER_UNIT
        units[-1] += (group,)
        room -= size
    return units


def _part_units(units: Sequence[EncodeUnit], tokens: int, vocabulary: int, folder: Path) -> tuple[PartUnit, ...]:
    contents = key_of([unit.key for unit in units])
    parts = -(-tokens // TOKENS_PER_UNIT)
    return tuple(
        PartUnit(folder, len(units), contents, number, parts, vocabulary, bin_path(folder / f"part-{number}"))
        for number in range(parts)
    )


def unigram_entropy(weights: Mapping[str, float], unigrams: Mapping[str, Sequence[int]]) -> float:
    """Entropy, in nats, of the sources' unigram distributions mixed by weight."""
    total_weight = sum(weights.values())
    shares = [
        weights[source] / total_weight * np.array(counts, np.float64) / max(1, sum(counts))
        for source, counts in unigrams.items()
    ]
    mixture = np.sum(shares, axis=0)
    present = mixture[mixture > 0]
    return float(-(present * np.log(present)).sum())
