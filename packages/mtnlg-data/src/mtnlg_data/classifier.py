"""A linear classifier over hashed words and word pairs: how much a text is like the curated ones.

The paper's is fastText with word 2-grams (paper.md 4.2), whose score of a text is a mean of n-gram weights under a
logistic function. Ours, with H the set of 2**20 buckets into which the words and word pairs of a text fall, and w a
weight a bucket that scikit-learn's SGD fits to the logistic loss:

    score = 1 / (1 + exp(-(b + sum over h in H of w[h] / sqrt(|H|))))

Weights are kept as integers in units of 2**-20, so the sum is exact whatever the order in which it is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from .compiled import compiled
from .files import replacing
from .words import runs_of, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

BITS = 20
BUCKETS = 1 << BITS
UNIT = 1 << 20
WINDOW = 4000  # first characters of a text that are read, as the Pile's own filter did
BATCH = 2048  # texts a step; of training, so it is part of the result
REGULARIZATION = 1e-4


@dataclass(frozen=True)
class Classifier:
    """``weights``: int32 [2**20], in units of 2**-20; ``bias`` in the same unit."""

    weights: NDArray[np.int32]
    bias: int

    def scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The probability of every text to be a curated one."""
        buckets, bounds = hashed(texts)
        running = np.concatenate([[0], np.cumsum(self.weights[buckets], dtype=np.int64)])
        sums = running[bounds[1:]] - running[bounds[:-1]]
        logits = (self.bias + sums / np.sqrt(np.maximum(np.diff(bounds), 1))) / UNIT
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))

    def save(self, path: Path) -> None:
        """Write it as one .npy file, the bias last."""
        with replacing(path) as file:
            np.save(file, np.append(self.weights, np.int32(self.bias)), allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        values = np.load(path, allow_pickle=False)
        return cls(values[:-1], int(values[-1]))


def hashed(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The buckets of every text, each once and in no order; text t has ``buckets[bounds[t] : bounds[t + 1]]``."""
    words = words_of([text[:WINDOW].lower() for text in texts])
    singles, pairs = (_bucket(hashes) for hashes in (words.hashes, runs_of(words.hashes, 2)))
    return distinct(singles, pairs, words.bounds)


def _bucket(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - BITS)).astype(np.int64)


def _distinct_by_arrays(
    singles: NDArray[np.int64], pairs: NDArray[np.int64], bounds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    text_of = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    within = text_of[1:] == text_of[:-1]
    both = np.concatenate([(text_of << BITS) | singles, ((text_of[1:] << BITS) | pairs)[within]])
    found = np.unique(both)
    return found & (BUCKETS - 1), np.searchsorted(found, np.arange(len(bounds)) << BITS)


@compiled(instead=_distinct_by_arrays)
def distinct(
    singles: NDArray[np.int64], pairs: NDArray[np.int64], bounds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct buckets of each text's words (``singles``) and of its pairs (``pairs``, by their first word)."""
    found = np.empty(2 * len(singles), np.int64)
    begins = np.empty(len(bounds), np.int64)
    last_text = np.full(BUCKETS, -1, np.int64)
    count = 0
    for text in range(len(bounds) - 1):
        begins[text] = count
        for word in range(bounds[text], bounds[text + 1]):
            if last_text[singles[word]] != text:
                last_text[singles[word]] = text
                found[count] = singles[word]
                count += 1
            if word + 1 < bounds[text + 1] and last_text[pairs[word]] != text:
                last_text[pairs[word]] = text
                found[count] = pairs[word]
                count += 1
    begins[-1] = count
    return found[:count].copy(), begins


def train(
    text_at: Callable[[NDArray[np.int64]], Sequence[str]], labels: NDArray[np.bool_], seed: int, epochs: int
) -> Classifier:
    """Fit a classifier; ``text_at`` fetches texts by number, so that they need not all be held."""
    from scipy.sparse import csr_array  # noqa: PLC0415  (seconds of import that the one training unit alone pays)
    from sklearn.linear_model import SGDClassifier  # noqa: PLC0415

    model = SGDClassifier(loss="log_loss", alpha=REGULARIZATION, average=True, random_state=seed)
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(labels))
        for begin in range(0, len(order), BATCH):
            chosen = order[begin : begin + BATCH]
            buckets, bounds = hashed(text_at(chosen))
            lengths = np.diff(bounds)
            values = np.repeat(1 / np.sqrt(np.maximum(lengths, 1)), lengths)
            features = csr_array((values, buckets.astype(np.int32), bounds.astype(np.int32)), (len(chosen), BUCKETS))
            features.sort_indices()
            model.partial_fit(features, labels[chosen], classes=np.array([False, True]))
    weights = np.rint(model.coef_[0] * UNIT).clip(-(2**31) + 1, 2**31 - 1).astype(np.int32)
    return Classifier(weights, round(float(model.intercept_[0]) * UNIT))


def area_under_curve(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> float:
    """The chance that a positive scores above a negative, ties counted half."""
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives, "left") + np.searchsorted(ordered, positives, "right")
    return float(below.mean() / 2 / len(ordered))
