"""The quality filter of crawled sources: a classifier trained on the run's own documents, or given; then a Pareto draw.

Positives are documents of the curated sources, negatives as many of the raw extracted ones; a tenth is held out and
measures the classifier (paper.md 4.2); one that is given is measured on all of them.

A document of score s is kept if ``pareto(alpha) > 1 - s``, which has probability ``(2 - s) ** -alpha``: most good
documents and a few of every kind. Every draw here is a hash of the seed and the document's id, so neither the order nor
the cut into shards, nor a restart, can change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path  # noqa: TC003  (pydantic reads the annotation)
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pydantic import Field

from mtnlg_data.console import Failure
from mtnlg_data.document import SCHEMA, Made, read_documents, source_of, write_documents
from mtnlg_data.engine import checksum, key_of, run_units
from mtnlg_data.files import sha256
from mtnlg_data.settings import Settings
from mtnlg_data.tally import KEPT, Tally, passed, stage

from .classifier import is_fasttext, judge_from
from .training import (
    EDGES,
    Measuring,
    Sample,
    Training,
    draw_sample,
    draws,
    histogram,
    measure_classifier,
    train_classifier,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mtnlg_data.engine import Engine, Summary

REASON = "low_quality"
FEWEST = 20  # documents a class, without which nothing is learnt


class QualitySettings(Settings):
    """How crawled documents are judged."""

    alpha: float = Field(3.0, gt=0)  # of the Pareto draw: 3 for MT-NLG, 9 for GPT-3
    model: Path | None = None  # a classifier.npy that another run trained, or a .bin of fastText; none is trained then
    label: str = "__label__hq"  # of good texts, in a model of fastText
    sample: int = Field(800_000, ge=FEWEST)  # most documents a class to learn from; the trainer holds 4 kB of each
    positives: dict[str, int] = Field({}, description="of each curated source, such as Books3 = 5000; evenly if none")
    held_out: float = Field(0.1, gt=0, lt=1)
    epochs: int = Field(5, gt=0)
    seed: int = Field(1, ge=0)

    def check(self) -> None:
        """Open the model, if one is given. Raises ``Failure`` where it cannot be used."""
        if self.model is not None:
            is_fasttext(self.model)


def keep_probability(scores: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Chance that a document of this score survives the draw: P(pareto(alpha) > 1 - score) = (2 - score) ** -alpha."""
    return (2.0 - scores) ** -alpha


def filter_documents(
    shards: Sequence[Path],
    out: Path,
    settings: QualitySettings,
    filtered: Sequence[str],
    curated: Sequence[str],
    *,
    before: Mapping[str, Summary],
    engine: Engine,
) -> Summary:
    """Write ``out/<shard>`` with the survivors of every shard of a ``filtered`` source.

    ``before`` is the account of every source by the stage before; sources that are not filtered pass through unread.
    Returns the stage's account with ``quality``. Raises ``Failure`` where a class is too small to learn from.
    """
    settings.check()
    shares = _shares(settings, filtered, curated, before)
    samples = [
        Sample(shard, checksum(shard), source in curated, shares[source], settings.seed, out / "samples" / shard.name)
        for shard in shards
        if (source := source_of(shard)) in shares
    ]
    run_units(engine, draw_sample, samples, "quality: sample")
    if settings.model is None:
        how = (settings.seed, settings.held_out, settings.epochs)
        training = Training(tuple(samples), *how, out / "classifier.npy")
        (measured,) = run_units(engine, train_classifier, [training], "quality: train")
        made = Made.by(training)
    else:
        made = Made(settings.model, sha256(settings.model))
        measuring = [Measuring(tuple(samples), made, settings.label, out / "measured.json")] if samples else []
        measured = next(iter(run_units(engine, measure_classifier, measuring, "quality: measure")), {})
    judged = [shard for shard in shards if source_of(shard) in filtered]
    passing = [passed(source, account) for source, account in before.items() if source not in filtered]
    account = keep_good(judged, out, settings, made, engine, order=list(before), passing=passing)
    return {**account, "quality": {**measured, **account["quality"]}}


def keep_good(
    shards: Sequence[Path],
    out: Path,
    settings: QualitySettings,
    classifier: Made,
    engine: Engine,
    *,
    order: Sequence[str],
    passing: Sequence[Summary] = (),
) -> Summary:
    """Score every shard and write ``out/<shard>`` with what the draw keeps; returns the stage's account.

    ``order`` is that of all sources; ``passing`` are the summaries of those that are not scored.
    """
    units = [Filtering(shard, checksum(shard), classifier, settings, out / shard.name) for shard in shards]
    summaries = run_units(engine, filter_shard, units, "quality: score")
    counted = {name: np.sum([summary[name] for summary in summaries], axis=0) for name in ("candidates", "kept")}
    histograms = {"edges": EDGES.round(2).tolist(), **{name: counts.tolist() for name, counts in counted.items()}}
    return {**stage("quality", [*summaries, *passing], order), "quality": histograms}


def _shares(
    settings: QualitySettings, filtered: Sequence[str], curated: Sequence[str], before: Mapping[str, Summary]
) -> dict[str, float]:
    """The share of each source's documents that is sampled: as many good ones in all as of the filtered sources."""
    if unknown := sorted(set(settings.positives) - set(curated)):
        raise Failure(f"quality.positives.{unknown[0]}: no curated source; those are {', '.join(curated)}")
    sizes = {source: before[source]["documents_out"] for source in (*filtered, *curated)}
    wanted = {source: min(settings.positives.get(source, 0), sizes[source]) for source in curated}
    if not settings.positives:
        wanted = {source: sizes[source] for source in curated}
    good, bad = sum(wanted.values()), sum(sizes[source] for source in filtered)
    most = min(settings.sample, good, bad)
    if settings.model is not None and not most:
        return {}  # nothing to measure it on
    if settings.model is None and most < FEWEST:
        raise Failure(
            f"quality: {good} documents of {', '.join(curated)} against {bad} of {', '.join(filtered)}"
            f" are too few to train a classifier; it takes {FEWEST} of each"
        )
    shares = {source: wanted[source] / max(1, sizes[source]) * most / good for source in curated}
    return shares | dict.fromkeys(filtered, most / bad)


@dataclass(frozen=True)
class Filtering:
    """Unit: one shard → the documents that the draw keeps, with their scores."""

    shard: Path
    checksum: str
    classifier: Made
    settings: QualitySettings
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        how = (self.settings.alpha, self.settings.seed, self.settings.label)
        return key_of("quality filter", self.shard.name, self.checksum, self.classifier.key, how)


def filter_shard(unit: Filtering) -> Summary:
    """Run one unit."""
    tally = Tally(source_of(unit.shard))
    settings = unit.settings
    judge = judge_from(unit.classifier.path, settings.label)
    candidates, kept = np.zeros(len(EDGES) - 1, np.int64), np.zeros(len(EDGES) - 1, np.int64)

    def survivors() -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard):
            names, texts = batch.column("id").to_pylist(), batch.column("text").to_pylist()
            scores = judge.scores(texts)
            is_kept = draws(settings.seed, "pareto", names) < keep_probability(scores, settings.alpha)
            candidates[:] += histogram(scores)
            kept[:] += histogram(scores[is_kept])
            for name, text, score, keep in zip(names, texts, scores.tolist(), is_kept, strict=True):
                if keep:
                    tally.keep(len(text))
                else:
                    tally.drop(len(text), REASON)
                tally.show(KEPT if keep else REASON, name, text, score)
            scored = batch.set_column(5, SCHEMA.field("score"), pa.array(scores, pa.float32()))
            yield scored.filter(pa.array(is_kept))

    write_documents(unit.output, survivors())
    return {**tally.summary(), "candidates": candidates.tolist(), "kept": kept.tolist()}
