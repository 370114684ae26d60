"""Quality scorers: a linear classifier over hashed words and word pairs, trained here, or a fastText model.

The paper scores with fastText on word 2-grams (paper.md 4.2): a logistic function of the mean of n-gram weights. Here,
H is the set of buckets (of 2**20) that the words and word pairs of a text hash to, and w the weight of each bucket,
fitted to the logistic loss by averaged SGD; the weights equal those of scikit-learn's ``SGDClassifier``:

    score = 1 / (1 + exp(-(b + sum over h in H of w[h] / sqrt(|H|))))

Weights are integers in units of 2**-20, so the sum is exact in any order.

The first bytes of a model file identify its kind. A classifier trained here is an array of integers, safe to open from
any origin. A fastText ``.bin`` is parsed by fastText's C++, which trusts its input: open only files whose origin you
know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.extract.language import load_fasttext
from mtnlg_data.files import atomic_open, open_regular
from mtnlg_data.text.arrays import join_texts, text_batches
from mtnlg_data.text.characters import character_kinds
from mtnlg_data.text.compiled import jit
from mtnlg_data.text.hashing import WORD_BASE, fmix64_scalar
from mtnlg_data.text.words import hash_words
from mtnlg_data.transfer.url_files import read_beginning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mtnlg_data.array_types import Bools, Float64s, Int32s, Int64s, UInt8s, UInt32s


BUCKET_BITS = 20
BUCKETS = 1 << BUCKET_BITS
WEIGHT_SCALE = 1 << 20
CLASSIFIED_CHARACTERS = 4000  # only this prefix of a text is read, as in the Pile's own filter
BATCH_TEXTS = 2048  # per SGD step, so it affects the trained weights
REGULARIZATION = 1e-4
FIRST_STEP = 1 / (10 * REGULARIZATION)  # t_0, for a first rate of 10
BIAS_RATE = 0.01  # of the weights' rate
MAX_SEED = (1 << 31) - 1
FEATURE_VERSION = 3  # weights are valid only for the features they were trained on
FILE_SHAPE = (BUCKETS + 2,)
HINT = "quality.model must be a classifier.npy of another run or a fastText .bin"
FASTTEXT_MAGIC = (793712314).to_bytes(4, "little")


def open_scorer(path: Path, label: str) -> FastTextScorer | Classifier:
    """Open a model file; ``label`` is the label of good texts in a fastText model. Raises ``Failure`` for others."""
    try:
        magic = read_beginning(path, len(FASTTEXT_MAGIC))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; {HINT}") from None
    return FastTextScorer(path, label) if magic == FASTTEXT_MAGIC else Classifier.load(path)


class FastTextScorer:
    """A supervised fastText model; the score is its probability of ``label``."""

    def __init__(self, path: Path, label: str) -> None:
        self._model = load_fasttext(path, HINT)
        self._label = label
        labels, _ = self._model.predict("text", k=-1, threshold=-1.0)
        if label not in labels:
            raise Failure(f"{path}: has no label {label}; set quality.label to one of {', '.join(sorted(labels))}")

    def scores(self, texts: Sequence[str]) -> Float64s:
        """Probability of the label for each text, read as one line."""
        return np.array([self._score(text.replace("\n", " ")) for text in texts], np.float64).clip(0, 1)

    def _score(self, line: str) -> float:
        labels, probabilities = self._model.predict(line, k=-1, threshold=-1.0)  # 0 leaves out labels under 1e-5
        return float(probabilities[labels.index(self._label)])


@dataclass(frozen=True)
class Classifier:
    """Linear classifier: ``weights`` int32 [2**20] and ``bias``, both in units of 2**-20."""

    weights: Int32s
    bias: int

    def scores(self, texts: Sequence[str]) -> Float64s:
        """Probability of each text coming from a curated source."""
        return np.concatenate([np.empty(0), *(self._score_batch(batch) for batch in text_batches(list(texts)))])

    def _score_batch(self, texts: Sequence[str]) -> Float64s:
        buckets, bounds = hash_features(texts)
        cumulative = np.concatenate([[0], np.cumsum(self.weights[buckets], dtype=np.int64)])
        sums = cumulative[bounds[1:]] - cumulative[bounds[:-1]]
        logits = (self.bias + sums / np.sqrt(np.maximum(np.diff(bounds), 1))) / WEIGHT_SCALE
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))

    def save(self, path: Path) -> None:
        """Write one .npy file of int32: the weights, the bias, the feature version."""
        with atomic_open(path) as file:
            np.save(file, np.append(self.weights, np.array([self.bias, FEATURE_VERSION], np.int32)), allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote. Raises ``Failure`` for any other file, without loading it."""
        try:
            with open_regular(path, follow=True) as file:
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                content = file.read(4 * FILE_SHAPE[0] + 1)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise Failure(f"{path}: not a classifier trained by quality: {error}") from None
        if (shape, dtype, len(content)) != (FILE_SHAPE, np.dtype("<i4"), 4 * FILE_SHAPE[0]):
            raise Failure(f"{path}: not a classifier trained by quality: {len(content)} bytes of {dtype} {shape}")
        values = np.frombuffer(content, dtype)
        if values[-1] != FEATURE_VERSION:
            raise Failure(f"{path}: trained on features of version {values[-1]}, not {FEATURE_VERSION}; train it again")
        return cls(values[:-2], int(values[-2]))


def hash_features(texts: Sequence[str]) -> tuple[Int32s, Int64s]:
    """Distinct buckets of each text, unordered, and bounds: text t has ``buckets[bounds[t] : bounds[t + 1]]``."""
    lowered = [text[:CLASSIFIED_CHARACTERS].lower() for text in texts]
    codes, bounds = join_texts([*lowered, ""])  # each ends with a separator
    return distinct_buckets(codes, character_kinds(), bounds[:-1], int(np.diff(bounds).max()))


@jit
def distinct_buckets(codes: UInt32s, kinds: UInt8s, text_bounds: Int64s, longest: int) -> tuple[Int32s, Int64s]:
    """Distinct buckets of the words and word pairs of each text ``codes[text_bounds[t] : text_bounds[t + 1]]``.

    Every text ends with a non-word character; ``longest`` is the length of the longest. An open-addressing table, with
    twice as many slots as a text can have buckets and small enough for the innermost cache, holds the buckets seen so
    far.
    """
    shift, size = BUCKET_BITS, 1
    while size < 4 * longest and shift:
        shift, size = shift - 1, 2 * size
    seen = np.full(size, -1, np.int64)  # text and bucket; entries of earlier texts count as free
    hashes, starts, ends = np.empty(longest, np.uint64), np.empty(longest, np.int64), np.empty(longest, np.int64)
    buckets, bounds = np.empty(2 * len(codes), np.int32), np.zeros(len(text_bounds), np.int64)
    count = 0
    for text in range(len(text_bounds) - 1):
        words = hash_words(codes, text_bounds[text], text_bounds[text + 1], kinds, hashes, starts, ends)
        for number in range(2 * words - 1):  # the words, then the word pairs
            if number < words:
                value = hashes[number]
            else:
                value = fmix64_scalar(hashes[number - words] * WORD_BASE + hashes[number - words + 1])
            bucket = np.int64(value >> np.uint64(64 - BUCKET_BITS))
            entry, slot = (text << BUCKET_BITS) | bucket, bucket >> shift
            while seen[slot] != entry and seen[slot] >= text << BUCKET_BITS:
                slot = (slot + 1) & (size - 1)
            if seen[slot] != entry:
                seen[slot] = entry
                buckets[count] = bucket
                count += 1
        bounds[text + 1] = count
    return buckets[:count].copy(), bounds


def fit_classifier(text_at: Callable[[Int64s], Sequence[str]], labels: Bools, seed: int, epochs: int) -> Classifier:
    """Fit a classifier by SGD; ``text_at`` fetches texts by index, so that they need not all be in memory."""
    weights, means, state = np.zeros(BUCKETS), np.zeros(BUCKETS), np.array([0.0, 1.0])
    draw = np.random.RandomState(seed)
    draw.randint(1, MAX_SEED)  # which scikit-learn draws first
    shuffle = draw.randint(MAX_SEED)
    for epoch in range(epochs):
        order = np.random.default_rng([seed, epoch]).permutation(len(labels))
        for begin in range(0, len(order), BATCH_TEXTS):
            batch = order[begin : begin + BATCH_TEXTS]
            _descend(weights, means, state, *hash_features(text_at(batch)), labels[batch].astype(np.float64), shuffle)
    integers = np.rint(means * WEIGHT_SCALE).clip(-(2**31) + 1, 2**31 - 1).astype(np.int32)
    return Classifier(integers, round(float(state[0]) * WEIGHT_SCALE))


@jit
def _descend(  # noqa: PLR0917  (numba takes no keywords)
    weights: Float64s,
    means: Float64s,
    state: Float64s,
    buckets: Int32s,
    bounds: Int64s,
    labels: Float64s,
    seed: int,
) -> None:
    """Move weights and their means by one pass over a batch; ``state`` has the mean bias and the step's number.

    Operations are in the same order as in scikit-learn 1.9, so that results are equal: its shuffle, its step of 1 /
    (alpha (t + t_0)), its decay by a common factor, and its sums for the mean (Bottou 2012, Stochastic Gradient Descent
    Tricks).
    """
    (mean_bias, step), bias = state, 0.0  # of every batch, as in ``partial_fit``
    order = np.arange(len(labels))
    scale, kept, grown = 1.0, 0.0, 1.0  # of the weights; what their means lack of them, and were divided by
    for turn in range(len(labels)):
        if turn < len(labels) - 1:
            seed ^= seed << 13 & 0xFFFFFFFF
            seed ^= seed >> 17
            seed ^= seed << 5 & 0xFFFFFFFF
            other = turn + (seed & 0x7FFFFFFF) % (len(labels) - turn)
            order[turn], order[other] = order[other], order[turn]
        text = order[turn]
        own = np.sort(buckets[bounds[text] : bounds[text + 1]])
        value, label, total = 1 / np.sqrt(max(1, len(own))), labels[text], 0.0
        for bucket in own:
            total += weights[bucket] * value
        odds = np.exp(min(-(total * scale + bias), 37.0))  # beyond it the slope is that of 37 to the last bit
        rate = 1.0 / (REGULARIZATION * (FIRST_STEP + step - 1))
        update = -rate * (((1 - label) - label * odds) / (1 + odds))
        scale *= 1.0 - rate * REGULARIZATION
        for bucket in own:
            weights[bucket] += value * (update / scale)
            means[bucket] += kept * value * (-update / scale)
        bias += update * BIAS_RATE
        if step > 1:
            grown /= 1.0 - 1.0 / step
        kept += 1.0 / step * grown * scale
        mean_bias += (bias - mean_bias) / step
        step += 1
    for bucket in range(len(weights)):
        means[bucket] = (means[bucket] + kept * weights[bucket]) * (1.0 / grown)
        weights[bucket] *= scale
    state[:] = mean_bias, step


def roc_auc(positives: Float64s, negatives: Float64s) -> float:
    """Area under the ROC curve: the probability that a positive scores above a negative, ties counted half."""
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives, "left") + np.searchsorted(ordered, positives, "right")
    return float(below.mean() / 2 / len(ordered))
