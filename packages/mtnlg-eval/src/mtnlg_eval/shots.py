"""Which examples stand before a document: drawn from (seed, task, document) and nothing else.

lm-eval draws from one generator in the order of its documents, so its shots change with the number of processes and the
order of the rows. Here the draw depends neither on these nor on the order of the pool, and the first of K shots is the
one shot.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from lm_eval.api.samplers import ContextSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .rows import Document


class Pool:
    """Documents to draw shots from, in an order of their own."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = sorted(documents, key=lambda document: (document["group"], document["id"]))

    def draw(self, document: Document, count: int, key: str) -> list[Document]:
        """At most ``count`` documents of as many groups, none of them the group of ``document``.

        ``key`` stands for seed and task. The draw for a smaller count is the beginning of that for a larger one.
        """
        taken = {document["group"]}
        drawn: list[Document] = []
        for number in _shuffled(len(self._documents), Random(f"{key}/{document['id']}")):
            if len(drawn) == count:
                break
            shot = self._documents[number]
            if shot["group"] not in taken:
                taken.add(shot["group"])
                drawn.append(shot)
        return drawn


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
