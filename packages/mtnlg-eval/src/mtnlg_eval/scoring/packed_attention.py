"""Attention over a packed sequence: many texts, some with shared prefixes, each attending to itself only.

The sequence consists of spans in trees. A span continues its parent span or begins a text; a token attends to its own
span up to itself and to all earlier spans on its path from the root:

    span 0: a context      span 1: an answer, parent 0      span 2: another answer, parent 0      span 3: a context

A token's attention output depends only on its path, to the last bit: not on its index in the packed sequence, on the
other texts or on how the path is cut into spans. The keys of a path are gathered in order, and a query at depth i of
its path (its position in its own text) is computed over a number of keys that only i determines; later keys are masked:

    keys(i) = 128      for i < 128, or the multiple of 32 below it that the path needs
    keys(i) = 512 k    for 512 (k - 1) <= i < 512 k otherwise

because a BLAS sums over keys in an order that depends on their number. Up to 128 keys the order is the same; above, a
query's sum always has the same number of terms. docs/decisions/0085 has the measurements.

The last layer computes only the tokens with a next token to score.

S tokens of the packed sequence, G chunks of one shape, N heads, D head size, s and t queries and keys of a chunk.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch

from mtnlg_model.generation.sampling import to_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from mtnlg_model.functional import AttentionOp

NARROW = 32
SHORT = 128
BLOCK = 512
"""Keys per block in PyTorch's attention kernel for CPUs."""


class Span(NamedTuple):
    """Tokens ``start`` to ``start + length`` of the packed sequence; continues span ``parent``, -1 begins a text."""

    start: int
    length: int
    parent: int


class _Chunk(NamedTuple):
    """Queries at ``depths`` of one path, padded to ``queries``, over the path's first ``keys`` keys.

    Queries before depth ``first_output`` are computed, but their result is taken from another chunk. A causal chunk
    begins at depth 0 and needs no mask.
    """

    path: list[int]
    depths: Sequence[int]
    queries: int
    keys: int
    causal: bool = False
    first_output: int = 0


class _ChunkBatch(NamedTuple):
    """Chunks of one shape: indices of their queries [G, s] and keys [G, t] in the packed sequence, and their mask."""

    queries: Tensor
    keys: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class PackedAttention:
    """Attention along every path, for the tokens at indices ``places`` [N] or for all; one layer's `Attend`."""

    places: Tensor | None
    _batches: tuple[_ChunkBatch, ...]
    _output_index: Tensor

    @classmethod
    def build(
        cls, chunks: Iterable[_Chunk], length: int, places: Tensor | None, device: torch.device
    ) -> PackedAttention:
        """Batch chunks that together answer at least ``places`` of a packed sequence of ``length`` tokens.

        ``places`` is on the host.
        """
        by_shape: defaultdict[tuple[int, int, bool], list[_Chunk]] = defaultdict(list)
        for chunk in chunks:
            by_shape[chunk.queries, chunk.keys, chunk.causal].append(chunk)
        output_index, start = [0] * length, 0
        for chunk in (chunk for same_shape in by_shape.values() for chunk in same_shape):
            for n, depth in enumerate(chunk.depths):
                if depth >= chunk.first_output:
                    output_index[chunk.path[depth]] = start + n
            start += chunk.queries
        output_S = torch.tensor(output_index)
        batches = tuple(_batch_chunks(same_shape, device) for same_shape in by_shape.values())
        if places is None:
            return cls(None, batches, to_device(output_S, device))
        return cls(to_device(places, device), batches, to_device(output_S[places], device))

    def __call__(  # noqa: PLR0917  (attention's own arguments)
        self, attention: AttentionOp, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, scale: float, rate: float
    ) -> Tensor:
        """Run ``attention`` along every path, B = 1: [1, N, S or len(places), D]."""
        q_SND, k_SND, v_SND = (x[0].transpose(0, 1) for x in (q_BNSD, k_BNSD, v_BNSD))
        outputs = []
        for batch in self._batches:
            q_GNsD, k_GNtD, v_GNtD = (
                x.index_select(0, indices.flatten()).view(*indices.shape, *x.shape[1:]).transpose(1, 2)
                for x, indices in ((q_SND, batch.queries), (k_SND, batch.keys), (v_SND, batch.keys))
            )
            x_GNsD = attention(q_GNsD, k_GNtD, v_GNtD, batch.mask, scale, rate)
            outputs.append(x_GNsD.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._output_index).transpose(0, 1)[None]


@dataclass(frozen=True)
class AttentionPlan:
    """Position ids [S] of a packed sequence, and its attention: for all tokens, and for the scored ones only."""

    position_ids: Tensor
    all_tokens: PackedAttention
    scored_tokens: PackedAttention

    @classmethod
    def build(cls, spans: Sequence[Span], length: int, scored: Tensor, device: torch.device) -> AttentionPlan:
        """Plan attention over ``length`` tokens, in the last layer only for the indices ``scored`` [N] (may repeat).

        ``scored`` is on the host; building the plan does not synchronize with ``device``. A span comes after its parent
        in ``spans``. Tokens outside every span get position 0 and a meaningless result.
        """
        scored_indices, position_ids = set(scored.tolist()), [0] * length
        paths: list[list[int]] = []
        all_chunks: list[_Chunk] = []
        scored_chunks: list[_Chunk] = []
        for span in spans:
            ancestors = paths[span.parent] if span.parent >= 0 else []
            indices = range(span.start, span.start + span.length)
            path = [*ancestors, *indices]
            depths = range(len(ancestors), len(path))
            paths.append(path)
            position_ids[indices.start : indices.stop] = depths
            all_chunks += _chunk_span(path, depths)
            scored_chunks += _chunk_masked(path, [depth for depth in depths if path[depth] in scored_indices])
        return cls(
            to_device(torch.tensor(position_ids), device),
            PackedAttention.build(all_chunks, length, None, device),
            PackedAttention.build(scored_chunks, length, scored, device),
        )

    def attend(self, layers: int) -> list[PackedAttention]:
        """Attention of each of a decoder's ``layers``."""
        return [self.all_tokens] * (layers - 1) + [self.scored_tokens]


def _chunk_span(path: list[int], depths: range) -> Iterator[_Chunk]:
    """Cut a span where the number of keys changes; the beginning needs no mask if a causal kernel gives equal bits."""
    whole_blocks = depths.stop // BLOCK * BLOCK
    if depths.start == 0 and whole_blocks > BLOCK:  # the causal kernel uses the same blocks
        yield _Chunk(path, range(whole_blocks), whole_blocks, whole_blocks, causal=True, first_output=SHORT)
        depths = range(whole_blocks, depths.stop)
        yield _causal_beginning(path, SHORT)
    elif depths.start == 0:
        size = min(SHORT, depths.stop)
        yield _causal_beginning(path, size)
        depths = range(size, depths.stop)
    yield from _chunk_masked(path, depths)


def _causal_beginning(path: list[int], size: int) -> _Chunk:
    keys = _round_up(size, NARROW)
    return _Chunk(path, range(size), keys, keys, causal=True)


def _chunk_masked(path: list[int], depths: Sequence[int]) -> Iterator[_Chunk]:
    """Cut ascending depths where the number of keys changes."""
    for limit, group in groupby(depths, lambda depth: SHORT if depth < SHORT else _round_up(depth + 1, BLOCK)):
        chunk = list(group)
        keys = _round_up(chunk[-1] + 1, NARROW) if limit == SHORT else limit
        yield _Chunk(path, chunk, _round_up(len(chunk), NARROW), keys)


def _batch_chunks(chunks: Sequence[_Chunk], device: torch.device) -> _ChunkBatch:
    """Batch chunks of one shape; queries and keys are padded with the path's first token, which every query may see."""
    depths = [[*chunk.depths, *[0] * (chunk.queries - len(chunk.depths))] for chunk in chunks]
    queries = [[chunk.path[depth] for depth in padded] for chunk, padded in zip(chunks, depths, strict=True)]
    keys = [chunk.path[: chunk.keys] + chunk.path[:1] * (chunk.keys - len(chunk.path)) for chunk in chunks]
    mask = None
    if not chunks[0].causal:
        depth_Gs = to_device(torch.tensor(depths), device)
        mask = (torch.arange(chunks[0].keys, device=device) <= depth_Gs[:, :, None])[:, None]
    return _ChunkBatch(to_device(torch.tensor(queries), device), to_device(torch.tensor(keys), device), mask)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
