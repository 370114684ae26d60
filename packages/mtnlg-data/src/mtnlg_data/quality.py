"""The quality filter of crawled sources: a classifier trained on the run's own documents, then a Pareto draw.

Positives are documents of the curated sources, negatives as many of the raw extracted ones; a tenth is held out and
measures the classifier (paper.md 4.2). A document of score s is kept if ``pareto(alpha) > 1 - s``, which has
probability ``(2 - s) ** -alpha``: most good documents and a few of every kind. Every draw here is a hash of the seed
and the document's id, so neither the order nor the cut into shards, nor a restart, can change it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from .classifier import WINDOW, Classifier, area_under_curve, train
from .console import Failure
from .document import SCHEMA, read_documents, source_of, write_documents
from .engine import checksum, key_of, run_units
from .funnel import KEPT, Tally, passed, stage
from .settings import Settings
from .shards import Made

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from .engine import Engine, Summary

EDGES = np.linspace(0.0, 1.0, 21)
REASON = "low_quality"
FEWEST = 20  # documents a class, without which nothing is learnt


class QualitySettings(Settings):
    """How crawled documents are judged."""

    alpha: float = Field(3.0, gt=0)  # of the Pareto draw: 3 for MT-NLG, 9 for GPT-3
    sample: int = Field(800_000, ge=FEWEST)  # most documents a class to train on; the trainer holds 4 kB of each
    held_out: float = Field(0.1, gt=0, lt=1)
    epochs: int = Field(5, gt=0)
    seed: int = Field(1, ge=0)


def keep_probability(scores: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Chance that a document of this score survives the draw: P(pareto(alpha) > 1 - score) = (2 - score) ** -alpha."""
    return (2.0 - scores) ** -alpha


def draws(seed: int, purpose: str, ids: Sequence[str]) -> NDArray[np.float64]:
    """A uniform draw in [0, 1) for every document, by what it is drawn for and by its id alone."""
    key = f"{seed} {purpose}".encode()
    digests = b"".join(blake2b(name.encode(), digest_size=8, key=key).digest() for name in ids)
    bits: NDArray[np.uint64] = np.frombuffer(digests, "<u8") >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def quality(
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
    classes = {label: [s for s in shards if source_of(s) in of] for label, of in ((False, filtered), (True, curated))}
    sizes = {label: sum(before[s]["documents_out"] for s in {*map(source_of, of)}) for label, of in classes.items()}
    most = min(settings.sample, *sizes.values())
    if most < FEWEST:
        raise Failure(
            f"quality: {sizes[True]} documents of {', '.join(curated)} against {sizes[False]} of {', '.join(filtered)}"
            f" are too few to train a classifier; it takes {FEWEST} of each"
        )
    samples = [
        Sample(shard, checksum(shard), label, most / sizes[label], settings.seed, out / "samples" / shard.name)
        for label, of in classes.items()
        for shard in of
    ]
    run_units(engine, draw_sample, samples, "quality: sample")
    training = Training(tuple(samples), settings, out / "classifier.npy")
    (measured,) = run_units(engine, train_classifier, [training], "quality: train")
    passing = [passed(source, account) for source, account in before.items() if source not in filtered]
    account = keep_good(classes[False], out, settings, Made.by(training), engine, order=list(before), passing=passing)
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


@dataclass(frozen=True)
class Sample:
    """Unit: one shard → those of its documents that the classifier is trained or measured on."""

    shard: Path
    checksum: str
    positive: bool
    share: float
    seed: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("quality sample", self.shard.name, self.checksum, self.positive, self.share, self.seed)


def draw_sample(unit: Sample) -> Summary:
    """Run one unit."""

    def chosen() -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard):
            drawn = batch.filter(pa.array(draws(unit.seed, "sample", batch.column("id").to_pylist()) < unit.share))
            read = pc.utf8_slice_codeunits(drawn.column("text"), 0, WINDOW)
            yield drawn.set_column(2, SCHEMA.field("text"), read)

    return {"documents": write_documents(unit.output, chosen())}


@dataclass(frozen=True)
class Training:
    """Unit: all samples → the classifier, measured on those held out."""

    samples: tuple[Sample, ...]
    settings: QualitySettings
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("quality train", [sample.key for sample in self.samples], self.settings.model_dump())


def train_classifier(unit: Training) -> Summary:
    """Run one unit. The documents are put in order of a hash of their ids, so that shards do not matter."""
    batches = [(sample.positive, batch) for sample in unit.samples for batch in read_documents(sample.output)]
    table = pa.Table.from_batches([batch for _, batch in batches], SCHEMA)
    labels = np.concatenate([np.full(batch.num_rows, positive) for positive, batch in batches])
    ids = table.column("id").to_pylist()
    order = np.argsort(draws(unit.settings.seed, "order", ids), kind="stable")
    held = draws(unit.settings.seed, "held out", ids)[order] < unit.settings.held_out
    training, holding = order[~held], order[held]
    if len({*labels[training]}) < 2 or len({*labels[holding]}) < 2:
        few = f"of {len(ids)} documents, {len(holding)} of them held out,"
        raise Failure(f"quality: {few} one class has none on a side; raise quality.sample or give more documents")

    def text_at(rows: NDArray[np.int64]) -> list[str]:
        texts: list[str] = table.column("text").take(pa.array(rows)).to_pylist()
        return texts

    classifier = train(lambda rows: text_at(training[rows]), labels[training], unit.settings.seed, unit.settings.epochs)
    classifier.save(unit.output)
    scores = classifier.scores(text_at(holding))
    good, bad = scores[labels[holding]], scores[~labels[holding]]
    right = (good > 0.5).sum() + (bad <= 0.5).sum()
    return {
        "accuracy": float(right / len(scores)),
        "auc": area_under_curve(good, bad),
        "trained_on": len(training),
        "held_out": len(holding),
        "positives": histogram(good),
    }


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
        return key_of("quality filter", self.shard.name, self.checksum, self.classifier.key)


def filter_shard(unit: Filtering) -> Summary:
    """Run one unit."""
    tally = Tally(source_of(unit.shard))
    classifier = Classifier.load(unit.classifier.path)
    settings = unit.settings
    candidates, kept = np.zeros(len(EDGES) - 1, np.int64), np.zeros(len(EDGES) - 1, np.int64)

    def survivors() -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard):
            names, texts = batch.column("id").to_pylist(), batch.column("text").to_pylist()
            scores = classifier.scores(texts)
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


def histogram(scores: NDArray[np.float64]) -> list[int]:
    """How many scores lie between each two of ``EDGES``."""
    return [int(count) for count in np.histogram(scores, EDGES)[0]]
