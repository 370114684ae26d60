"""Training of the quality classifier: samples of documents, the fit, and its accuracy on held-out examples."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtnlg_data.console import Failure
from mtnlg_data.document import read_documents, replace_columns, write_documents
from mtnlg_data.engine import Unit
from mtnlg_data.files import write_json
from mtnlg_data.schema import SCHEMA

from .classifier import BATCH_TEXTS, BUCKETS, CLASSIFIED_CHARACTERS, fit_classifier, open_scorer, roc_auc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mtnlg_data.document import UnitOutput
    from mtnlg_data.engine import Summary

    from .classifier import Scorer

LIBRARY_BYTES = 350_000_000  # memory of a worker that has trained
TRAINING_BYTES = 80 * BUCKETS  # the weights of SGD, their means and their updates, while it trains
HISTOGRAM_EDGES = np.linspace(0.0, 1.0, 21)


def uniform_draws(seed: int, purpose: str, keys: Sequence[str]) -> NDArray[np.float64]:
    """One uniform draw in [0, 1) per document: a hash of the seed, the purpose and the document's key alone."""
    salt = f"{seed} {purpose}".encode()
    digests = b"".join(blake2b(key.encode(), digest_size=8, key=salt).digest() for key in keys)
    bits: NDArray[np.uint64] = np.frombuffer(digests, "<u8") >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def histogram(scores: NDArray[np.float64]) -> list[int]:
    """Number of scores in each bin of ``HISTOGRAM_EDGES``."""
    return [int(count) for count in np.histogram(scores, HISTOGRAM_EDGES)[0]]


@dataclass(frozen=True)
class SampleUnit(Unit):
    """Unit: one shard → the documents that the classifier is trained or measured on."""

    shard: Path
    checksum: str
    positive: bool
    share: float
    seed: int
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("quality sample", self.shard.name, self.checksum, self.positive, self.share, self.seed)


def draw_sample(unit: SampleUnit) -> Summary:
    """Write a random ``share`` of one shard's documents, each cut to the characters that the classifier reads."""
    columns = [name for name in SCHEMA.names if name != "metadata"]

    def sampled() -> Iterator[pa.RecordBatch]:
        for batch in read_documents(unit.shard, columns):
            draws = uniform_draws(unit.seed, "sample", batch["key"].to_pylist())
            sample = batch.filter(pa.array(draws < unit.share))
            prefixes = pc.utf8_slice_codeunits(sample["text"], 0, CLASSIFIED_CHARACTERS)
            shortened = replace_columns(sample, {"text": prefixes})
            yield pa.record_batch([*shortened, pa.nulls(len(sample), SCHEMA.field("metadata").type)], SCHEMA)

    return {"documents": write_documents(unit.output, sampled())}


class Samples(NamedTuple):
    """The samples of all shards: a folder of so many files, those of positives first."""

    folder: Path
    positives: int
    files: int
    contents: str  # digest of their units' keys
    documents: int = 0

    def path(self, number: int) -> Path:
        """The sample of a shard, by its number."""
        return self.folder / f"{number:07d}.parquet"


class TrainingExamples:
    """The sampled documents in the order of a hash of their keys, so that shards and their order do not matter."""

    def __init__(self, samples: Samples, seed: int) -> None:
        batches = [
            (number < samples.positives, batch)
            for number in range(samples.files)
            for batch in read_documents(samples.path(number))
        ]
        labels = [np.full(batch.num_rows, positive) for positive, batch in batches]
        table = pa.Table.from_batches([batch for _, batch in batches], SCHEMA)
        keys = table["key"].to_pylist()
        self._texts = table.column("text").combine_chunks()  # else each take would copy all
        self._order = np.argsort(uniform_draws(seed, "order", keys), kind="stable")
        self.held_out = uniform_draws(seed, "held out", keys)[self._order]
        self.labels = np.concatenate([np.empty(0, np.bool_), *labels])[self._order]

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Texts of these examples."""
        texts: list[str] = self._texts.take(pa.array(self._order[rows])).to_pylist()
        return texts


@dataclass(frozen=True)
class TrainingUnit(Unit):
    """Unit: all samples → the trained classifier."""

    samples: Samples
    seed: int
    held_out: float
    epochs: int
    output: Path

    @property
    def memory(self) -> int:
        """All sampled texts, twice while they are joined."""
        return LIBRARY_BYTES + TRAINING_BYTES + 2 * CLASSIFIED_CHARACTERS * self.samples.documents

    def _key_parts(self) -> tuple[object, ...]:
        hyperparameters = (self.seed, self.held_out, self.epochs)
        return ("quality train", self.samples.contents, hyperparameters)


def train_classifier(unit: TrainingUnit) -> Summary:
    """Train a classifier; the summary has its accuracy on the held-out examples."""
    examples = TrainingExamples(unit.samples, unit.seed)
    is_held_out = examples.held_out < unit.held_out
    training, held_out = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
    if any(len({*examples.labels[rows]}) < 2 for rows in (training, held_out)):
        raise Failure(
            f"quality: of {len(is_held_out)} sampled documents, {len(held_out)} of them held out, one side lacks "
            "positives or negatives; raise quality.sample or give more documents"
        )
    classifier = fit_classifier(
        lambda rows: examples.texts(training[rows]), examples.labels[training], unit.seed, unit.epochs
    )
    classifier.save(unit.output)
    return {"trained_on": len(training), **measure_scorer(classifier, examples, held_out)}


@dataclass(frozen=True)
class MeasurementUnit(Unit):
    """Unit: all samples and a given model → the model's accuracy on them, as JSON."""

    samples: Samples
    classifier: UnitOutput
    label: str
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        return ("quality measure", self.samples.contents, self.classifier.key, self.label)


def measure_classifier(unit: MeasurementUnit) -> Summary:
    """Measure a given model on all samples and write the result."""
    examples = TrainingExamples(unit.samples, seed=0)
    scorer = open_scorer(unit.classifier.path, unit.label)
    measured = {"trained_on": 0, **measure_scorer(scorer, examples, np.arange(len(examples.labels)))}
    write_json(unit.output, measured)
    return measured


def measure_scorer(scorer: Scorer, examples: TrainingExamples, rows: NDArray[np.int64]) -> Summary:
    """Accuracy at threshold 0.5, ROC AUC and score histograms on these examples; only their count if a class lacks."""
    batches = (rows[begin : begin + BATCH_TEXTS] for begin in range(0, len(rows), BATCH_TEXTS))
    scores = np.concatenate([np.empty(0), *(scorer.scores(examples.texts(batch)) for batch in batches)])
    labels = examples.labels[rows]
    positives, negatives = scores[labels], scores[~labels]
    if not (len(positives) and len(negatives)):
        return {"held_out": len(rows)}
    correct = (positives > 0.5).sum() + (negatives <= 0.5).sum()
    return {
        "accuracy": float(correct / len(scores)),
        "auc": roc_auc(positives, negatives),
        "held_out": len(rows),
        "positives": histogram(positives),
        "negatives": histogram(negatives),
    }
