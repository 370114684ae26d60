"""Packs loglikelihood requests into batches: shared prefixes are computed once, and rows are not padded.

A request asks for log P(answer | context). Requests with one context share a packed row, and so do contexts with a
common prefix (the questions of an article, a sentence with either name in its blank):

    prefix p1 .. pn | rest of context A | answer a | answer b | rest of context B | answer c | ...

The last token of an answer is predicted, never read, so a one-token answer (yes, no, True, False) adds nothing. An
answer token attends to the prefix, the rest of its own context and its own answer, and its position continues that
context: each answer is scored as if it were alone. The rows of a batch are concatenated into one packed sequence;
`packed_attention` keeps them apart. The plan depends on the set of requests, not on their order, and a score only on
its request (docs/decisions/0085): packing affects the cost of a score, not its value.

S tokens of the packed sequence, N scored positions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch

from .packed_attention import Span, plan_attention

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from .packed_attention import PackedAttention

    Tokens = tuple[int, ...]


MIN_SHARED_PREFIX = 8
"""Tokens that two contexts must have in common to share a row."""


class Request(NamedTuple):
    """log P(answer | context) in tokens, both at least one token long."""

    context: Tokens
    answer: Tokens


class Branch(NamedTuple):
    """The tokens that one context adds to the row's prefix, and its answers."""

    rest: Tokens
    answers: tuple[Tokens, ...]

    @property
    def length(self) -> int:
        """Tokens added to the row."""
        return len(self.rest) + sum(len(answer) - 1 for answer in self.answers)


@dataclass(frozen=True)
class Row:
    """Contexts with a common prefix, and the answers to each."""

    prefix: Tokens
    branches: tuple[Branch, ...]

    @cached_property
    def length(self) -> int:
        """Tokens read by the model."""
        return len(self.prefix) + sum(branch.length for branch in self.branches)

    @property
    def requests(self) -> tuple[Request, ...]:
        """Requests answered by the row, in order."""
        contexts = ((self.prefix + branch.rest, branch.answers) for branch in self.branches)
        return tuple(Request(context, answer) for context, answers in contexts for answer in answers)


@dataclass(frozen=True)
class Batch:
    """Input of a forward pass, on the host: one packed sequence, and the positions with a next token to score.

    ``tokens`` [S] are those of the ``spans``, padded with zeros to a multiple. ``targets[n]`` is the token that follows
    position ``scored[n]`` of the packed sequence; both [N] are padded with zeros to a multiple.
    """

    tokens: Tensor
    spans: tuple[Span, ...]
    scored: Tensor
    targets: Tensor

    def attention(self, device: torch.device, layers: int) -> tuple[Tensor, list[PackedAttention]]:
        """Position ids, and each layer's attention within each text of the packed sequence, on ``device``."""
        return plan_attention(self.spans, len(self.tokens), self.scored, device, layers)


def plan_rows(requests: Iterable[Request], max_length: int, longest_short_text: int | None = None) -> list[Row]:
    """Plan rows of at most ``max_length`` tokens that answer these requests, longest rows first.

    A request that reads more than ``longest_short_text`` tokens shares no row with one that does not, since a decoder
    with this setting has other rotary positions for it (`ModelConfig.longest_short_text`).
    Every request must fit by itself: len(context) + len(answer) - 1 <= max_length.
    """
    alike: tuple[defaultdict[Tokens, set[Tokens]], ...] = (defaultdict(set), defaultdict(set))
    for context, answer in requests:
        is_long = len(context) + len(answer) - 1 > (longest_short_text or max_length)
        alike[is_long][context].add(answer)
    groups = (group for by_context in alike for group in _group_by_prefix(by_context, max_length))
    rows = [row for group in groups for row in _rows(group, max_length)]
    return sorted(rows, key=lambda row: (-row.length, row.prefix, row.branches))


def take_batch(rows: deque[Row], budget: int) -> list[Row]:
    """Take the first rows of at most ``budget`` tokens in all, or a single row; [] if there are none."""
    batch: list[Row] = []
    while rows and (not batch or rows[0].length <= budget):
        batch.append(rows.popleft())
        budget -= batch[-1].length
    return batch


def _group_by_prefix(
    answers_by_context: Mapping[Tokens, set[Tokens]], max_length: int
) -> Iterator[list[tuple[Tokens, list[Tokens]]]]:
    """Contexts with their answers, grouped if they share a prefix and fit one row.

    Contexts with a common prefix are neighbours in token order. The next context joins the group if it shares at least
    half of the group's prefix so far.
    """
    group: list[tuple[Tokens, list[Tokens]]] = []
    shared = length = 0
    for context in sorted(answers_by_context):
        answers = sorted(answers_by_context[context])
        added = Branch(context, tuple(answers)).length
        common = _common_prefix(group[0][0], context, shared) if group else 0
        joined = length + (shared - common) * (len(group) - 1) + added - common if group else added
        if group and common >= max(MIN_SHARED_PREFIX, shared // 2) and joined <= max_length:
            group.append((context, answers))
            shared, length = common, joined
        else:
            if group:
                yield group
            group, shared, length = [(context, answers)], len(context), added
    if group:
        yield group


def _common_prefix(a: Tokens, b: Tokens, longest: int) -> int:
    """Length of the common prefix, up to ``longest``."""
    limit = min(longest, len(a), len(b))
    return next((n for n in range(limit) if a[n] != b[n]), limit)


def _rows(group: Sequence[tuple[Tokens, Sequence[Tokens]]], max_length: int) -> list[Row]:
    """One row for a group of contexts; for a single context as many rows as its answers need."""
    if len(group) > 1:
        first = group[0][0]
        shared = min(_common_prefix(first, context, len(first)) for context, _ in group[1:])
        branches = (Branch(context[shared:], tuple(answers)) for context, answers in group)
        return [Row(first[:shared], tuple(branches))]
    ((context, answers),) = group
    parts: list[list[Tokens]] = []
    room = 0
    for answer in answers:
        if not parts or len(answer) - 1 > room:
            parts.append([])
            room = max_length - len(context)
        parts[-1].append(answer)
        room -= len(answer) - 1
    return [Row(context, (Branch((), tuple(part)),)) for part in parts]


def pack_rows(rows: Sequence[Row], multiple: int = 1) -> Batch:
    """Concatenate rows into a batch, with S and N padded to a multiple of ``multiple``.

    Scored positions are ordered by row, branch, answer and token.
    """
    tokens: list[int] = []
    spans: list[Span] = []
    scored: list[tuple[int, int]] = []

    def add_span(part: Sequence[int], parent: int) -> int:
        spans.append(Span(len(tokens), len(part), parent))
        tokens.extend(part)
        return len(spans) - 1

    for row in rows:
        prefix = add_span(row.prefix, -1)
        for branch in row.branches:
            context = add_span(branch.rest, prefix) if branch.rest else prefix
            context_end = spans[context].start + spans[context].length - 1
            for answer in branch.answers:
                # Each position predicts the token after it.
                positions = [context_end, *range(len(tokens), len(tokens) + len(answer) - 1)]
                scored += zip(positions, answer, strict=True)
                if len(answer) > 1:
                    add_span(answer[:-1], context)
    tokens += [0] * (-len(tokens) % multiple)
    scored += [(0, 0)] * (-len(scored) % multiple)
    scored_N, targets_N = torch.tensor(scored).unbind(1)
    return Batch(torch.tensor(tokens), tuple(spans), scored_N, targets_N)
