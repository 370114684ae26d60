"""Requests packed into rows and rows into batches, so that nothing is computed twice and little for padding.

A request asks for log P(answer | context). Requests with the same context share one row, and so do contexts that begin
alike (the questions of an article, a sentence with either name in its blank):

    prefix p1 .. pn | rest of context A | answer a | answer b | rest of context B | answer c | ...

The last token of an answer is predicted, never read, so an answer of one token (yes, no, True, False) adds nothing. A
token of an answer sees the prefix, the rest of its own context and its own answer, and its position counts on from its
context's end: each answer stands as if it stood alone. Rows go into batches by length, as many as keep rows x longest
within a budget of tokens. The plan depends only on the set of requests, never on their order.

B batch, S sequence, N scored places.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    Tokens = tuple[int, ...]


LEAST_SHARED = 8
"""Tokens that two contexts must have in common to share a row."""


class Request(NamedTuple):
    """log P(answer | context) in tokens, both at least one token long."""

    context: Tokens
    answer: Tokens


class Branch(NamedTuple):
    """What one context has behind the row's prefix, and its answers."""

    rest: Tokens
    answers: tuple[Tokens, ...]

    @property
    def length(self) -> int:
        """Tokens that it adds to the row."""
        return len(self.rest) + sum(len(answer) - 1 for answer in self.answers)


@dataclass(frozen=True)
class Row:
    """Contexts that begin alike, and the answers behind each."""

    prefix: Tokens
    branches: tuple[Branch, ...]

    @property
    def length(self) -> int:
        """Tokens that are read."""
        return len(self.prefix) + sum(branch.length for branch in self.branches)

    @property
    def packed(self) -> bool:
        """Whether causal attention alone would let a token see what is not before it."""
        return len(self.branches) > 1 or sum(len(answer) > 1 for answer in self.branches[0].answers) > 1

    @property
    def requests(self) -> tuple[Request, ...]:
        """What the row answers, in its order."""
        contexts = ((self.prefix + branch.rest, branch.answers) for branch in self.branches)
        return tuple(Request(context, answer) for context, answers in contexts for answer in answers)


class Places(NamedTuple):
    """Where the tokens of packed rows stand, each [B, S].

    ``positions`` count along each token's own path; ``branches`` and ``owners`` hold the number of its branch and of
    its answer within the row, 0 for what is in none.
    """

    positions: Tensor
    branches: Tensor
    owners: Tensor

    def mask(self) -> Tensor:
        """Boolean [B, 1, S, S], true where a token may look: before it, and on its own path."""
        size = self.owners.shape[1]
        sees = torch.ones(size, size, dtype=torch.bool, device=self.owners.device).tril()[None]
        for marks_BS in (self.branches, self.owners):
            key_B1S = marks_BS[:, None, :]
            sees = sees & ((key_B1S == 0) | (key_B1S == marks_BS[:, :, None]))
        return sees[:, None]


@dataclass(frozen=True)
class Batch:
    """What a forward pass needs: rows flush left, padded with token 0, and the places whose next token is scored.

    ``tokens`` [B, S]; ``packed`` is None where rows count from 0 and causal attention will do. ``targets[n]`` is the
    token behind place ``places[n]`` of row ``rows[n]``, all three [N].
    """

    tokens: Tensor
    packed: Places | None
    rows: Tensor
    places: Tensor
    targets: Tensor

    @property
    def positions(self) -> Tensor | None:
        """[B, S], or None where rows count from 0."""
        return self.packed.positions if self.packed else None

    @property
    def mask(self) -> Tensor | None:
        """Boolean [B, 1, S, S], true where a token may look; None for causal attention."""
        return self.packed.mask() if self.packed else None

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        tokens, rows, places, targets = (x.to(device) for x in (self.tokens, self.rows, self.places, self.targets))
        return Batch(tokens, self.packed and Places(*(x.to(device) for x in self.packed)), rows, places, targets)


def plan(requests: Iterable[Request], longest: int, budget: int) -> list[list[Row]]:
    """Batches of rows that answer these requests, longest rows first; no row is longer than ``longest``.

    A batch reads at most ``budget`` tokens, padding included, or is a single row. Every request must fit by itself:
    len(context) + len(answer) - 1 <= longest.
    """
    by_context: defaultdict[Tokens, set[Tokens]] = defaultdict(set)
    for context, answer in requests:
        by_context[context].add(answer)
    rows = [row for alike in _alike(by_context, longest) for row in _rows(alike, longest)]
    rows.sort(key=lambda row: (-row.length, row.prefix, row.branches))
    batches: list[list[Row]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * batches[-1][0].length <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def _alike(by_context: Mapping[Tokens, set[Tokens]], longest: int) -> Iterator[list[tuple[Tokens, list[Tokens]]]]:
    """Contexts with their answers, together where they begin alike and fit one row.

    In the order of their tokens those that begin alike are neighbours. One more is taken in while at least half of the
    prefix so far is its as well.
    """
    group: list[tuple[Tokens, list[Tokens]]] = []
    shared = length = 0
    for context in sorted(by_context):
        answers = sorted(by_context[context])
        added = Branch(context, tuple(answers)).length
        common = _common(group[0][0], context, shared) if group else 0
        joined = length + (shared - common) * (len(group) - 1) + added - common if group else added
        if group and common >= max(LEAST_SHARED, shared // 2) and joined <= longest:
            group.append((context, answers))
            shared, length = common, joined
        else:
            if group:
                yield group
            group, shared, length = [(context, answers)], len(context), added
    if group:
        yield group


def _common(one: Tokens, other: Tokens, most: int) -> int:
    """How many of the first ``most`` tokens are the same."""
    limit = min(most, len(one), len(other))
    return next((n for n in range(limit) if one[n] != other[n]), limit)


def _rows(alike: Sequence[tuple[Tokens, Sequence[Tokens]]], longest: int) -> list[Row]:
    """One row for contexts that fit it together; for a single one as many as its answers need."""
    if len(alike) > 1:
        first = alike[0][0]
        shared = min(_common(first, context, len(first)) for context, _ in alike[1:])
        branches = (Branch(context[shared:], tuple(answers)) for context, answers in alike)
        return [Row(first[:shared], tuple(branches))]
    ((context, answers),) = alike
    parts: list[list[Tokens]] = []
    room = 0
    for answer in answers:
        if not parts or len(answer) - 1 > room:
            parts.append([])
            room = longest - len(context)
        parts[-1].append(answer)
        room -= len(answer) - 1
    return [Row(context, (Branch((), tuple(part)),)) for part in parts]


def tensors(rows: Sequence[Row]) -> Batch:
    """The batch of these rows; its scored places go row by row, branch by branch, answer by answer, token by token."""
    laid = [_laid(row) for row in rows]
    width = max(row.length for row in rows)
    padded = [[column + [0] * (width - len(column)) for column in columns] for columns, _ in laid]
    tokens, positions, branches, owners = (torch.tensor(column) for column in zip(*padded, strict=True))
    scored = [(number, place, token) for number, (_, places) in enumerate(laid) for place, token in places]
    rows_N, places_N, targets_N = torch.tensor(scored).unbind(1)
    packed = Places(positions, branches, owners) if any(row.packed for row in rows) else None
    return Batch(tokens, packed, rows_N, places_N, targets_N)


def _laid(row: Row) -> tuple[tuple[list[int], list[int], list[int], list[int]], list[tuple[int, int]]]:
    """Tokens, positions, branches and owners of a row, and its scored places, each with the token behind it."""
    tokens, positions = list(row.prefix), list(range(len(row.prefix)))
    branches, owners = [0] * len(row.prefix), [0] * len(row.prefix)
    scored: list[tuple[int, int]] = []
    answer_number = 0

    def add(part: Sequence[int], start: int, branch: int, owner: int) -> None:
        tokens.extend(part)
        positions.extend(range(start, start + len(part)))
        branches.extend([branch] * len(part))
        owners.extend([owner] * len(part))

    for number, branch in enumerate(row.branches, start=1):
        branch_number = number if branch.rest else 0
        add(branch.rest, len(row.prefix), branch_number, 0)
        before, depth = len(tokens) - 1 if branch.rest else len(row.prefix) - 1, len(row.prefix) + len(branch.rest)
        for answer in branch.answers:
            answer_number += 1
            first = len(tokens)
            places = [before, *range(first, first + len(answer) - 1)]  # each predicts its next token
            scored += zip(places, answer, strict=True)
            add(answer[:-1], depth, branch_number, answer_number)
    return (tokens, positions, branches, owners), scored
