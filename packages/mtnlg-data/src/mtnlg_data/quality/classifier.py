"""A linear classifier over hashed words and word pairs: how much a text is like the curated ones.

The paper's is fastText with word 2-grams (paper.md 4.2), whose score of a text is a mean of n-gram weights under a
logistic function. Ours, with H the set of 2**20 buckets into which the words and word pairs of a text fall, and w a
weight a bucket that scikit-learn's SGD fits to the logistic loss:

    score = 1 / (1 + exp(-(b + sum over h in H of w[h] / sqrt(|H|))))

Weights are kept as integers in units of 2**-20, so the sum is exact whatever the order in which it is taken.

What scores texts, opened from a file: a classifier that was trained here, or a supervised model of fastText.

Which of the two a file is, its first bytes say. Ours is an array of integers and safe to open, whoever made it. A
fastText ``.bin`` is read by fastText's own C++, which trusts what it reads: open only one whose origin you know.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.files import replacing
from mtnlg_data.words import SEPARATOR, A, B, code_points, compiled, mixed, portions, runs_of, spans, word_characters

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
VERSION = 1  # of the features: what was learnt from others means nothing to these
SHAPE = (BUCKETS + 2,)


@dataclass(frozen=True)
class Classifier:
    """``weights``: int32 [2**20], in units of 2**-20; ``bias`` in the same unit."""

    weights: NDArray[np.int32]
    bias: int

    def scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The probability of every text to be a curated one."""
        return np.concatenate([np.empty(0), *(self._some(some) for some in portions(list(texts)))])

    def _some(self, texts: Sequence[str]) -> NDArray[np.float64]:
        buckets, bounds = hashed(texts)
        running = np.concatenate([[0], np.cumsum(self.weights[buckets], dtype=np.int64)])
        sums = running[bounds[1:]] - running[bounds[:-1]]
        logits = (self.bias + sums / np.sqrt(np.maximum(np.diff(bounds), 1))) / UNIT
        return np.asarray(1.0 / (1.0 + np.exp(-logits)))

    def save(self, path: Path) -> None:
        """Write it as one .npy file of int32: the weights, the bias, the version of the features."""
        with replacing(path) as file:
            np.save(file, np.append(self.weights, np.array([self.bias, VERSION], np.int32)), allow_pickle=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote. Raises ``Failure`` where a file is anything else; no other file is loaded."""
        try:
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                content = file.read(4 * SHAPE[0] + 1)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
        except ValueError as error:
            raise Failure(f"{path}: no classifier that quality has trained: {error}") from None
        if (shape, dtype, len(content)) != (SHAPE, np.dtype("<i4"), 4 * SHAPE[0]):
            raise Failure(f"{path}: no classifier that quality has trained: {len(content)} bytes of {dtype} {shape}")
        values = np.frombuffer(content, dtype)
        if values[-1] != VERSION:
            raise Failure(f"{path}: its features are version {values[-1]}, these are version {VERSION}; train it again")
        return cls(values[:-2], int(values[-2]))


def hashed(texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The buckets of every text, each once and in no order; text t has ``buckets[bounds[t] : bounds[t + 1]]``."""
    lowered = [text[:WINDOW].lower() for text in texts]
    lengths = np.fromiter((len(text) + 1 for text in lowered), np.int64, len(lowered))
    begins = np.concatenate([[0], np.cumsum(lengths)])
    codes = code_points(SEPARATOR.join(chain(lowered, [""])))
    return distinct(codes, word_characters(), begins, int(lengths.max(initial=1)))


def _bucket(hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (hashes >> np.uint64(64 - BITS)).astype(np.int64)


def _distinct_by_arrays(
    codes: NDArray[np.uint32], table: NDArray[np.bool_], begins: NDArray[np.int64], longest: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    del longest
    hashes, starts, _ = spans(codes, table)
    text_of = np.searchsorted(begins, starts, "right") - 1
    within = text_of[1:] == text_of[:-1]
    pairs = runs_of(hashes, 2)[within]
    both = np.concatenate([(text_of << BITS) | _bucket(hashes), (text_of[1:][within] << BITS) | _bucket(pairs)])
    found = np.unique(both)
    return (found & (BUCKETS - 1)).astype(np.int32), np.searchsorted(found, np.arange(len(begins)) << BITS)


@compiled(instead=_distinct_by_arrays)
def distinct(
    codes: NDArray[np.uint32], table: NDArray[np.bool_], begins: NDArray[np.int64], longest: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The distinct buckets of the words and word pairs of each text; text t is ``codes[begins[t] : begins[t + 1]]``.

    A text ends with a character that is part of no word; ``longest`` is the greatest length. Which buckets a text has
    had already, a table knows that is twice as large as their number can be and stays in the nearest cache.
    """
    shift, size = BITS, 1
    while size < 2 * longest and shift:
        shift, size = shift - 1, 2 * size
    seen = np.full(size, -1, np.int64)  # text and bucket; what is of earlier texts is free
    hashes = np.empty(longest, np.uint64)
    found, bounds = np.empty(len(codes), np.int32), np.zeros(len(begins), np.int64)
    count = 0
    for text in range(len(begins) - 1):
        words = 0
        total, power, inside = np.uint64(0), np.uint64(1), False
        for place in range(begins[text], begins[text + 1]):
            code = codes[place]
            if table[code]:
                total += np.uint64(code) * power
                power *= A
                inside = True
            elif inside:
                hashes[words] = mixed(total)
                words += 1
                total, power, inside = np.uint64(0), np.uint64(1), False
        for number in range(2 * words - 1):
            single = number < words
            value = hashes[number] if single else mixed(hashes[number - words] * B + hashes[number - words + 1])
            bucket = np.int64(value >> np.uint64(64 - BITS))
            mine, slot = (text << BITS) | bucket, bucket >> shift
            while seen[slot] != mine and seen[slot] >= text << BITS:
                slot = (slot + 1) & (size - 1)
            if seen[slot] != mine:
                seen[slot] = mine
                found[count] = bucket
                count += 1
        bounds[text + 1] = count
    return found[:count].copy(), bounds


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
            features = csr_array((values, buckets, bounds.astype(np.int32)), (len(chosen), BUCKETS))
            features.sort_indices()
            model.partial_fit(features, labels[chosen], classes=np.array([False, True]))
    weights = np.rint(model.coef_[0] * UNIT).clip(-(2**31) + 1, 2**31 - 1).astype(np.int32)
    return Classifier(weights, round(float(model.intercept_[0]) * UNIT))


def area_under_curve(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> float:
    """The chance that a positive scores above a negative, ties counted half."""
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives, "left") + np.searchsorted(ordered, positives, "right")
    return float(below.mean() / 2 / len(ordered))


FASTTEXT = (793712314).to_bytes(4, "little")


class Judge(Protocol):
    """Scores texts."""

    def scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The probability of every text to be a good one."""


def is_fasttext(path: Path) -> bool:
    """Whether this file is a model of fastText, not ours. Raises ``Failure`` where it is neither or cannot be read."""
    try:
        with path.open("rb") as file:
            begin = file.read(len(FASTTEXT))
    except OSError as error:
        raise Failure(
            f"{path}: {error.strerror}; quality.model is a classifier.npy of a run, or a .bin of fastText"
        ) from None
    if begin != FASTTEXT:
        Classifier.load(path)
        return False
    if find_spec("fasttext") is None:
        raise Failure(f'{path}: a model of fastText needs fastText: pip install "mtnlg-data[fasttext]"')
    return True


def judge_from(path: Path, label: str) -> Judge:
    """The judge in this file; ``label`` is that of good texts, of a fastText model alone."""
    return FastText(path, label) if is_fasttext(path) else Classifier.load(path)


class FastText:
    """A supervised model of fastText; its score is the probability that it gives to ``label``."""

    def __init__(self, path: Path, label: str) -> None:
        import fasttext  # noqa: PLC0415  (an extra)

        self._model = fasttext.load_model(str(path))
        self._label = label
        labels, _ = self._model.predict("text", k=-1)
        if label not in labels:
            raise Failure(f"{path}: has no label {label}; quality.label may be one of {', '.join(sorted(labels))}")

    def scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The probability of every text, read as one line, to have the label."""
        return np.array([self._score(text.replace("\n", " ")) for text in texts], np.float64).clip(0, 1)

    def _score(self, line: str) -> float:
        labels, chances = self._model.predict(line, k=-1)
        return float(chances[labels.index(self._label)])
