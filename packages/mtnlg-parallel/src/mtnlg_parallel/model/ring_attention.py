"""Context parallelism: cp ranks share each sample, and keys and values go round the ring of them during attention.

The sequence is cut into 2 cp chunks, and rank r holds chunks r and 2 cp - 1 - r (zig-zag, as Megatron-Core does), so
that under a causal mask all ranks have the same work. All but attention acts on single tokens, at their positions.

    forward     in step n a rank has the keys and values of rank r - n, computes its queries' part of the attention over
                them, and merges it by log-sum-exp, while the next keys and values arrive
    backward    as forward, with each part recomputed from the log-sum-exp; the gradients of keys and values follow them
                round the ring, in fp32, and each rank adds its own

    s = scale q k, or its soft cap, - slope (i - j)     l = log Σ_j exp s_j      p = exp(s - l)      o = Σ_j p_j v_j
    (o, l) of two parts: l = log(exp l1 + exp l2), o = exp(l1 - l) o1 + exp(l2 - l) o2
    dv = pᵀ do,  ds = p (do vᵀ - do · o),  dq = scale ds k,  dk = scale dsᵀ q

(Liu et al. 2023, Dao et al. 2022). Of another rank's tokens, either all of this rank's queries see the first chunk and
none the second, or this rank's second chunk of queries sees both and its first none. So no mask of causality is needed
but for a rank's own tokens. A GPU computes parts by flash attention, unless they have a window that ends within them,
documents, a soft cap or slopes; those are computed by products in fp32, some queries at a time. Falcon's ALiBi adds
scale · slope · j instead, slope · j rounded to bf16 (`alibi.Bf16Slope`).

S queries, T keys, B batch, N heads, G heads of keys and values, R = N / G, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mtnlg_model.alibi import Bf16Slope
from mtnlg_model.functional import Documents, Rule, has_flash
from mtnlg_model.rotary import text_lengths
from mtnlg_parallel.layout import ring_window
from mtnlg_parallel.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup, Work

TILE_ELEMENTS = 1 << 26
"""Most scores of a tile: 256 MiB of fp32."""


def own_chunks(whole_BS: Tensor, rank: int, ranks: int) -> Tensor:
    """The two chunks of a sequence that a rank holds."""
    chunks = whole_BS.chunk(2 * ranks, 1)
    return torch.cat((chunks[rank], chunks[-1 - rank]), 1)


@dataclass(frozen=True)
class Context:
    """The ranks of ``group`` (a ProcessGroup), which share every sample of ``sequence`` tokens."""

    group: Any
    sequence: int

    def slice(self, whole_BS: Tensor) -> Tensor:
        """The rank's two chunks of a whole sequence's values."""
        return own_chunks(whole_BS, self.group.rank(), self.group.size())

    def attention(self, device: torch.device, positions_BS: Tensor | None = None) -> tuple[Tensor, Ring, Tensor]:
        """Positions of this rank's tokens, [B or 1, S], its attention, and the lengths of the tokens' texts.

        ``positions_BS`` of the whole sequence count from 0 in each document, where documents are isolated.
        """
        places_1S = torch.arange(self.sequence, device=device)[None]
        if positions_BS is None:
            own_1S = self.slice(places_1S)
            return own_1S, Ring((), context=self), torch.full_like(own_1S, self.sequence)
        positions_BS = positions_BS.to(device, non_blocking=True)
        ring = Ring((), context=self, begins=self.slice(places_1S - positions_BS))
        return self.slice(positions_BS), ring, self.slice(text_lengths(positions_BS))


@dataclass(frozen=True)
class Ring(Documents):
    """An `Attend` over all ranks' keys; ``begins`` [B, S] has the place where each query's document begins."""

    context: Any = None
    begins: Tensor | None = None

    def attention(self, q_BNSD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, rule: Rule) -> Tensor:
        """Context [B, N, S, D] of this rank's queries over the keys of all ranks. Has no dropout."""
        assert not rule.rate  # noqa: S101  (`layout_error` has seen to it)
        x_BNSD: Tensor = _RingAttention.apply(q_BNSD, k_BGSD, v_BGSD, self, rule)  # type: ignore[no-untyped-call]
        return x_BNSD

    def part_of(self, other: int, rule: Rule) -> Part | None:
        """What this rank's queries see of the keys of rank ``other``; None if nothing is within the window."""
        group = self.context.group
        return part_of(group.rank(), other, group.size(), self.context.sequence, rule, self.begins)


class Part(NamedTuple):
    """Queries and keys of a part of attention, as slices of a rank's tokens and of another's, and its rule."""

    rank: int
    other: int
    ranks: int
    sequence: int
    queries: slice
    keys: slice
    rule: Rule
    begins: Tensor | None = None

    def places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Places of queries and keys in the sequence, [S] and [T]."""
        whole_1S = torch.arange(self.sequence, device=device)[None]
        rows, columns = (own_chunks(whole_1S, each, self.ranks)[0] for each in (self.rank, self.other))
        return rows[self.queries], columns[self.keys]

    @property
    def is_plain(self) -> bool:
        """Whether no query misses a key but by causality, and scores are products."""
        return all(each is None for each in (*self.rule[2:], self.begins))


def part_of(  # noqa: PLR0917  (whose queries and keys)
    rank: int, other: int, ranks: int, sequence: int, rule: Rule, begins: Tensor | None = None
) -> Part | None:
    """What the queries of ``rank`` see of the keys of rank ``other``; None if nothing is within the window."""
    chunk, whole = sequence // (2 * ranks), slice(None)
    window = ring_window(rule.window, rank, other, ranks, sequence)
    if window == 0:
        return None
    queries, keys = slice(chunk, None) if rank < other else whole, slice(chunk) if rank > other else whole
    begins = None if begins is None else begins[:, queries]
    return Part(rank, other, ranks, sequence, queries, keys, rule._replace(window=window), begins)


class _RingAttention(Function):
    @staticmethod
    def forward(  # noqa: PLR0917  (what attends, where, and how)
        ctx: Any,  # noqa: ANN401  (autograd's context)
        q_BNSD: Tensor,
        k_BGSD: Tensor,
        v_BGSD: Tensor,
        ring: Ring,
        rule: Rule,
    ) -> Tensor:
        ctx.ring = ring, rule
        kv = torch.stack((k_BGSD, v_BGSD))
        out, lse = _forward(q_BNSD, kv, *ctx.ring)
        ctx.save_for_backward(q_BNSD, kv, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, do_BNSD: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401  (as above)
        dq, dkv = _backward(do_BNSD, *ctx.saved_tensors, *ctx.ring)
        return dq, *dkv.unbind(), None, None


def _forward(q: Tensor, kv: Tensor, ring: Ring, rule: Rule) -> tuple[Tensor, Tensor]:
    """Context in q's dtype, [B, N, S, D], and its log-sum-exp in fp32, [B, N, S]."""
    group = ring.context.group
    ranks, rank = group.size(), group.rank()
    out = torch.zeros_like(q, dtype=torch.float32)
    lse = torch.full_like(out[..., 0], -torch.inf)
    for step in range(ranks):
        arriving = _pass_on(kv, group, 0) if step < ranks - 1 else None
        if part := ring.part_of((rank - step) % ranks, rule):
            new_out, new_lse = _kernels(q, part)[0](q[:, :, part.queries], *kv[:, :, :, part.keys], part)
            old_out, old_lse = out[:, :, part.queries], lse[:, :, part.queries]
            both = torch.logaddexp(old_lse, new_lse)
            old_out.mul_((old_lse - both).exp()[..., None]).add_(new_out * (new_lse - both).exp()[..., None])
            old_lse.copy_(both)
        if arriving:
            kv = arriving.receive()
    return out.to(q.dtype), lse


def _backward(  # noqa: PLR0917  (what forward has saved)
    do: Tensor, q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, ring: Ring, rule: Rule
) -> tuple[Tensor, Tensor]:
    """Gradients of q and of keys and values, in q's dtype."""
    group = ring.context.group
    ranks, rank = group.size(), group.rank()
    dq, gradients = torch.zeros_like(q, dtype=torch.float32), None
    for step in range(ranks):
        arriving = _pass_on(kv, group, 0) if step < ranks - 1 else None
        dkv = torch.zeros_like(kv, dtype=torch.float32)
        if part := ring.part_of((rank - step) % ranks, rule):
            rows = (x[:, :, part.queries] for x in (do, q, out, lse))
            found = _kernels(q, part)[1](*rows, *kv[:, :, :, part.keys], part)
            dq[:, :, part.queries] += found[0]
            dkv[:, :, :, part.keys] += torch.stack(found[1:])
        gradients = _pass_on(dkv.add_(gradients.receive()) if gradients else dkv, group, 1)
        if arriving:
            kv = arriving.receive()
    assert gradients  # noqa: S101  (a ring has ranks)
    return dq.to(q.dtype), gradients.receive().to(q.dtype)


class _Arriving(NamedTuple):
    """A tensor from the previous rank, while this rank's own is on its way to the next."""

    tensor: Tensor
    sent: Tensor  # alive until then
    works: list[Work]

    def receive(self) -> Tensor:
        for work in self.works:
            wait_for(work)
        return self.tensor


def _pass_on(tensor: Tensor, group: ProcessGroup, tag: int) -> _Arriving:
    """Start to send a tensor to the next rank of the ring, and to receive the previous rank's."""
    ring, rank, arriving = distributed.get_process_group_ranks(group), group.rank(), torch.empty_like(tensor)
    sends = distributed.P2POp(distributed.isend, tensor, ring[(rank + 1) % len(ring)], group, tag)
    receives = distributed.P2POp(distributed.irecv, arriving, ring[rank - 1], group, tag)
    return _Arriving(arriving, tensor, distributed.batch_isend_irecv([sends, receives]))


def _kernels(q: Tensor, part: Part) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (flash, flash_backward) if has_flash(q) and part.is_plain else (attend, attend_backward)


def flash(q: Tensor, k: Tensor, v: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """Context of a plain part and its log-sum-exp, by flash attention."""
    rows = (x.transpose(1, 2) for x in (q, k, v))
    sizes = None, None, q.shape[2], k.shape[2]
    # No public function of PyTorch returns the log-sum-exp. The flags: causal, return no mask.
    kernel = torch.ops.aten._flash_attention_forward  # noqa: SLF001
    out, lse, *_ = kernel(*rows, *sizes, 0.0, part.rank == part.other, False, scale=part.rule.scale)
    return out.transpose(1, 2), lse


def flash_backward(  # noqa: PLR0917  (as `attend_backward`)
    do: Tensor, q: Tensor, out: Tensor, lse: Tensor, k: Tensor, v: Tensor, part: Part
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v by flash attention."""
    rows = (x.transpose(1, 2) for x in (do, q, k, v, out))
    sizes, seed = (None, None, q.shape[2], k.shape[2]), torch.empty(2, dtype=torch.uint64, device=q.device)
    kernel = torch.ops.aten._flash_attention_backward  # noqa: SLF001  (as above)
    options = 0.0, part.rank == part.other, seed, seed[0]
    found = kernel(*rows, lse.contiguous(), *sizes, *options, scale=part.rule.scale)
    dq, dk, dv = (x.transpose(1, 2) for x in found)
    return dq, dk, dv


def attend(q: Tensor, k: Tensor, v: Tensor, part: Part) -> tuple[Tensor, Tensor]:
    """Context of a part and its log-sum-exp, in fp32; 0 and -Inf for a query that sees no key."""
    outs, lses = [], []
    keys, values = k.float()[:, :, None], v.float()[:, :, None]
    for rows in _tiles(q, k):
        scores_BGRST, _ = _scores(q, keys, part, rows)
        lse = scores_BGRST.logsumexp(-1)
        weights = (scores_BGRST - lse.masked_fill(lse == -torch.inf, 0)[..., None]).exp()
        outs.append((weights @ values).flatten(1, 2))
        lses.append(lse.flatten(1, 2))
    return torch.cat(outs, 2), torch.cat(lses, 2)


def attend_backward(  # noqa: PLR0917  (what forward has, and its gradient)
    do: Tensor, q: Tensor, out: Tensor, lse: Tensor, k: Tensor, v: Tensor, part: Part
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v in fp32, from context and log-sum-exp over all keys."""
    keys, values, scale = k.float()[:, :, None], v.float()[:, :, None], part.rule.scale
    dqs, dk, dv = [], torch.zeros_like(keys[:, :, 0]), torch.zeros_like(values[:, :, 0])
    for rows in _tiles(q, k):
        scores_BGRST, slope_BGRST = _scores(q, keys, part, rows)
        grouped = (_grouped(x[:, :, rows], k.shape[1]) for x in (do, out, q, lse[..., None]))
        do_BGRSD, out_BGRSD, q_BGRSD, lse_BGRS1 = grouped
        weights = (scores_BGRST - lse_BGRS1).exp()
        dv += torch.einsum("bgrst,bgrsd->bgtd", weights, do_BGRSD)
        rowsum = (do_BGRSD * out_BGRSD).sum(-1, keepdim=True)
        ds = weights.mul_(do_BGRSD @ values.transpose(-1, -2) - rowsum).mul_(scale)
        if slope_BGRST is not None:
            ds *= slope_BGRST
        dqs.append((ds @ keys).flatten(1, 2))
        dk += torch.einsum("bgrst,bgrsd->bgtd", ds, q_BGRSD)
    return torch.cat(dqs, 2), dk, dv


def _tiles(q: Tensor, k: Tensor) -> list[slice]:
    """Slices of the queries whose scores are at most `TILE_ELEMENTS`."""
    b, n, s, _ = q.shape
    width = max(TILE_ELEMENTS // (b * n * k.shape[2]), 1)
    return [slice(start, start + width) for start in range(0, s, width)]


def _grouped(x_BNSD: Tensor, groups: int) -> Tensor:
    """[B, G, R, S, D] in fp32."""
    b, n, s, d = x_BNSD.shape
    return x_BNSD.float().view(b, groups, n // groups, s, d)


def _scores(q: Tensor, keys_BG1TD: Tensor, part: Part, rows: slice) -> tuple[Tensor, Tensor | None]:
    """Scores of some queries, [B, G, R, S, T] in fp32, -Inf where they see no key; and the soft cap's derivative."""
    rule = part.rule
    scores = _grouped(q[:, :, rows], keys_BG1TD.shape[1]) @ keys_BG1TD.transpose(-1, -2) * rule.scale
    slope = None
    if rule.cap is not None:
        scores = (scores / rule.cap).tanh_()
        slope, scores = 1 - scores.square(), scores * rule.cap
    rows_S, columns_T = part.places(q.device)
    distance_ST = rows_S[rows, None] - columns_T
    if rule.slopes is not None:
        slopes_GR11 = torch.tensor(rule.slopes, device=q.device).view(scores.shape[1], -1, 1, 1)
        if isinstance(rule.slopes[0], Bf16Slope):
            keys_T = columns_T if part.begins is None else columns_T - part.begins[:, None, None, rows, None]
            scores += (slopes_GR11.bfloat16() * keys_T).float() * rule.scale
        else:
            scores -= slopes_GR11 * distance_ST
    hidden = distance_ST < 0
    if rule.window is not None:
        hidden = hidden | (distance_ST >= rule.window)
    if part.begins is not None:
        hidden = hidden | (columns_T < part.begins[:, None, None, rows, None])
    return scores.masked_fill_(hidden, -torch.inf), slope
