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

Of the last layer only those tokens are computed whose next one is asked for.

S tokens of the line, G pieces of a group, N heads, D head size, s and t queries and keys of a piece.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from mtnlg_model.functional import AttentionOp

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
    """Queries of one path, by their ``depths`` in it, over its first ``keys`` keys; ``queries`` of them with padding.

    Those before depth ``kept`` are another piece's to answer. A causal piece asks from depth 0 on and masks nothing.
    """

    path: list[int]
    depths: Sequence[int]
    queries: int
    keys: int
    causal: bool = False
    kept: int = 0


class _Group(NamedTuple):
    """Pieces of one shape: places in the line of their queries [G, s] and keys [G, t], and who sees whom."""

    queries: Tensor
    keys: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class PathAttention:
    """Attention along every path for the tokens at ``places`` [N] of the line, or all; one layer's `Attend`."""

    places: Tensor | None
    _groups: tuple[_Group, ...]
    _origin: Tensor

    @classmethod
    def of(cls, pieces: Iterable[_Piece], size: int, places: Tensor | None, device: torch.device) -> PathAttention:
        """By pieces that answer at least for the tokens asked for, of a line of ``size``."""
        alike, groups, origin, start = defaultdict[tuple[int, int, bool], list[_Piece]](list), [], [0] * size, 0
        for piece in pieces:
            alike[piece.queries, piece.keys, piece.causal].append(piece)
        for some in alike.values():
            for piece in some:
                for n, depth in enumerate(piece.depths):
                    if depth >= piece.kept:
                        origin[piece.path[depth]] = start + n
                start += piece.queries
            groups.append(_group(some, device))
        from_S = torch.tensor(origin, device=device)
        return cls(places, tuple(groups), from_S if places is None else from_S[places])

    def __call__(  # noqa: PLR0917  (attention's own figures)
        self, attention: AttentionOp, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, scale: float, rate: float
    ) -> Tensor:
        """``attention`` along every path, B = 1: [1, N, S or number of ``places``, D]."""
        q_SND, k_SND, v_SND = (x[0].transpose(0, 1) for x in (q_BNSD, k_BNSD, v_BNSD))
        done = []
        for group in self._groups:
            q_GNsD, k_GNtD, v_GNtD = (
                x.index_select(0, places.flatten()).view(*places.shape, *x.shape[1:]).transpose(1, 2)
                for x, places in ((q_SND, group.queries), (k_SND, group.keys), (v_SND, group.keys))
            )
            x_GNsD = attention(q_GNsD, k_GNtD, v_GNtD, group.mask, scale, rate)
            done.append(x_GNsD.transpose(1, 2).flatten(0, 1))
        return torch.cat(done).index_select(0, self._origin).transpose(0, 1)[None]


@dataclass(frozen=True)
class Paths:
    """Who sees whom in a line of tokens. ``depths`` [S] are the tokens' places in their texts, from 0.

    The last layer computes no more than the tokens ``asked`` for, of which alone the next token is wanted.
    """

    depths: Tensor
    every: PathAttention
    last: PathAttention

    @classmethod
    def of(cls, spans: Sequence[Span], size: int, asked: Tensor) -> Paths:
        """The paths of a line of ``size`` tokens, of which ``asked`` [N] are wanted at the end, some perhaps twice.

        A span's parent stands before it among the ``spans``. What is in no span stands at depth 0, and its result means
        nothing.
        """
        wanted, depths = set(asked.tolist()), [0] * size
        paths: list[list[int]] = []
        every: list[_Piece] = []
        last: list[_Piece] = []
        for span in spans:
            before = paths[span.parent] if span.parent >= 0 else []
            own = range(span.first, span.first + span.size)
            path = [*before, *own]
            paths.append(path)
            depths[own.start : own.stop] = range(len(before), len(path))
            every += _pieces(path, range(len(before), len(path)))
            last += _masked(path, [depth for depth in range(len(before), len(path)) if path[depth] in wanted])
        told = PathAttention.of(every, size, None, asked.device), PathAttention.of(last, size, asked, asked.device)
        return cls(torch.tensor(depths, device=asked.device), *told)

    def attend(self, layers: int) -> list[PathAttention]:
        """The attention of each of a decoder's ``layers``."""
        return [self.every] * (layers - 1) + [self.last]


def _pieces(path: list[int], depths: range) -> Iterator[_Piece]:
    """A stretch of a path, cut where the number of keys changes; causal without a mask where that says the same."""
    whole = depths.stop // BLOCK * BLOCK
    if depths.start == 0 and whole > BLOCK:  # the causal kernel takes whole blocks as they are taken here
        yield _Piece(path, range(whole), whole, whole, causal=True, kept=SHORT)
        depths = range(whole, depths.stop)
        yield _beginning(path, SHORT)
    elif depths.start == 0:
        first = min(SHORT, depths.stop)
        yield _beginning(path, first)
        depths = range(first, depths.stop)
    yield from _masked(path, depths)


def _beginning(path: list[int], size: int) -> _Piece:
    keys = _up(size, NARROW)
    return _Piece(path, range(size), keys, keys, causal=True)


def _masked(path: list[int], depths: Sequence[int]) -> Iterator[_Piece]:
    """Queries of ascending depth, cut where the number of keys changes."""
    for limit, some in groupby(depths, lambda depth: SHORT if depth < SHORT else _up(depth + 1, BLOCK)):
        told = list(some)
        keys = _up(told[-1] + 1, NARROW) if limit == SHORT else limit
        yield _Piece(path, told, _up(len(told), NARROW), keys)


def _group(alike: Sequence[_Piece], device: torch.device) -> _Group:
    """Pieces of one shape; places that are missing are those of the path's own first token, which all may see."""
    asking = [[*piece.depths, *[0] * (piece.queries - len(piece.depths))] for piece in alike]
    queries = [[piece.path[depth] for depth in depths] for piece, depths in zip(alike, asking, strict=True)]
    keys = [piece.path[: piece.keys] + piece.path[:1] * (piece.keys - len(piece.path)) for piece in alike]
    mask = None
    if not alike[0].causal:
        depth_Gs = torch.tensor(asking, device=device)
        mask = (torch.arange(alike[0].keys, device=device) <= depth_Gs[:, :, None])[:, None]
    return _Group(torch.tensor(queries, device=device), torch.tensor(keys, device=device), mask)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
