"""Attention over a line of tokens that belong to many texts, some of which begin alike.

The line is made of spans. A span continues another or begins a text, and a token sees its own span up to itself and
all of the spans before on its path:

    span 0: a context        span 1: an answer to it, parent 0        span 2: another, parent 0        span 3: a context

What a token's attention comes to depends on its path alone, to the last bit, and not on where in the line it stands, on
what else is there or on how its path is cut into spans. The keys of a path are gathered in their order and computed
over as many as the depth i of the query in its path says, later ones masked:

    keys(i) = 128      where i < 128, or of the multiples of 32 below it what the path needs
    keys(i) = 512 k    where 512 (k - 1) <= i < 512 k otherwise

for a BLAS sums over keys in an order that depends on how many there are. It does not up to 128; a query's sum over more
is always one over the same number. docs/decisions/0085 has what was measured.

S tokens of the line, G pieces of a group, N heads, D head size, s and t queries and keys of a piece.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, float, float], Tensor]

NARROW = 32
SHORT = 128
BLOCK = 512
"""PyTorch's kernel for a CPU goes by so many keys at once."""


class Span(NamedTuple):
    """Tokens ``first`` to ``first + size`` of the line, which continue span number ``parent``; -1 begins a text."""

    first: int
    size: int
    parent: int


class _Piece(NamedTuple):
    """The ``size`` queries of a path from depth ``first`` on, over its first ``keys`` keys.

    The results of those before ``kept`` are another piece's; ``queries`` is the size it is padded to.
    """

    path: list[int]
    first: int
    size: int
    kept: int
    causal: bool
    queries: int
    keys: int


class _Group(NamedTuple):
    """Pieces of one shape: places in the line of their queries [G, s] and keys [G, t], and who sees whom."""

    queries: Tensor
    keys: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Paths:
    """Who sees whom in a line of tokens. ``depths`` [S] are the tokens' places in their texts, from 0."""

    depths: Tensor
    _groups: tuple[_Group, ...]
    _origin: Tensor

    @classmethod
    def of(cls, spans: Sequence[Span], size: int, device: torch.device | None = None) -> Paths:
        """The paths of a line of ``size`` tokens; what is in no span stands at depth 0, and its result means nothing.

        A span's parent stands before it among the ``spans``.
        """
        depths, pieces = [0] * size, defaultdict[tuple[bool, int, int], list[_Piece]](list)
        paths: list[list[int]] = []
        for span in spans:
            before = paths[span.parent] if span.parent >= 0 else []
            own = range(span.first, span.first + span.size)
            paths.append([*before, *own])
            depths[own.start : own.stop] = range(len(before), len(before) + span.size)
            for piece in _pieces(paths[-1], len(before)):
                pieces[piece.causal, piece.queries, piece.keys].append(piece)
        groups, origin, start = [], [0] * size, 0
        for (causal, queries, keys), alike in pieces.items():
            for piece in alike:
                for n in range(piece.kept, piece.size):
                    origin[piece.path[piece.first + n]] = start + n
                start += queries
            groups.append(_group(alike, causal, queries, keys, device))
        return cls(torch.tensor(depths, device=device), tuple(groups), torch.tensor(origin, device=device))

    def attend(  # noqa: PLR0917  (attention's own figures)
        self, attention: Attention, q_1NSD: Tensor, k_1NSD: Tensor, v_1NSD: Tensor, scale: float, rate: float
    ) -> Tensor:
        """``attention`` along every path, [1, N, S, D]."""
        q_SND, k_SND, v_SND = (x[0].transpose(0, 1) for x in (q_1NSD, k_1NSD, v_1NSD))
        done = []
        for group in self._groups:
            q_GNsD, k_GNtD, v_GNtD = (
                x.index_select(0, places.flatten()).view(*places.shape, *x.shape[1:]).transpose(1, 2)
                for x, places in ((q_SND, group.queries), (k_SND, group.keys), (v_SND, group.keys))
            )
            x_GNsD = attention(q_GNsD, k_GNtD, v_GNtD, group.mask, scale, rate)
            done.append(x_GNsD.transpose(1, 2).flatten(0, 1))
        return torch.cat(done).index_select(0, self._origin).transpose(0, 1)[None]


def _pieces(path: list[int], start: int) -> Iterator[_Piece]:
    """The queries of a path from depth ``start`` on, cut where the number of keys changes."""
    end = len(path)
    whole = end // BLOCK * BLOCK
    if start == 0 and whole > BLOCK:  # the causal kernel takes whole blocks as they are taken here, and no mask
        yield _Piece(path, 0, whole, SHORT, causal=True, queries=whole, keys=whole)
        yield from _pieces(path[:SHORT], 0)
        start = whole
    while start < end:
        limit = SHORT if start < SHORT else _up(start + 1, BLOCK)
        last, causal = min(end, limit), start == 0
        keys = _up(last, NARROW) if limit == SHORT else limit
        queries = keys if causal else _up(last - start, NARROW)
        yield _Piece(path, start, last - start, 0, causal, queries, keys)
        start = last


def _group(alike: Sequence[_Piece], causal: bool, queries: int, keys: int, device: torch.device | None) -> _Group:
    """Pieces of one shape; places that are missing are those of the path's own first token."""
    asking, seen = [], []
    for piece in alike:
        own = piece.path[piece.first : piece.first + piece.size]
        asking.append(own + piece.path[:1] * (queries - piece.size))
        seen.append(piece.path[:keys] + piece.path[:1] * (keys - len(piece.path)))
    mask = None
    if not causal:
        depth_G = torch.tensor([piece.first for piece in alike], device=device)
        last_Gs = depth_G[:, None] + torch.arange(queries, device=device)
        mask = (torch.arange(keys, device=device) <= last_Gs[:, :, None])[:, None]
    return _Group(torch.tensor(asking, device=device), torch.tensor(seen, device=device), mask)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
