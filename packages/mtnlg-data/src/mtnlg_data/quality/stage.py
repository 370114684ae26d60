"""Quality filter of crawled sources: a classifier scores each document, a Pareto draw decides (paper.md 4.2).

The classifier is trained on documents of the run, or given. Positives are documents of the curated sources; negatives
are as many raw extracted ones of the filtered sources. A tenth is held out to measure the classifier; a given one is
measured on all of them.

A document of score s is kept if ``pareto(alpha) > 1 - s``, with probability ``(2 - s) ** -alpha``: most good documents
and a few of every kind. Every draw is a hash of the seed and the document's key, so order, shards and restarts do not
affect it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003  (pydantic reads the annotation)
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pydantic import NonNegativeInt  # noqa: TC002  (pydantic reads the annotations)

from mtnlg_data.console import Failure
from mtnlg_data.document import UnitOutput, read_documents, replace_columns, shard_source, write_documents
from mtnlg_data.engine import StageFolder, Unit, checksum, key_of, library_version
from mtnlg_data.files import sha256
from mtnlg_data.settings import Settings, setting
from mtnlg_data.tally import Fates, passthrough_summary, recorded_tallies, stage_summary

from .classifier import is_fasttext, open_scorer
from .training import (
    HISTOGRAM_EDGES,
    MeasurementUnit,
    Samples,
    SampleUnit,
    TrainingUnit,
    draw_sample,
    histogram,
    measure_classifier,
    train_classifier,
    uniform_draws,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.tally import Tally

REASON = "low_quality"
MIN_DOCUMENTS = 20  # per class, to train a classifier


class QualitySettings(Settings):
    """How crawled documents are scored and drawn."""

    alpha: float = setting(3.0, "Of the Pareto draw: a higher one keeps fewer documents.", paper="3 (GPT-3: 9)", gt=0)
    model: Path | None = setting(None, "A classifier.npy of another run or a fastText .bin, instead of training one.")
    label: str = setting("__label__hq", "Label of good texts in a fastText model.")
    sample: int = setting(  # training holds 4 kB of each
        800_000, "Most training documents of each class.", unit="documents", paper="800000", ge=MIN_DOCUMENTS
    )
    positives: dict[str, NonNegativeInt] = setting(
        {},
        "Training documents of each curated source; as many of each if not given.",
        unit="documents",
        paper="OpenWebText2=500000, Wikipedia=295000, Books3=5000",
    )
    held_out: float = setting(
        0.1, "Training documents that only measure the classifier.", unit="share", paper="0.1", gt=0, lt=1
    )
    epochs: int = setting(5, "Passes over the training documents.", gt=0)
    seed: int = setting(1, "Of the sample and of the draw.", ge=0, lt=1 << 32)  # scikit-learn's
    alarm_share: float = setting(  # alpha 3 drops 7/8 at most
        0.85, "Warn of a source that loses more.", unit="share", ge=0, le=1
    )

    def check(self, curated: Sequence[str]) -> None:
        """Open the model, if one is given; compare ``positives`` with the curated sources.

        Raises ``Failure`` where the model cannot be used, or no curated source has such a name.
        """
        if self.model is not None:
            open_scorer(self.model, self.label)
        if unknown := sorted(set(self.positives) - set(curated)):
            known = f"those are {', '.join(curated)}" if curated else "there is none"
            raise Failure(f"quality.positives.{unknown[0]}: not a curated source; {known}")

    def model_key(self) -> str | None:
        """Digest of the given model and of the version of fastText that reads it; None where none is given."""
        if self.model is None:
            return None
        return key_of(sha256(self.model), library_version("fasttext-predict") if is_fasttext(self.model) else None)


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
    """Write the surviving documents of every shard of a ``filtered`` source to ``out/<shard>``.

    ``before`` maps every source, in order, to its counts after the previous stage; sources that are not filtered pass
    through unread. Returns the stage's summary with ``quality``. Raises ``Failure`` if a class has too few documents.
    """
    settings.check(curated)
    shares = _sample_shares(settings, filtered, curated, before)
    stage = StageFolder(out, "quality", engine)
    samples = _draw_samples(shards, shares, curated, settings, stage)
    classifier, measured = _classifier(samples, settings, stage)
    units = [
        FilterUnit(shard, checksum(shard), classifier, settings, out / shard.name)
        for shard in shards
        if shard_source(shard) in filtered
    ]
    summaries = stage.run(filter_shard, units, "quality: score")
    stage.finish(unit.output for unit in units)
    passing = [passthrough_summary(source, counts) for source, counts in before.items() if source not in filtered]
    counts = {name: np.sum([summary[name] for summary in summaries], axis=0) for name in ("candidates", "kept")}
    histograms = {name: count.tolist() for name, count in counts.items()}
    return {
        **stage_summary("quality", [*summaries, *passing], list(before), settings.alarm_share),
        "quality": {**measured, "edges": HISTOGRAM_EDGES.round(2).tolist(), **histograms},
    }


def _sample_shares(
    settings: QualitySettings, filtered: Sequence[str], curated: Sequence[str], before: Mapping[str, Summary]
) -> dict[str, float]:
    """The share of each source's documents to sample, for as many positives as negatives; empty to sample none."""
    sizes = {source: before[source]["documents_out"] for source in (*filtered, *curated)}
    wanted = {source: min(settings.positives.get(source, 0), sizes[source]) for source in curated}
    if not settings.positives:
        wanted = {source: sizes[source] for source in curated}
    positives, negatives = sum(wanted.values()), sum(sizes[source] for source in filtered)
    per_class = min(settings.sample, positives, negatives)
    if settings.model is not None and not per_class:
        return {}  # nothing to measure the model on
    if settings.model is None and per_class < MIN_DOCUMENTS:
        raise Failure(
            f"quality: {positives} documents of {', '.join(curated)} and {negatives} of {', '.join(filtered)}"
            f" are too few to train a classifier; it takes {MIN_DOCUMENTS} of each"
        )
    shares = {source: wanted[source] / max(1, sizes[source]) * per_class / positives for source in curated}
    return shares | dict.fromkeys(filtered, per_class / negatives)


def _draw_samples(
    shards: Sequence[Path],
    shares: Mapping[str, float],
    curated: Sequence[str],
    settings: QualitySettings,
    stage: StageFolder,
) -> Samples:
    """Draw the share of every shard that the classifier is trained or measured on."""
    sampled = [shard for shard in shards if shard_source(shard) in shares]
    ordered = sorted(sampled, key=lambda shard: shard_source(shard) not in curated)
    positives = sum(shard_source(shard) in curated for shard in sampled)
    samples = Samples(stage.state / "samples", positives, len(ordered), "")
    units = [
        SampleUnit(shard, checksum(shard), number < positives, shares[source], settings.seed, samples.path(number))
        for number, (shard, source) in enumerate((shard, shard_source(shard)) for shard in ordered)
    ]
    drawn = stage.run(draw_sample, units, "quality: sample")
    documents = sum(summary["documents"] for summary in drawn)
    return samples._replace(contents=key_of([unit.key for unit in units]), documents=documents)


def _classifier(samples: Samples, settings: QualitySettings, stage: StageFolder) -> tuple[UnitOutput, Summary]:
    """Train the classifier, or take the given one; returns it and its measurement."""
    given = settings.model_key()
    if settings.model is None or given is None:
        path = stage.path / "classifier.npy"
        training = TrainingUnit(samples, settings.seed, settings.held_out, settings.epochs, path)
        (measured,) = stage.run(train_classifier, [training], "quality: train")
        return UnitOutput.of(training), measured
    model = UnitOutput(settings.model, given)
    if not samples.files:
        return model, {}
    measurement = MeasurementUnit(samples, model, settings.label, stage.path / "measured.json")
    (measured,) = stage.run(measure_classifier, [measurement], "quality: measure")
    return model, measured


@dataclass(frozen=True)
class FilterUnit(Unit):
    """Unit: one shard → the documents that the draw keeps, with their scores."""

    shard: Path
    checksum: str
    classifier: UnitOutput
    settings: QualitySettings
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        draw = (self.settings.alpha, self.settings.seed, self.settings.label)
        return ("quality filter", self.shard.name, self.checksum, self.classifier.key, draw)


def filter_shard(unit: FilterUnit) -> Summary:
    """Score one shard and write what is kept; the summary has its tally and histograms of the scores."""
    source, settings = shard_source(unit.shard), unit.settings
    scorer = open_scorer(unit.classifier.path, settings.label)
    candidates, kept = np.zeros(len(HISTOGRAM_EDGES) - 1, np.int64), np.zeros(len(HISTOGRAM_EDGES) - 1, np.int64)

    def survivors(tally: Tally) -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard):
            keys, texts = (batch[name].to_pylist() for name in ("key", "text"))
            scores = scorer.scores(texts)
            is_kept = uniform_draws(settings.seed, "pareto", keys) < keep_probability(scores, settings.alpha)
            candidates[:] += histogram(scores)
            kept[:] += histogram(scores[is_kept])
            lengths = np.fromiter(map(len, texts), np.int64, len(texts))
            tally.count(batch, Fates(np.where(is_kept, -1, 0), (REASON,), scores, lengths, lengths[is_kept]))
            yield replace_columns(batch, {"score": scores}).filter(pa.array(is_kept))

    with recorded_tallies(unit.output) as tallies:
        write_documents(unit.output, survivors(tallies[source]))
    return {**tallies.summary(), "candidates": candidates.tolist(), "kept": kept.tolist()}


def keep_probability(scores: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Chance that a document of this score survives the draw: P(pareto(alpha) > 1 - score) = (2 - score) ** -alpha."""
    return (2.0 - scores) ** -alpha
