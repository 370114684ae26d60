"""The work of the step tokenize: documents to token stores and their blend.

    sample      texts of one shard, to train the tokenizer on
    vocabulary  trained on the samples, or read: tokenizer.json
    encode      some row groups of a shard: ids of the documents and the tokens around them, sorted by hash(seed, key)
    merge       for a source with more files than one task may open: the levels of ``mtnlg_data.exchange``
    stores      all encoded files of a source, by key: its store
    blend       the stores and their weights: blend.json, which ``stream.open_stream`` reads

No task opens more than ``exchange.FAN_OUT`` files, or holds more than about ``TEXT_BYTES_PER_UNIT`` of text or
``exchange.RUN_BYTES`` of tokens, however many shards and sources there are. Ids are those of ``tokenizers``. A text
that spells the end token is encoded as text, so that the end token occurs only at the ends of documents.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.document import number_shards, shard_source, text_bytes
from mtnlg_data.exchange import Rows
from mtnlg_data.files import write_json
from mtnlg_data.summary import stage_summary

from .blend import Blend, BlendSource
from .encoding import Encoding, encode_groups, write_store
from .store import bin_path
from .tokenizer import Vocabulary, draw_sample, sample_limits, write_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.exchange import Range
    from mtnlg_data.job import Done, Job
    from mtnlg_data.steps.tokenize import Tokenize, TokenizeSettings
    from mtnlg_data.summary import Summary

TEXT_BYTES_PER_UNIT = 64_000_000


def write_blend(blend: Blend, output: Path) -> Summary:
    """Write blend.json; returns no counts."""
    write_json(output, blend.model_dump(mode="json", exclude_defaults=True))
    return {}


def tokenize(step: Tokenize, job: Job) -> Summary:
    """Write tokenizer.json, a store per source and blend.json in the job's folder; returns the step's summary.

    Beside the documents kept, the summary has ``tokens`` by source, the size of the ``vocabulary``, and
    ``unigram_entropy_nats``: the entropy of single tokens in the blend's training split, which is the loss of a model
    that knows token frequencies only. Raises ``Failure`` where a source has no documents.
    """
    settings, weights, out = step.settings, step.weights, job.out
    shards = {name: number_shards(path for path in job.paths if shard_source(path) == name) for name in step.sources}
    if empty := [source for source, own in shards.items() if not sum(shard.rows for shard in own)]:
        raise Failure(f"source {empty[0]} has no document left to tokenize; take it out of the blend or filter it less")
    groups = {shard.path: text_bytes(shard.path) for own in shards.values() for shard in own}

    tokenizer = _write_tokenizer(job, shards, groups, weights, settings)
    vocabulary, around = tokenizer.summary["vocabulary"], tokenizer.summary["around"]
    work = [
        ((shard, part), Rows.path(job.state / "encoded" / source, number))
        for source, own in shards.items()
        for number, (shard, part) in enumerate(
            (shard, part) for shard in own for part in _split_row_groups(groups[shard.path])
        )
    ]
    how = Encoding(tokenizer, vocabulary, around, settings.seed, settings.library, chat := step.chat())
    encoded = job.map("encode", encode_groups, work, how=how)
    stores = [
        _encoded_source(job, source, [*own], masked=chat is not None and source in chat.sources)
        for source, own in groupby(encoded, key=lambda done: done.output.parent.name)
    ]
    written = job.map("stores", write_store, stores, vocabulary=vocabulary, validation=settings.validation)
    summaries = {source: done.summary for source, done in zip(shards, written, strict=True)}

    tokens_by_source = {
        source: {"documents": store["documents"], "tokens": store["tokens"], "weight": weights[source]}
        for source, store in summaries.items()
    }
    blend = Blend(
        seed=settings.seed,
        vocabulary=vocabulary,
        eod=around[-1],
        validation=settings.validation,
        sources=tuple(
            BlendSource(name=source, prefix=source, sha256=store["store"], mask=store.get("mask", ""), **counts)
            for (source, counts), store in zip(tokens_by_source.items(), summaries.values(), strict=True)
        ),
    )
    job.map("blend", write_blend, [(blend, out / "blend.json")])
    job.folder.shards = None
    unigrams = {source: store["unigrams"] for source, store in summaries.items()}
    counted = [done.summary for done in encoded]
    return {
        **stage_summary("tokenize", counted, list(shards)),
        "tokens": tokens_by_source,
        "vocabulary": vocabulary,
        "unigram_entropy_nats": unigram_entropy(weights, unigrams),
    }


def _write_tokenizer(
    job: Job,
    shards: Mapping[str, Sequence[Shard]],
    groups: Mapping[Path, Sequence[int]],
    weights: Mapping[str, float],
    settings: TokenizeSettings,
) -> Done:
    """Write the tokenizer; to train one, samples are drawn first."""
    samples: list[Done] = []
    if settings.vocabulary is not None:
        sizes = {shard: sum(own) for shard, own in groups.items()}
        limits = sample_limits(shards, sizes, weights, settings)
        work = [(limit, job.state / "sample" / f"{number:07d}.sample") for number, limit in enumerate(limits)]
        samples = job.map("sample", draw_sample, work, seed=settings.seed)
    (tokenizer,) = job.map("vocabulary", write_tokenizer, [(Vocabulary(settings, samples), job.out / "tokenizer.json")])
    return tokenizer


def _split_row_groups(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Gather consecutive row groups of a shard up to ``TEXT_BYTES_PER_UNIT``; ``sizes`` are their bytes of text."""
    units: list[tuple[int, ...]] = []
    room = 0
    for group, size in enumerate(sizes):
        if room < size:
            units.append(())
            room = TEXT_BYTES_PER_UNIT
        units[-1] += (group,)
        room -= size
    return units


def _encoded_source(
    job: Job, source: str, encoded: Sequence[Done], *, masked: bool
) -> tuple[tuple[Range, int, bool], Path]:
    """Item and output of ``write_store`` for a source that these tasks have encoded."""
    documents = sum(done.summary["sources"][source]["documents_out"] for done in encoded)
    if not documents:
        reasons = {reason for done in encoded for reason in done.summary["sources"][source]["dropped"]}
        hint = 'read messages with message = "json"; docs/how-to/fine-tune.md has the reasons'
        raise Failure(f"source {source}: no chat becomes tokens: {', '.join(sorted(reasons))}; {hint}")
    (rows,) = job.collect("merge", encoded[0].output.parent, encoded, scratch=True).ranges(1)
    return (rows, documents, masked), bin_path(job.out / source)


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
