"""Which examples stand before a document: drawn from (seed, task, document) and nothing else.

lm-eval draws from one generator in the order of its documents, so its shots change with the number of processes and the
order of the rows. Here the draw depends neither on these nor on the order of the pool, and the first of K shots is the
one shot.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from lm_eval.api.samplers import ContextSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .rows import Document


@dataclass(frozen=True)
class Choice:
    """Which documents may be shots and in which order their labels come: the modes of the HANS study (paper.md 5.3)."""

    source: Literal["any", "other_subcases"] = "any"
    labels: Literal["drawn", "interleaved", "negative"] = "drawn"

    def admits(self, shot: Document, document: Document) -> bool:
        """Whether ``shot`` may stand before ``document``; negative is every label but the first, 0."""
        if self.source == "other_subcases" and shot["subcase"] == document["subcase"]:
            return False
        return self.labels != "negative" or shot["label"] != 0


ANY = Choice()


class Pool:
    """Documents to draw shots from, in an order of their own."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = sorted(documents, key=lambda document: (document["group"], document["id"]))

    def draw(self, document: Document, count: int, key: str, choice: Choice = ANY) -> list[Document]:
        """At most ``count`` documents of as many groups, none of them the group of ``document``.

        ``key`` stands for seed and task. The draw for a smaller count is the beginning of that for a larger one.
        """
        admitted = self._admitted(document, key, choice)
        return list(islice(_interleaved(admitted) if choice.labels == "interleaved" else admitted, count))

    def _admitted(self, document: Document, key: str, choice: Choice) -> Iterator[Document]:
        """All that may be shots of ``document``, in the order of its own draw."""
        taken = {document["group"]}
        for number in _shuffled(len(self._documents), Random(f"{key}/{document['id']}")):
            shot = self._documents[number]
            if shot["group"] not in taken and choice.admits(shot, document):
                taken.add(shot["group"])
                yield shot


def _interleaved(shots: Iterator[Document]) -> Iterator[Document]:
    """The shots with their labels by turns, each turn the first one left of its label; two labels, 0 and 1."""
    waiting: tuple[deque[Document], ...] = (deque(), deque())
    turn = -1
    while True:
        while turn < 0 or not waiting[turn]:
            if (shot := next(shots, None)) is None:
                return
            waiting[shot["label"]].append(shot)
            turn = shot["label"] if turn < 0 else turn
        yield waiting[turn].popleft()
        turn = 1 - turn


def _shuffled(size: int, random: Random) -> Iterator[int]:
    """The numbers below ``size`` in random order, each found when it is asked for (a lazy Fisher-Yates shuffle)."""
    moved: dict[int, int] = {}
    for place in range(size):
        other = random.randrange(place, size)
        yield moved.get(other, other)
        moved[other] = moved.get(place, place)


def most_that_fit(count: int, size: Callable[[int], int], room: int) -> int:
    """The largest number of shots up to ``count`` whose prompt has a ``size`` of at most ``room``; 0 where none has.

    A prompt grows with its shots. Each guess is in proportion to the last one's size, so that two or three prompts are
    tokenized, and one alone where all shots fit.
    """
    fits, too_many, guess = 0, count + 1, count
    while too_many - fits > 1:
        told = size(guess)
        if told <= room:
            fits = guess
        else:
            too_many = guess
        guess = min(max(guess * room // max(told, 1), fits + 1), too_many - 1)
    return fits


class DrawnShots(ContextSampler):  # type: ignore[misc]  # lm-eval carries no types
    """The sampler that lm-eval asks for shots: it gives what has been drawn for the document at hand."""

    drawn: Sequence[Document] = ()

    def sample(self, n: int, *_: Any, **__: Any) -> Sequence[Document]:  # noqa: ANN401  (lm-eval's signature)
        """The first ``n`` of the drawn shots."""
        return self.drawn[:n]
