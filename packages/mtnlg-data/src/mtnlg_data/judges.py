"""What scores texts, opened from a file: a classifier that was trained here, or a supervised model of fastText.

Which of the two a file is, its first bytes say. Ours is an array of integers and safe to open, whoever made it. A
fastText ``.bin`` is read by fastText's own C++, which trusts what it reads: open only one whose origin you know.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .classifier import Classifier
from .console import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

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
