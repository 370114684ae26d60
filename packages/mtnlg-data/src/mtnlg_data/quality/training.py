"""Training of the quality classifier: samples of documents, the fit, and its accuracy on held-out examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtnlg_data.console import Failure
from mtnlg_data.document import read_documents, replace_columns, write_documents
from mtnlg_data.schema import SCHEMA

from .classifier import BATCH_TEXTS, BUCKETS, CLASSIFIED_CHARACTERS, fit_classifier, roc_auc
from .draws import histogram, uniform_draws

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Int64s
    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done
    from mtnlg_data.summary import Summary

#: Memory of a worker that trains: libraries, SGD's weights, means and updates; and per document, its text twice.
TRAINING_BYTES, DOCUMENT_BYTES = 350_000_000 + 80 * BUCKETS, 2 * CLASSIFIED_CHARACTERS


def draw_sample(item: tuple[Shard, float], output: Path, *, seed: int) -> Summary:
    """Write a random share of one shard's documents, each cut to the characters that the classifier reads."""
    shard, share = item
    columns = [name for name in SCHEMA.names if name != "metadata"]

    def sampled() -> Iterator[pa.RecordBatch]:
        for batch in read_documents(shard.path, columns):
            draws = uniform_draws(seed, "sample", batch["key"].to_pylist())
            sample = batch.filter(pa.array(draws < share))
            prefixes = pc.utf8_slice_codeunits(sample["text"], 0, CLASSIFIED_CHARACTERS)
            shortened = replace_columns(sample, {"text": prefixes})
            yield pa.record_batch([*shortened, pa.nulls(len(sample), SCHEMA.field("metadata").type)], SCHEMA)

    return {"documents": write_documents(output, sampled())}


class TrainingExamples:
    """The sampled documents in the order of a hash of their keys, so that shards and their order do not matter."""

    def __init__(self, samples: Sequence[Done], positives: int, seed: int) -> None:
        """The first ``positives`` samples are of curated sources."""
        batches = [
            (number < positives, batch)
            for number, sample in enumerate(samples)
            for batch in read_documents(sample.output)
        ]
        labels = [np.full(batch.num_rows, positive) for positive, batch in batches]
        table = pa.Table.from_batches([batch for _, batch in batches], SCHEMA)
        keys = table["key"].to_pylist()
        self._texts = table.column("text").combine_chunks()  # else each take would copy all
        self._order = np.argsort(uniform_draws(seed, "order", keys), kind="stable")
        self.held_out = uniform_draws(seed, "held out", keys)[self._order]
        self.labels = np.concatenate([np.empty(0, np.bool_), *labels])[self._order]

    def texts(self, rows: Int64s) -> list[str]:
        """Texts of these examples."""
        texts: list[str] = self._texts.take(pa.array(self._order[rows])).to_pylist()
        return texts


def train_classifier(
    item: tuple[Sequence[Done], int], output: Path, *, seed: int, held_out: float, epochs: int
) -> Summary:
    """Train a classifier; the summary has accuracy at threshold 0.5, ROC AUC and scores of the held-out examples."""
    examples = TrainingExamples(*item, seed)
    is_held_out = examples.held_out < held_out
    training, measured = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
    if any(len({*examples.labels[rows]}) < 2 for rows in (training, measured)):
        raise Failure(
            f"quality: of {len(is_held_out)} sampled documents, {len(measured)} of them held out, one side has no "
            "positives or negatives; raise quality.sample or give more documents"
        )
    classifier = fit_classifier(lambda rows: examples.texts(training[rows]), examples.labels[training], seed, epochs)
    classifier.save(output)
    batches = (measured[begin : begin + BATCH_TEXTS] for begin in range(0, len(measured), BATCH_TEXTS))
    scores = np.concatenate([classifier.scores(examples.texts(batch)) for batch in batches])
    labels = examples.labels[measured]
    positives, negatives = scores[labels], scores[~labels]
    correct = (positives > 0.5).sum() + (negatives <= 0.5).sum()
    return {
        "trained_on": len(training),
        "accuracy": float(correct / len(scores)),
        "auc": roc_auc(positives, negatives),
        "held_out": len(measured),
        "positives": histogram(positives),
        "negatives": histogram(negatives),
    }
