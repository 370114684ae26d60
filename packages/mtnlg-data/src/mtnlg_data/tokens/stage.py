"""The tokenize stage: documents to token stores and their blend, in steps of units.

    sample      one shard: the texts of it that the tokenizer is trained on
    tokenizer   trained on the samples, or read: tokenizer.json
    encode      some row groups of a shard: ids of the documents, each with an end token, sorted by hash(seed, key)
    merge       of a source of more files than one unit may open: the levels of the exchange (``mtnlg_data.exchange``)
    count       documents and tokens of each range of keys: where in the store it begins
    shuffle     a range of keys from all encoded files of a source: its place in the store
    check       a GiB of a store: checksums, unigrams
    stores      the files of a store put in place
    blend       the stores and their weights: blend.json, which ``stream.open_stream`` reads

No unit opens more than ``exchange.FAN_OUT`` files, or holds more than about ``TEXT_BYTES_PER_UNIT`` of text or
``TOKENS_PER_BATCH`` tokens, however many shards and sources there are. Ids are those of ``tokenizers``. A text that
spells the end token is encoded as text, so that the end token stands at ends of documents only.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice, zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.document import Shard, UnitOutput, number_shards, text_bytes
from mtnlg_data.engine import StageFolder, Unit, key_of
from mtnlg_data.engine.units import verified_summary
from mtnlg_data.exchange import Exchange, KeyRange, SortedFile
from mtnlg_data.files import write_json
from mtnlg_data.tally import order_sources, stage_summary

from .blend import Blend, BlendSource
from .encoding import (
    CountUnit,
    EncodeUnit,
    MergeUnit,
    count_ranges,
    encode_groups,
    encoded_path,
    merge_encoded,
)
from .placed_store import (
    PlacedStore,
    RangeUnit,
    StoreUnit,
    allocate_store,
    check_span,
    write_range,
    write_store,
)
from .store import bin_path
from .tokenizer import TokenizerUnit, draw_sample, sample_units, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.steps.tokenize import TokenizeSettings

TEXT_BYTES_PER_UNIT = 64_000_000
TOKENS_PER_UNIT = 1 << 26
SEQUENCE = 2048  # tokens of the paper's samples (4.1): a store with fewer is warned of


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
    if unweighted := [source for source in shards_by_source if weights.get(source, 0) <= 0]:
        source = unweighted[0]
        raise Failure(f"source {source}: weight {weights.get(source)} in the blend; it must be above zero")
    shards = {source: number_shards(paths) for source, paths in shards_by_source.items()}
    if empty := [source for source, own in shards.items() if not sum(shard.rows for shard in own)]:
        raise Failure(f"source {empty[0]} has no document left to tokenize; take it out of the blend or filter it less")
    own_weights = {source: weights[source] for source in shards}

    stage = StageFolder(out, "tokenize", engine)
    groups = {shard.path: text_bytes(shard.path) for own in shards.values() for shard in own}
    tokenizer_unit = _tokenizer_unit(shards, groups, own_weights, settings, stage)
    tokenizer = stage.run(write_tokenizer, [tokenizer_unit], "tokenize: vocabulary")[0]
    encode_units = {
        source: _encode_units(own, groups, (UnitOutput.of(tokenizer_unit), tokenizer["eod"]), settings, folder)
        for source, own in shards.items()
        for folder in [stage.state / "encoded" / source]
    }
    encoded = stage.run(encode_groups, [*chain(*encode_units.values())], "tokenize: encode")
    in_turn = iter(encoded)
    store_units = []
    for source, units in encode_units.items():
        documents = sum(shard.rows for shard in shards[source])
        tokens = sum(summary["tokens"] for summary in islice(in_turn, len(units)))
        contents = key_of([unit.key for unit in units])
        prefix = stage.state / "stores" / source / contents[:16]  # of these documents alone
        placed = PlacedStore(prefix, documents, tokens, tokenizer["vocabulary"])
        store_units.append(StoreUnit(placed, contents, settings.validation, bin_path(out / source)))
    shuffles = [
        _Shuffle(unit, units[0].output.parent, Exchange(len(units), -(-unit.placed.tokens // TOKENS_PER_UNIT)))
        for unit, units in zip(store_units, encode_units.values(), strict=True)
        if verified_summary(unit) is None
    ]
    _write_stores(shuffles, stage)
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
    shutil.rmtree(stage.state / "stores", ignore_errors=True)  # of stores that were begun, and whose documents changed
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


def _tokenizer_unit(
    shards: Mapping[str, Sequence[Shard]],
    groups: Mapping[Path, Sequence[int]],
    weights: Mapping[str, float],
    settings: TokenizeSettings,
    stage: StageFolder,
) -> TokenizerUnit:
    """The unit of the tokenizer; where it is trained, the samples are drawn."""
    folder = stage.state / "sample"
    units = []
    if settings.vocabulary is not None:
        sizes = {shard: sum(own) for shard, own in groups.items()}
        units = sample_units(shards, sizes, weights, settings, folder)
        stage.run(draw_sample, units, "tokenize: sample")
    contents = key_of([unit.key for unit in units])
    return TokenizerUnit(settings, folder, len(units), contents, stage.path / "tokenizer.json")


def _encode_units(
    shards: Sequence[Shard],
    groups: Mapping[Path, Sequence[int]],
    tokenizer: tuple[UnitOutput, int],
    settings: TokenizeSettings,
    folder: Path,
) -> list[EncodeUnit]:
    """Units for the ``groups`` of each shard; ``tokenizer`` has its file and its end token."""
    work = [(shard, own) for shard in shards for own in _split_row_groups(groups[shard.path])]
    paths = [encoded_path(folder, SortedFile(0, number, 0)) for number in range(len(work))]
    return [
        EncodeUnit(shard, own, *tokenizer, settings.seed, settings.library, path)
        for (shard, own), path in zip(work, paths, strict=True)
    ]


def _split_row_groups(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Consecutive row groups of a shard, gathered up to ``TEXT_BYTES_PER_UNIT``; given the bytes of text of each."""
    units: list[tuple[int, ...]] = []
    room = 0
    for group, size in enumerate(sizes):
        if room < size:
            units.append(())
            room = TEXT_BYTES_PER_UNIT
        units[-1] += (group,)
        room -= size
    return units


class _Shuffle(NamedTuple):
    """The encoded files of a source, on their way to its store."""

    store: StoreUnit
    folder: Path
    exchange: Exchange

    def merges(self) -> Iterator[list[MergeUnit]]:
        """The units of each level."""
        vocabulary = self.store.placed.vocabulary
        for level in self.exchange.merges():
            yield [
                MergeUnit(self.folder, keys, self.store.contents, vocabulary, encoded_path(self.folder, file))
                for file, keys in level
            ]

    def counts(self) -> list[CountUnit]:
        """A unit for all ranges that the same files hold."""
        units: list[CountUnit] = []
        ranges = map(self.exchange.range, range(self.exchange.ranges))
        for files, own in groupby(ranges, key=lambda keys: keys.files):
            parts = list(own)
            keys, vocabulary = KeyRange(parts[0].first, parts[-1].last, files), self.store.placed.vocabulary
            output = self.folder / f"{len(units):07d}.counts.npy"
            units.append(CountUnit(self.folder, keys, len(parts), self.store.contents, vocabulary, output))
        return units

    def ranges(self) -> list[RangeUnit]:
        """The units that write the store, by the counts."""
        counts = np.concatenate([np.load(unit.output) for unit in self.counts()])
        begins = np.cumsum(counts, axis=0) - counts
        placed, contents = self.store.placed, self.store.contents
        return [
            RangeUnit(self.folder, self.exchange.range(number), contents, placed, document, token,
                      placed.prefix.with_name(f"range-{number:07d}"))
            for number, (document, token) in enumerate(begins.tolist())
        ]  # fmt: skip


def _write_stores(shuffles: Sequence[_Shuffle], stage: StageFolder) -> None:
    """Write these stores, up to their last step; all sources are at the same step, to share the workers."""
    run = partial(stage.run, scratch=True)
    for levels in zip_longest(*(shuffle.merges() for shuffle in shuffles), fillvalue=[]):
        run(merge_encoded, [*chain(*levels)], "tokenize: merge")
    run(count_ranges, [*chain(*(shuffle.counts() for shuffle in shuffles))], "tokenize: count")
    for shuffle in shuffles:
        allocate_store(shuffle.store.placed)
    run(write_range, [*chain(*(shuffle.ranges() for shuffle in shuffles))], "tokenize: shuffle")
    run(check_span, [*chain(*(shuffle.store.spans() for shuffle in shuffles))], "tokenize: check")


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
