"""Requests packed into rows and rows into batches, so that nothing is computed twice and little for padding.

A request asks for log P(answer | context). Requests with the same context share one row:

    context c1 .. cn | answer a1 .. | answer b1 .. | ...        the last token of an answer is predicted, never read

A token of an answer sees the context and its own answer, and its position counts on from the context's end, so each
answer stands as if it stood alone. An answer of one token (yes, no, True, False) adds nothing to the row. Rows go into
batches by length, as many as keep rows x longest within a budget of tokens. The plan depends only on the set of
requests, never on their order.

B batch, S sequence, N scored places.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    Tokens = tuple[int, ...]


class Request(NamedTuple):
    """log P(answer | context) in tokens, both at least one token long."""

    context: Tokens
    answer: Tokens


@dataclass(frozen=True)
class Row:
    """A context and the answers that stand behind it."""

    context: Tokens
    answers: tuple[Tokens, ...]

    @property
    def length(self) -> int:
        """Tokens that are read."""
        return len(self.context) + sum(len(answer) - 1 for answer in self.answers)

    @property
    def packed(self) -> bool:
        """Whether causal attention alone would let an answer see another one."""
        return sum(len(answer) > 1 for answer in self.answers) > 1

    @property
    def requests(self) -> tuple[Request, ...]:
        """What the row answers, in its order."""
        return tuple(Request(self.context, answer) for answer in self.answers)


@dataclass(frozen=True)
class Batch:
    """What a forward pass needs: rows flush left, padded with token 0, and the places whose next token is scored.

    ``tokens`` [B, S]; ``positions`` [B, S] and ``owners`` [B, S], 0 for the context and the number of its answer for
    every other token, are None where rows count from 0 and causal attention will do. ``targets[n]`` is the token behind
    place ``places[n]`` of row ``rows[n]``, all three [N].
    """

    tokens: Tensor
    positions: Tensor | None
    owners: Tensor | None
    rows: Tensor
    places: Tensor
    targets: Tensor

    @property
    def mask(self) -> Tensor | None:
        """Boolean [B, 1, S, S], true where a token may look: causal, and only into the context and its own answer."""
        if self.owners is None:
            return None
        query_BS1, key_B1S = self.owners[:, :, None], self.owners[:, None, :]
        causal_SS = torch.ones(2 * self.owners.shape[1:], dtype=torch.bool, device=self.owners.device).tril()
        return (((key_B1S == 0) | (key_B1S == query_BS1)) & causal_SS)[:, None]

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        here: dict[str, Any] = {}
        for field in fields(self):
            held = getattr(self, field.name)
            here[field.name] = None if held is None else held.to(device)
        return Batch(**here)


def plan(requests: Iterable[Request], longest: int, budget: int) -> list[list[Row]]:
    """Batches of rows that answer these requests, longest rows first; no row is longer than ``longest``.

    A batch reads at most ``budget`` tokens, padding included, or is a single row. Every request must fit by itself:
    len(context) + len(answer) - 1 <= longest.
    """
    by_context: defaultdict[Tokens, set[Tokens]] = defaultdict(set)
    for context, answer in requests:
        by_context[context].add(answer)
    rows = [row for context, answers in by_context.items() for row in _rows(context, sorted(answers), longest)]
    rows.sort(key=lambda row: (-row.length, row.context, row.answers))
    batches: list[list[Row]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * batches[-1][0].length <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _rows(context: Tokens, answers: Sequence[Tokens], longest: int) -> list[Row]:
    """Rows for one context, as few as keep within ``longest``."""
    rows: list[list[Tokens]] = []
    room = 0
    for answer in answers:
        if not rows or len(answer) - 1 > room:
            rows.append([])
            room = longest - len(context)
        rows[-1].append(answer)
        room -= len(answer) - 1
    return [Row(context, tuple(row)) for row in rows]


def tensors(rows: Sequence[Row]) -> Batch:
    """The batch of these rows; its scored places go row by row, answer by answer, token by token."""
    width = max(row.length for row in rows)
    tokens, positions, owners, scored = [], [], [], []
    for number, row in enumerate(rows):
        read, places, owner = list(row.context), list(range(len(row.context))), [0] * len(row.context)
        for answer_number, answer in enumerate(row.answers, start=1):
            first = len(read)
            last = [len(row.context) - 1, *range(first, first + len(answer) - 1)]  # each predicts its next token
            scored += [(number, place, token) for place, token in zip(last, answer, strict=True)]
            read += answer[:-1]
            places += range(len(row.context), len(row.context) + len(answer) - 1)
            owner += [answer_number] * (len(answer) - 1)
        padding = [0] * (width - len(read))
        tokens.append(read + padding)
        positions.append(places + padding)
        owners.append(owner + padding)
    rows_N, places_N, targets_N = torch.tensor(scored).unbind(1)
    packed = any(row.packed for row in rows)
    return Batch(
        tokens=torch.tensor(tokens),
        positions=torch.tensor(positions) if packed else None,
        owners=torch.tensor(owners) if packed else None,
        rows=rows_N,
        places=places_N,
        targets=targets_N,
    )
