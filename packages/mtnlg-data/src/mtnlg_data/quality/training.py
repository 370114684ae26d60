"""What the quality filter learns from and what it learns: samples, a classifier, how well that tells them apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtnlg_data.console import Failure
from mtnlg_data.document import SCHEMA, read_documents, write_documents
from mtnlg_data.engine import key_of
from mtnlg_data.files import write_json

from .classifier import BATCH, WINDOW, area_under_curve, judge_from, train

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import Made
    from mtnlg_data.engine import Summary

    from .classifier import Judge

EDGES = np.linspace(0.0, 1.0, 21)


def draws(seed: int, purpose: str, ids: Sequence[str]) -> NDArray[np.float64]:
    """A uniform draw in [0, 1) for every document, by what it is drawn for and by its id alone."""
    key = f"{seed} {purpose}".encode()
    digests = b"".join(blake2b(name.encode(), digest_size=8, key=key).digest() for name in ids)
    bits: NDArray[np.uint64] = np.frombuffer(digests, "<u8") >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def histogram(scores: NDArray[np.float64]) -> list[int]:
    """How many scores lie between each two of ``EDGES``."""
    return [int(count) for count in np.histogram(scores, EDGES)[0]]


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


class Examples:
    """The sampled documents in the order of a hash of their ids, so that neither shards nor their order matter."""

    def __init__(self, samples: Sequence[Sample], seed: int) -> None:
        batches = [(sample.positive, batch) for sample in samples for batch in read_documents(sample.output)]
        labels = [np.full(batch.num_rows, positive) for positive, batch in batches]
        table = pa.Table.from_batches([batch for _, batch in batches], SCHEMA)
        ids = table.column("id").to_pylist()
        self._texts = table.column("text")
        self._order = np.argsort(draws(seed, "order", ids), kind="stable")
        self.held_out = draws(seed, "held out", ids)[self._order]
        self.labels = np.concatenate([np.empty(0, np.bool_), *labels])[self._order]

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """The texts of these examples."""
        found: list[str] = self._texts.take(pa.array(self._order[rows])).to_pylist()
        return found


@dataclass(frozen=True)
class Training:
    """Unit: all samples → the classifier, measured on those held out."""

    samples: tuple[Sample, ...]
    seed: int
    held_out: float
    epochs: int
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        how = (self.seed, self.held_out, self.epochs)
        return key_of("quality train", [sample.key for sample in self.samples], how)


def train_classifier(unit: Training) -> Summary:
    """Run one unit."""
    examples = Examples(unit.samples, unit.seed)
    held = examples.held_out < unit.held_out
    training, holding = np.flatnonzero(~held), np.flatnonzero(held)
    if any(len({*examples.labels[rows]}) < 2 for rows in (training, holding)):
        few = f"of {len(held)} documents, {len(holding)} of them held out,"
        raise Failure(f"quality: {few} one class has none on a side; raise quality.sample or give more documents")
    classifier = train(lambda rows: examples.texts(training[rows]), examples.labels[training], unit.seed, unit.epochs)
    classifier.save(unit.output)
    return {"trained_on": len(training), **measured_on(classifier, examples, holding)}


@dataclass(frozen=True)
class Measuring:
    """Unit: all samples and a classifier that is given → how well it tells them apart."""

    samples: tuple[Sample, ...]
    classifier: Made
    label: str
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("quality measure", [sample.key for sample in self.samples], self.classifier.key, self.label)


def measure_classifier(unit: Measuring) -> Summary:
    """Run one unit."""
    examples = Examples(unit.samples, seed=0)
    judge = judge_from(unit.classifier.path, unit.label)
    measured = {"trained_on": 0, **measured_on(judge, examples, np.arange(len(examples.labels)))}
    write_json(unit.output, measured)
    return measured


def measured_on(judge: Judge, examples: Examples, rows: NDArray[np.int64]) -> Summary:
    """How well these scores tell the examples of ``rows`` apart, and the histogram of those of the positives."""
    found = [judge.scores(examples.texts(rows[begin : begin + BATCH])) for begin in range(0, len(rows), BATCH)]
    scores, labels = np.concatenate([np.empty(0), *found]), examples.labels[rows]
    good, bad = scores[labels], scores[~labels]
    right = (good > 0.5).sum() + (bad <= 0.5).sum()
    if not (len(good) and len(bad)):
        return {"held_out": len(rows)}
    return {
        "accuracy": float(right / len(scores)),
        "auc": area_under_curve(good, bad),
        "held_out": len(rows),
        "positives": histogram(good),
        "negatives": histogram(bad),
    }
