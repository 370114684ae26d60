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
from typing import TYPE_CHECKING, NamedTuple

import torch

from mtnlg_model.generation.sampling import to_device

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


class Row(NamedTuple):
    """Contexts that begin with the same ``shared`` tokens, each with its answers; the model reads ``length`` tokens."""

    contexts: Sequence[tuple[Tokens, Sequence[Tokens]]]
    shared: int
    length: int

    @property
    def requests(self) -> list[Request]:
        """Requests answered by the row, in order."""
        return [Request(context, answer) for context, answers in self.contexts for answer in answers]


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

    def on(self, device: torch.device, layers: int) -> tuple[tuple[Tensor, Tensor, list[PackedAttention]], Tensor]:
        """A decoder's inputs (tokens [1, S], positions, each layer's attention) and the targets [N], on ``device``."""
        positions_S, attend = plan_attention(self.spans, len(self.tokens), self.scored, device, layers)
        tokens_S, targets_N = (to_device(x, device) for x in (self.tokens, self.targets))
        return (tokens_S[None], positions_S[None], attend), targets_N


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
    rows = [row for by_context in alike for row in _rows(by_context, max_length)]
    return sorted(rows, key=lambda row: -row.length)


def take_batch(rows: deque[Row], budget: int) -> list[Row]:
    """Take the first rows of at most ``budget`` tokens in all, or a single row; [] if there are none."""
    batch: list[Row] = []
    while rows and (not batch or rows[0].length <= budget):
        batch.append(rows.popleft())
        budget -= batch[-1].length
    return batch


def _rows(answers_by_context: Mapping[Tokens, set[Tokens]], max_length: int) -> Iterator[Row]:
    """Group contexts that share a prefix and fit one row.

    Contexts with a common prefix are neighbours in token order. The next context joins the row if it shares at least
    half of the row's prefix so far.
    """
    contexts: list[tuple[Tokens, list[Tokens]]] = []
    shared = length = 0
    for context, answers in _parts(answers_by_context, max_length):
        added = len(context) + sum(len(answer) - 1 for answer in answers)
        common = _common_prefix(contexts[0][0], context, shared) if contexts else 0
        joined = length + (shared - common) * (len(contexts) - 1) + added - common
        if contexts and common >= max(MIN_SHARED_PREFIX, shared // 2) and joined <= max_length:
            contexts.append((context, answers))
            shared, length = common, joined
        else:
            if contexts:
                yield Row(contexts, shared, length)
            contexts, shared, length = [(context, answers)], len(context), added
    if contexts:
        yield Row(contexts, shared, length)


def _parts(answers_by_context: Mapping[Tokens, set[Tokens]], max_length: int) -> Iterator[tuple[Tokens, list[Tokens]]]:
    """Each context, in token order, with as many of its answers at a time as fit one row."""
    for context, answers in sorted(answers_by_context.items()):
        part: list[Tokens] = []
        room = max_length - len(context)
        for answer in sorted(answers):
            if len(answer) - 1 > room:
                yield context, part
                part, room = [], max_length - len(context)
            part.append(answer)
            room -= len(answer) - 1
        yield context, part


def _common_prefix(a: Tokens, b: Tokens, longest: int) -> int:
    """Length of the common prefix, up to ``longest``."""
    limit = min(longest, len(a), len(b))
    return next((n for n in range(limit) if a[n] != b[n]), limit)


def pack_rows(rows: Sequence[Row], multiple: int = 1) -> Batch:
    """Concatenate rows into a batch, with S and N padded to a multiple of ``multiple``.

    Scored positions are ordered by row, context, answer and token.
    """
    tokens: list[int] = []
    spans: list[Span] = []
    scored: list[tuple[int, int]] = []

    def add_span(part: Sequence[int], parent: int) -> int:
        spans.append(Span(len(tokens), len(part), parent))
        tokens.extend(part)
        return len(spans) - 1

    for row in rows:
        prefix = add_span(row.contexts[0][0][: row.shared], -1)
        for context, answers in row.contexts:
            rest = context[row.shared :]
            parent = add_span(rest, prefix) if rest else prefix
            end = spans[parent].start + spans[parent].length - 1
            for answer in answers:
                # Each position predicts the token after it.
                positions = [end, *range(len(tokens), len(tokens) + len(answer) - 1)]
                scored += zip(positions, answer, strict=True)
                if len(answer) > 1:
                    add_span(answer[:-1], parent)
    tokens += [0] * (-len(tokens) % multiple)
    scored += [(0, 0)] * (-len(scored) % multiple)
    scored_N, targets_N = torch.tensor(scored).unbind(1)
    return Batch(torch.tensor(tokens), tuple(spans), scored_N, targets_N)
