"""Requests packed into rows and rows into batches, so that nothing is computed twice and nothing for padding.

A request asks for log P(answer | context). Requests with the same context share one row, and so do contexts that begin
alike (the questions of an article, a sentence with either name in its blank):

    prefix p1 .. pn | rest of context A | answer a | answer b | rest of context B | answer c | ...

The last token of an answer is predicted, never read, so an answer of one token (yes, no, True, False) adds nothing. A
token of an answer sees the prefix, the rest of its own context and its own answer, and its position counts on from its
context's end: each answer stands as if it stood alone. The rows of a batch stand in one line, without padding between
them; `packed_attention` says who sees whom. The plan depends only on the set of requests, never on their order, and a
score on its request alone (docs/decisions/0085): how requests are packed decides what a score costs, not what it is.

S tokens of the line, N scored places.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from .packed_attention import Paths, Span

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
    def requests(self) -> tuple[Request, ...]:
        """What the row answers, in its order."""
        contexts = ((self.prefix + branch.rest, branch.answers) for branch in self.branches)
        return tuple(Request(context, answer) for context, answers in contexts for answer in answers)


@dataclass(frozen=True)
class Batch:
    """What a forward pass needs: rows in one line, and the places whose next token is scored.

    ``tokens`` [S] are those of the ``spans`` and, behind them, as many of number 0 as bring S to a round number.
    ``targets[n]`` is the token behind place ``places[n]``, both [N]; both end in zeros to the same purpose.
    """

    tokens: Tensor
    spans: tuple[Span, ...]
    places: Tensor
    targets: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(self.tokens.to(device), self.spans, self.places.to(device), self.targets.to(device))

    def paths(self) -> Paths:
        """Who sees whom, at which position, and whose next token is scored."""
        return Paths.of(self.spans, len(self.tokens), self.places)


def plan(requests: Iterable[Request], longest: int, budget: int) -> list[list[Row]]:
    """Batches of rows that answer these requests, longest rows first; no row is longer than ``longest``.

    A batch reads at most ``budget`` tokens or is a single row. Every request must fit by itself: len(context) +
    len(answer) - 1 <= longest.
    """
    by_context: defaultdict[Tokens, set[Tokens]] = defaultdict(set)
    for context, answer in requests:
        by_context[context].add(answer)
    rows = [row for alike in _alike(by_context, longest) for row in _rows(alike, longest)]
    rows.sort(key=lambda row: (-row.length, row.prefix, row.branches))
    batches: list[list[Row]] = []
    room = 0
    for row in rows:
        if row.length > room:
            batches.append([])
            room = budget
        batches[-1].append(row)
        room -= row.length
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


def tensors(rows: Sequence[Row], step: int = 1) -> Batch:
    """The batch of these rows, S and N multiples of ``step``.

    Its scored places go row by row, branch by branch, answer by answer, token by token.
    """
    tokens: list[int] = []
    spans: list[Span] = []
    scored: list[tuple[int, int]] = []

    def add(part: Sequence[int], parent: int) -> int:
        spans.append(Span(len(tokens), len(part), parent))
        tokens.extend(part)
        return len(spans) - 1

    for row in rows:
        beginning = add(row.prefix, -1)
        for branch in row.branches:
            context = add(branch.rest, beginning) if branch.rest else beginning
            before = spans[context].first + spans[context].size - 1
            for answer in branch.answers:
                places = [before, *range(len(tokens), len(tokens) + len(answer) - 1)]  # each predicts its next token
                scored += zip(places, answer, strict=True)
                if len(answer) > 1:
                    add(answer[:-1], context)
    tokens += [0] * (-len(tokens) % step)
    scored += [(0, 0)] * (-len(scored) % step)
    places_N, targets_N = torch.tensor(scored).unbind(1)
    return Batch(torch.tensor(tokens), tuple(spans), places_N, targets_N)
