"""Attention over a packed sequence: many texts, some with shared prefixes, each attending to itself only.

The sequence consists of spans in trees. A span continues its parent span or begins a text; a token attends to its own
span up to itself and to all earlier spans on its path from the root:

    span 0: a context      span 1: an answer, parent 0      span 2: another answer, parent 0      span 3: a context

A token's attention output depends only on its path, to the last bit: not on its index in the packed sequence, on the
other texts or on how the path is cut into spans.

On a GPU every span is a sequence of flash attention of variable lengths: its queries are the span's tokens, its keys
the gathered path up to the span's end. In FlashAttention-2 (flash_fwd_kernel.h) one thread block handles a block of
queries and goes through all their keys, from the last back, in blocks that begin at multiples of a fixed size. A block
of keys that a query does not see leaves its sums as they are. Only calls with one query per sequence, and those with a
paged cache, split keys among thread blocks.

On a CPU, and for what flash attention does not take (fp32, soft caps, slopes), a query at depth i of its path (its
position in its own text) is computed over a number of keys that only i determines; later keys are masked:

    keys(i) = 128      for i < 128, or the multiple of 32 below it that the path needs
    keys(i) = 512 k    for 512 (k - 1) <= i < 512 k otherwise

because a BLAS sums over keys in an order that depends on their number. Up to 128 keys the order is the same; above, a
query's sum always has the same number of terms. docs/decisions/0085 has the measurements.

The last layer's output is limited to the tokens with a next token to score.

S tokens of the packed sequence, U tokens of all paths, G chunks of one shape, N heads, D head size, s and t queries and
keys of a chunk.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from mtnlg_model.functional import attention, flash_varlen, has_flash
from mtnlg_model.generation.sampling import to_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from mtnlg_model.functional import AttentionOp, Rule

    Indices = NDArray[np.int64]

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

    path: Indices
    depths: Indices
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
class _Paths:
    """Indices of each span's path in a packed sequence of ``length`` tokens; its last ``sizes[n]`` are span n."""

    indices: Sequence[Indices]
    sizes: Sequence[int]
    length: int
    device: torch.device

    @cached_property
    def keys(self) -> Tensor:
        """Indices of all paths, one after the other [U]."""
        return to_device(torch.from_numpy(np.concatenate(self.indices)), self.device)

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Cumulative sums of the numbers of queries and of keys, as for `flash_varlen`."""
        rows = torch.tensor([self.sizes, [len(path) for path in self.indices]])
        sums = to_device(torch.nn.functional.pad(rows.cumsum(1, dtype=torch.int32), (1, 0)), self.device)
        return sums[0], sums[1]


@dataclass(frozen=True)
class PackedAttention:
    """Attention along every path, for the tokens at indices ``scored`` [N], on the host, or for all; an `Attend`."""

    _paths: _Paths
    scored: Tensor | None = None

    @cached_property
    def places(self) -> Tensor | None:
        """The indices on the device."""
        return None if self.scored is None else to_device(self.scored, self._paths.device)

    def __call__(self, attention: AttentionOp, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, rule: Rule) -> Tensor:
        """Run ``attention`` along every path, B = 1: [1, N, S or len(places), D]."""
        return attention(q_BNSD, k_BNSD, v_BNSD, self, rule)

    def attention(self, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, rule: Rule) -> Tensor:
        """`attention` along every path."""
        q_SND, k_SND, v_SND = (x[0].transpose(0, 1) for x in (q_BNSD, k_BNSD, v_BNSD))
        attend = self._flash if (rule.cap, rule.slopes) == (None, None) and has_flash(q_SND) else self._chunked
        return attend(q_SND, k_SND, v_SND, rule).transpose(0, 1)[None]

    def _flash(self, q_SND: Tensor, k_SND: Tensor, v_SND: Tensor, rule: Rule) -> Tensor:
        """One call of flash attention, in which each span is a sequence."""
        paths = self._paths
        # Of contiguous rows, `[]` copies 16 bytes at a time, `index_select` one number.
        k_UND, v_UND = (x.flatten(1)[paths.keys].view(-1, *x.shape[1:]) for x in (k_SND, v_SND))
        # At least 2 queries, and no window longer than all keys: else another kernel computes the whole batch.
        longest = max(*paths.sizes, 2), max(*map(len, paths.indices), rule.window or 0)
        x_SND = flash_varlen(q_SND, k_UND, v_UND, paths.bounds, longest, rule)
        return x_SND if self.places is None else x_SND.index_select(0, self.places)

    def _chunked(self, q_SND: Tensor, k_SND: Tensor, v_SND: Tensor, rule: Rule) -> Tensor:
        """A call of `attention` per shape of chunks, without the blocks of keys before all windows of a chunk."""
        window = rule.window
        batches, output_index = self._windowed_chunks if window else self._chunks
        outputs = []
        for queries, keys, mask in batches:
            first = max(0, keys.shape[1] - BLOCK - window + 1) // BLOCK * BLOCK if window else 0
            q_GNsD, k_GNtD, v_GNtD = (
                x.index_select(0, indices.flatten()).view(*indices.shape, *x.shape[1:]).transpose(1, 2)
                for x, indices in ((q_SND, queries), (k_SND, keys[:, first:]), (v_SND, keys[:, first:]))
            )
            part = mask if mask is None else mask[..., first:]
            outputs.append(attention(q_GNsD, k_GNtD, v_GNtD, part, rule).transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, output_index)

    @cached_property
    def _windowed_chunks(self) -> tuple[list[_ChunkBatch], Tensor]:
        return self._cut(may_be_causal=False)

    @cached_property
    def _chunks(self) -> tuple[list[_ChunkBatch], Tensor]:
        # Nobody has shown equal bits of a GPU's kernels.
        return self._cut(may_be_causal=self.scored is None and self._paths.device.type == "cpu")

    def _cut(self, *, may_be_causal: bool) -> tuple[list[_ChunkBatch], Tensor]:
        """Batches of chunks that answer at least ``places``, and the index of each result in their outputs."""
        paths, scored = self._paths, self.scored
        wanted = slice(None) if scored is None else scored
        is_wanted = np.zeros(paths.length, np.bool_)
        is_wanted[wanted] = True
        by_shape: defaultdict[tuple[int, int, bool], list[_Chunk]] = defaultdict(list)
        for path, size in zip(paths.indices, paths.sizes, strict=True):
            start = len(path) - size
            depths = start + np.flatnonzero(is_wanted[path[start:]])
            for chunk in (_chunk_span if may_be_causal and start == 0 else _chunk_masked)(path, depths):
                by_shape[chunk.queries, chunk.keys, chunk.causal].append(chunk)
        output_index, start = np.zeros(paths.length, np.int64), 0
        for chunk in (chunk for same_shape in by_shape.values() for chunk in same_shape):
            skipped = int(np.searchsorted(chunk.depths, chunk.first_output))
            output_index[chunk.path[chunk.depths[skipped:]]] = np.arange(start + skipped, start + len(chunk.depths))
            start += chunk.queries
        batches = [_batch_chunks(same_shape, paths.device) for same_shape in by_shape.values()]
        return batches, to_device(torch.from_numpy(output_index)[wanted], paths.device)


def plan_attention(
    spans: Sequence[Span], length: int, scored: Tensor, device: torch.device, layers: int
) -> tuple[Tensor, list[PackedAttention]]:
    """Position ids [S] of a packed sequence of ``length`` tokens, and the attention of each of a decoder's ``layers``.

    That of the last is only for the indices ``scored`` [N] (may repeat), which are on the host; planning does not
    synchronize with ``device``. Spans follow each other from token 0 on, each after its parent. Tokens after the last
    span get position 0 and a meaningless result.
    """
    position_ids = np.zeros(length, np.int64)
    indices: list[Indices] = []
    for start, size, parent in spans:
        ancestors = indices[parent] if parent >= 0 else np.zeros(0, np.int64)
        indices.append(np.concatenate((ancestors, np.arange(start, start + size))))
        position_ids[start : start + size] = np.arange(len(ancestors), len(ancestors) + size)
    paths = _Paths(indices, [span.length for span in spans], length, device)
    attend = [PackedAttention(paths)] * (layers - 1) + [PackedAttention(paths, scored)]
    return to_device(torch.from_numpy(position_ids), device), attend


def _chunk_span(path: Indices, depths: Indices) -> Iterator[_Chunk]:
    """Cut a text's first span where the number of keys changes; its beginning needs no mask: a CPU has equal bits."""
    size, whole_blocks = len(depths), len(depths) // BLOCK * BLOCK
    if whole_blocks > BLOCK:  # the causal kernel uses the same blocks
        yield _Chunk(path, depths[:whole_blocks], whole_blocks, whole_blocks, causal=True, first_output=SHORT)
    else:
        whole_blocks = SHORT
    keys = _round_up(min(SHORT, size), NARROW)
    yield _Chunk(path, depths[:SHORT], keys, keys, causal=True)
    yield from _chunk_masked(path, depths[whole_blocks:])


def _chunk_masked(path: Indices, depths: Indices) -> Iterator[_Chunk]:
    """Cut ascending depths where the number of keys changes."""
    while len(depths):
        limit = SHORT if depths[0] < SHORT else _round_up(int(depths[0]) + 1, BLOCK)
        chunk, depths = np.split(depths, [np.searchsorted(depths, limit)])
        keys = _round_up(int(chunk[-1]) + 1, NARROW) if limit == SHORT else limit
        yield _Chunk(path, chunk, _round_up(len(chunk), NARROW), keys)


def _batch_chunks(chunks: Sequence[_Chunk], device: torch.device) -> _ChunkBatch:
    """Batch chunks of one shape; queries are padded with the last one, keys with the path's first token."""
    depths = np.zeros((len(chunks), chunks[0].queries), np.int64)
    keys = np.repeat([[chunk.path[0]] for chunk in chunks], chunks[0].keys, 1)
    queries = np.empty_like(depths)
    for n, chunk in enumerate(chunks):
        depths[n] = np.pad(chunk.depths, (0, chunk.queries - len(chunk.depths)), "edge")
        queries[n] = chunk.path[depths[n]]
        keys[n, : len(chunk.path)] = chunk.path[: chunk.keys]
    mask = None
    if not chunks[0].causal:
        depth_Gs = to_device(torch.from_numpy(depths), device)
        mask = (torch.arange(chunks[0].keys, device=device) <= depth_Gs[:, :, None])[:, None]
    queries_Gs, keys_Gt = (to_device(torch.from_numpy(x), device) for x in (queries, keys))
    return _ChunkBatch(queries_Gs, keys_Gt, mask)


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
