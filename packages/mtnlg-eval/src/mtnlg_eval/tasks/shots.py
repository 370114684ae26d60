"""Few-shot examples of a document: a random draw that depends only on (seed, task, document id).

lm-eval draws from one generator in document order, so its shots change with the number of processes and the order of
rows. This draw depends neither on those nor on the order of the pool, and the draw of K shots begins with that of one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from lm_eval.api.samplers import ContextSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .rows import Document


@dataclass(frozen=True)
class ShotChoice:
    """Which documents may be shots, and the order of their labels: the modes of the HANS study (paper.md 5.3)."""

    source: Literal["any", "other_subcases"] = "any"
    labels: Literal["drawn", "interleaved", "negative"] = "drawn"

    def admits(self, shot: Document, document: Document) -> bool:
        """Whether ``shot`` may precede ``document``; "negative" admits every label but 0."""
        if self.source == "other_subcases" and shot["subcase"] == document["subcase"]:
            return False
        return self.labels != "negative" or shot["label"] != 0


ANY_SHOT = ShotChoice()


def sample_rows(ids: Sequence[str], limit: int | None) -> list[int]:
    """Numbers of a random sample of ``limit`` rows, ascending; all if None. A smaller sample is a subset of a larger.

    Random, since published files are sorted: the first rows of HANS are of one subcase and label.
    """
    if limit is None or limit >= len(ids):
        return list(range(len(ids)))
    order = sorted(range(len(ids)), key=lambda n: sha256(ids[n].encode()).digest())
    return sorted(order[:limit])


class ShotPool:
    """Documents to draw shots from, sorted so that the order of the input does not matter."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = sorted(documents, key=lambda document: (document["group"], document["id"]))

    def draw(self, document: Document, count: int, key: str, choice: ShotChoice = ANY_SHOT) -> list[Document]:
        """Draw up to ``count`` shots, each from another group, none from the group of ``document``.

        ``key`` holds seed and task. A smaller draw is a prefix of a larger one.
        """
        shots = self._shuffled_shots(document, key, choice)
        shots = _interleave_labels(shots) if choice.labels == "interleaved" else shots
        return list(islice(shots, min(count, len(self._documents))))

    def _shuffled_shots(self, document: Document, key: str, choice: ShotChoice) -> Iterator[Document]:
        """Every admissible shot of ``document``, in random order."""
        used_groups = {document["group"]}
        for index in _shuffled_range(len(self._documents), Random(f"{key}/{document['id']}")):
            shot = self._documents[index]
            if shot["group"] not in used_groups and choice.admits(shot, document):
                used_groups.add(shot["group"])
                yield shot


def _interleave_labels(shots: Iterator[Document]) -> Iterator[Document]:
    """Reorder shots so that labels 0 and 1 alternate, beginning with the first shot's label; ends when one runs out."""
    queues: tuple[deque[Document], ...] = (deque(), deque())
    turn = -1
    while True:
        while turn < 0 or not queues[turn]:
            if (shot := next(shots, None)) is None:
                return
            queues[shot["label"]].append(shot)
            turn = shot["label"] if turn < 0 else turn
        yield queues[turn].popleft()
        turn = 1 - turn


def _shuffled_range(size: int, random: Random) -> Iterator[int]:
    """The numbers below ``size`` in random order, drawn on demand (a lazy Fisher-Yates shuffle)."""
    swapped: dict[int, int] = {}
    for index in range(size):
        drawn = random.randrange(index, size)
        yield swapped.get(drawn, drawn)
        swapped[drawn] = swapped.get(index, index)


def max_shots_that_fit(count: int, prompt_tokens: Callable[[int], int], room: int) -> int:
    """Largest number of shots, up to ``count``, with ``prompt_tokens(shots) <= room``; 0 if none fits.

    ``prompt_tokens`` must grow with the shots. Each guess is proportional to the last size, so that two or three
    prompts are tokenized, and only one if all shots fit.
    """
    fits, too_many, guess = 0, count + 1, count
    while too_many - fits > 1:
        tokens = prompt_tokens(guess)
        if tokens <= room:
            fits = guess
        else:
            too_many = guess
        guess = min(max(guess * room // max(tokens, 1), fits + 1), too_many - 1)
    return fits


class DrawnShots(ContextSampler):  # type: ignore[misc]  # lm-eval carries no types
    """lm-eval's shot sampler, returning the shots already drawn for the current document."""

    drawn: Sequence[Document] = ()

    def sample(self, n: int, *_: Any, **__: Any) -> Sequence[Document]:  # noqa: ANN401  (lm-eval's signature)
        """Return the first ``n`` drawn shots."""
        return self.drawn[:n]
