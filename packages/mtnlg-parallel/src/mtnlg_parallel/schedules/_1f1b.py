"""1F1B (Narayanan et al. 2021, section 2.2.1): a rank begins with just enough forward passes to fill the time until its
first backward pass, then alternates.

Micro-batches are scheduled in groups as large as the number of ranks; the last group may be smaller. Idle time of a
rank as a share of its work, for m micro-batches over p ranks with v chunks: (p - 1) / (v m).
"""

from __future__ import annotations

from typing import ClassVar

from .schedule import Action, Order, Schedule


class OneForwardOneBackward(Schedule):
    """1F1B with one part of the decoder per rank or, in schedules that build on it, several."""

    help = (
        "alternates forward and backward passes, so no stage holds more micro-batches than there are stages. MT-NLG "
        "was trained with it."
    )
    most_chunks: ClassVar[int | None] = 1
    widespread = True

    def orders(self, ranks: int, chunks: int, micro_batches: int) -> tuple[Order, ...]:
        """Every rank's actions in one step."""
        whole_groups = micro_batches if chunks == 1 else -(-micro_batches // ranks) * ranks
        every = (_one_forward_one_backward(rank, ranks, chunks, whole_groups) for rank in range(ranks))
        return tuple(tuple(action for action in order if action.micro_batch < micro_batches) for order in every)

    def in_flight(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> int:
        """The initial forward passes and one more: a closed form of `orders`, since a search calls it often."""
        return min(_ahead(rank, ranks, chunks) + 1, micro_batches * chunks)


def _ahead(rank: int, ranks: int, chunks: int) -> int:
    """Number of forward passes with which a rank begins."""
    behind = ranks - 1 - rank
    return behind if chunks == 1 else 2 * behind + (chunks - 1) * ranks


def _one_forward_one_backward(rank: int, ranks: int, chunks: int, micro_batches: int) -> list[Action]:
    groups = [range(first, min(first + ranks, micro_batches)) for first in range(0, micro_batches, ranks)]
    forwards = [Action("forward", number, chunk) for g in groups for chunk in range(chunks) for number in g]
    backwards = [Action("backward", number, chunk) for g in groups for chunk in reversed(range(chunks)) for number in g]
    ahead = min(len(forwards), _ahead(rank, ranks, chunks))
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


SCHEDULE = OneForwardOneBackward()
