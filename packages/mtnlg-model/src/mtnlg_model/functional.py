"""The decoder's operations in plain PyTorch, and `Ops`, the table by which fused kernels replace them.

    bias_gelu               gelu(x + b),  gelu(x) = x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))
    bias_dropout_add        r + dropout(x + b)
    layer_norm              (x - mean) / sqrt(variance + eps) · w + b
    bias_dropout_add_norm   that sum, and its layer norm
    swiglu                  x · g / (1 + exp -g)
    dropout_add             r + dropout(x)
    rms_norm                x / sqrt(mean x² + eps) · w
    dropout_add_rms_norm    that sum, and its RMS norm
    rotate                  rotary positions of q and k
    attention               softmax(scale · Q Kᵀ + mask) V, with ALiBi softmax(scale · Q Kᵀ + slope · key + mask) V
    cross_entropy           logsumexp(z) - z[target]
    fp32_logits             x Wᵀ without rounding

S sequence (queries), T keys, B batch, H hidden, N heads, G heads of keys and values, D head size, R rotated values of a
head, V vocabulary. Dropout at rate 0, as outside training, adds no operation and draws no random number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor
from torch.autograd import Function

from . import alibi
from .config import WINDOW_BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Mask: TypeAlias = "Tensor | Segments | None"

AttentionOp: TypeAlias = "Callable[[Tensor, Tensor, Tensor, Mask, Rule], Tensor]"
"""A function as `attention`."""

TABLE_ROWS = 8192
"""Rows of the token table converted to fp32 at a time."""

MAX_FLASH_HEAD = 256
"""Largest head size of flash attention; head sizes must be multiples of 8."""


def layer_norm(x_H: Tensor, weight_H: Tensor, bias_H: Tensor, eps: float) -> Tensor:
    """Normalize the last axis, then scale and shift."""
    return F.layer_norm(x_H, weight_H.shape, weight_H, bias_H, eps)


def rms_norm(x_H: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """Divide by the root of the mean square over the last axis, then scale."""
    return F.rms_norm(x_H, weight_H.shape, weight_H, eps)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """Tanh-approximated GeLU of ``x + bias``."""
    return F.gelu(x + bias, approximate="tanh")


def swiglu(gate: Tensor, x: Tensor) -> Tensor:
    """``x`` times SiLU of ``gate`` (Shazeer 2020)."""
    return F.silu(gate) * x


def geglu(gate: Tensor, x: Tensor) -> Tensor:
    """``x`` times tanh-approximated GeLU of ``gate`` (Shazeer 2020)."""
    return F.gelu(gate, approximate="tanh") * x


def relu2(x: Tensor) -> Tensor:
    """The square of ReLU (So et al. 2021)."""
    return F.relu(x).square()


def softcap(x: Tensor, cap: float | None) -> Tensor:
    """``cap`` tanh(x / cap), which stays within the cap (Gemma Team 2024); ``x`` itself without one."""
    return x if cap is None else torch.tanh(x / cap) * cap


def add_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """``x + bias``; ``x`` itself without one."""
    return x if bias is None else x + bias


def dropout(x: Tensor, rate: float) -> Tensor:
    """Dropout; ``x`` itself at rate 0."""
    return F.dropout(x, rate) if rate else x


def bias_dropout_add(x: Tensor, bias: Tensor, residual: Tensor, rate: float) -> Tensor:
    """``residual + dropout(x + bias)``."""
    return residual + dropout(x + bias, rate)


def bias_dropout_add_norm(  # noqa: PLR0917  (the signature of a kernel)
    x_H: Tensor,
    bias_H: Tensor,
    residual_H: Tensor,
    rate: float,
    weight_H: Tensor,
    shift_H: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """``residual + dropout(x + bias)``, and its layer norm with scale ``weight`` and bias ``shift``."""
    total_H = bias_dropout_add(x_H, bias_H, residual_H, rate)
    return total_H, layer_norm(total_H, weight_H, shift_H, eps)


def dropout_add(x: Tensor, residual: Tensor, rate: float) -> Tensor:
    """``residual + dropout(x)``."""
    return residual + dropout(x, rate)


def dropout_add_rms_norm(
    x_H: Tensor, residual_H: Tensor, rate: float, weight_H: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """``residual + dropout(x)``, and its RMS norm."""
    total_H = dropout_add(x_H, residual_H, rate)
    return total_H, rms_norm(total_H, weight_H, eps)


def rotate(x_SBGND: Tensor, cos_SB11R: Tensor, sin_SB11R: Tensor) -> Tensor:
    """Rotate the first R values of every head by the angles of its position (`rotary.Rotation`); contiguous."""
    size = cos_SB11R.shape[-1]
    if size < x_SBGND.shape[-1]:
        turned, rest = torch.split(x_SBGND, [size, x_SBGND.shape[-1] - size], dim=-1)
        return torch.cat((rotate(turned, cos_SB11R, sin_SB11R), rest), dim=-1)
    return torch.addcmul(x_SBGND * cos_SB11R, x_SBGND.roll(size // 2, -1), sin_SB11R)


class Rule(NamedTuple):
    """How scores are made of q and k, the rate of dropout, and which keys a query may attend to.

    With a ``window`` a query attends to the last ``window`` of the keys that it may attend to, which must be
    consecutive. ``cap`` is the `softcap` of the scores. ``slopes`` are ALiBi's, one per head: the decrease of scores
    per key of distance; keys must be consecutive, too. Dropout is applied whenever ``rate`` > 0.
    """

    scale: float
    rate: float = 0.0
    window: int | None = None
    cap: float | None = None
    slopes: tuple[float, ...] | None = None


def attention(q_BNSD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, mask: Mask, rule: Rule) -> Tensor:
    """Scaled dot-product attention of S queries over T keys -> [B, N, S, D].

    G divides N: N / G consecutive heads of q share keys and values. ``mask`` is true where a query may attend and
    broadcasts to [B, 1, S, T]; causality is not added to it. Without a mask attention is causal, with the last query at
    the last key. `Segments` as the mask compute the result themselves.
    """
    if mask is not None and not isinstance(mask, Tensor):
        return mask.attention(q_BNSD, k_BGTD, v_BGTD, rule)
    scale, rate, window, cap, slopes = rule
    if slopes is not None:
        with_positions = alibi.extended(q_BNSD, k_BGTD, v_BGTD, slopes, scale, mask)
        return attention(*with_positions, mask, rule._replace(slopes=None))[..., : v_BGTD.shape[-1]]
    (b, n, s, d), (g, t) = q_BNSD.shape, k_BGTD.shape[1:3]
    is_causal = False
    if window is not None and window < t:
        if mask is None:
            return _windowed(q_BNSD, k_BGTD, v_BGTD, window, rule)
        mask = mask & ~F.pad(mask[..., window:], (0, window))  # drop keys `window` before an allowed key
    elif mask is None and s > 1:  # an `if`: compiled decoders have no bool of dynamic sizes
        if s < t:
            mask = causal_mask(s, t, q_BNSD.device)
        else:
            is_causal = True
    if cap is not None:  # no kernel of PyTorch has it
        k_BNTD, v_BNTD = (x.repeat_interleave(n // g, dim=1) for x in (k_BGTD, v_BGTD))
        scores_BNST = softcap(q_BNSD @ k_BNTD.transpose(2, 3) * scale, cap)
        scores_BNST = scores_BNST.masked_fill(~(causal_mask(s, t, q_BNSD.device) if mask is None else mask), -torch.inf)
        weights_BNST = torch.softmax(scores_BNST, dim=-1, dtype=torch.float32).to(q_BNSD.dtype)
        return dropout(weights_BNST, rate) @ v_BNTD
    if g < n and s == 1:  # a group's heads become queries of one head: keys are not copied
        q_BGND = q_BNSD.reshape(b, g, n // g, d)
        x_BGND = F.scaled_dot_product_attention(q_BGND, k_BGTD, v_BGTD, attn_mask=mask, dropout_p=rate, scale=scale)
        return x_BGND.reshape(b, n, 1, d)
    return F.scaled_dot_product_attention(
        q_BNSD,
        k_BGTD,
        v_BGTD,
        attn_mask=mask,
        dropout_p=rate,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=g < n,
    )


def _windowed(q_BNSD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, window: int, rule: Rule) -> Tensor:
    """Causal `attention` that computes no scores beyond the windows, but for those of other queries of a block."""
    s, t = q_BNSD.shape[2], k_BGTD.shape[2]
    if rule.cap is None and has_flash(q_BNSD):
        q, k, v = (x.transpose(1, 2) for x in (q_BNSD, k_BGTD, v_BGTD))
        return flash_varlen(q, k, v, (None, None), (s, t), rule).transpose(1, 2)
    if torch.compiler.is_compiling():  # one graph for all lengths
        return attention(q_BNSD, k_BGTD, v_BGTD, causal_mask(s, t, q_BNSD.device), rule)
    band = causal_mask(WINDOW_BLOCK, WINDOW_BLOCK + window - 1, q_BNSD.device).triu()
    if rule.cap is None:  # PyTorch makes this of a boolean mask, and would keep one for each block
        band = torch.zeros_like(band, dtype=q_BNSD.dtype).masked_fill_(~band, -torch.inf)
    sliced, outs, unlimited = [_Sliced(x) for x in (q_BNSD, k_BGTD, v_BGTD)], [], rule._replace(window=None)
    for queries, keys in window_blocks(s, t, window):
        q, k, v = (x[part] for x, part in zip(sliced, (queries, keys, keys), strict=True))
        end = window - 1 + q.shape[2]
        outs.append(attention(q, k, v, band[: q.shape[2], end - k.shape[2] : end], unlimited))
    return torch.cat(outs, 2)


def window_blocks(queries: int, keys: int, window: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of queries, the last at the last key, and the keys in any of a block's windows."""
    for start in range(0, queries, WINDOW_BLOCK):
        end, place = min(start + WINDOW_BLOCK, queries), keys - queries + start
        yield slice(start, end), slice(max(place - window + 1, 0), keys - queries + end)


class _Sliced:
    """Slices of a tensor's tokens, whose gradients are summed in place: autograd makes each as large as the tensor."""

    def __init__(self, x_BNSD: Tensor) -> None:
        self._sums: list[Tensor] = []
        self._x_BNSD = _Whole.apply(x_BNSD, self._sums)  # type: ignore[no-untyped-call]

    def __getitem__(self, part: slice) -> Tensor:
        x_BNSD: Tensor = _Part.apply(self._x_BNSD, self._sums, part)  # type: ignore[no-untyped-call]
        return x_BNSD


class _Whole(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sums: list[Tensor]) -> Tensor:  # noqa: ANN401  (autograd's context)
        ctx.sums = sums
        ctx.set_materialize_grads(False)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, _: None) -> tuple[Tensor, None]:  # noqa: ANN401  (as above)
        return ctx.sums.pop(), None


class _Part(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sums: list[Tensor], part: slice) -> Tensor:  # noqa: ANN401  (as above)
        ctx.figures = x.shape, sums, part
        return x[:, :, part]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # noqa: ANN401  (as above)
        shape, sums, part = ctx.figures
        if not sums:
            sums.append(gradient.new_zeros(shape))
        sums[0][:, :, part] += gradient
        return None, None, None


def has_flash(q: Tensor) -> bool:
    """Whether PyTorch's flash attention takes these queries [..., D]; of GPUs it needs Ampere or later."""
    d = q.shape[-1]
    is_older = q.is_cuda and torch.cuda.get_device_properties(q.device).major < 8
    takes = q.dtype in {torch.bfloat16, torch.float16} and d % 8 == 0 and d <= MAX_FLASH_HEAD
    return takes and not (q.is_cpu or is_older)


def flash_varlen(  # noqa: PLR0917  (as `attention`)
    q_TND: Tensor,
    k_UGD: Tensor,
    v_UGD: Tensor,
    bounds: tuple[Tensor | None, Tensor | None],
    longest: tuple[int, int],
    rule: Rule,
) -> Tensor:
    """Causal flash attention within each of n sequences, the last query of each at its last key -> [T, N, D].

    ``bounds`` are the cumulative sums from 0 of the sequences' numbers of queries and of keys, int32 [n + 1];
    ``longest`` are upper bounds of those numbers. Queries after the last sequence get no result. Without bounds, the
    first axis has sequences as long as ``longest``.
    """
    sides: Any = {} if rule.window is None else {"window_size_left": rule.window - 1, "window_size_right": 0}
    # No public function of PyTorch takes sequences, windows and dropout. The flags: causal, return no mask.
    flash = torch.ops.aten._flash_attention_forward  # noqa: SLF001
    options = *bounds, *longest, rule.rate, True, False
    x_TND: Tensor = flash(q_TND, k_UGD, v_UGD, *options, scale=rule.scale, **sides)[0]
    return x_TND


def attention_scale(head_size: int) -> float:
    """1 / sqrt(D)."""
    return 1 / math.sqrt(head_size)


def causal_mask(queries: int, keys: int, device: torch.device | None = None) -> Tensor:
    """Boolean [queries, keys], true where the key is not after the query; the last query is at the last key."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def fp32_logits(x_NH: Tensor, table_VH: Tensor) -> Tensor:
    """Logits x Wᵀ in fp32, [N, H] x [V, H] → [N, V]: not rounded to the weights' precision, which would make ties.

    The table is converted a part at a time, so there is never an fp32 copy of all of it.
    """
    if table_VH.dtype == torch.float32:
        return F.linear(x_NH, table_VH)
    if x_NH.is_cuda:
        return torch.mm(x_NH, table_VH.T, out_dtype=torch.float32)
    parts: tuple[Tensor, ...] = torch.split(table_VH, TABLE_ROWS)
    return torch.cat([F.linear(x_NH.float(), part.float()) for part in parts], dim=1)


def cross_entropy(logits_V: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of every token in nats, computed in fp32, in the shape of ``targets``."""
    flat = F.cross_entropy(logits_V.float().flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


@dataclass(frozen=True)
class Ops:
    """The operations of a decoder; a kernel of the same signature may replace each."""

    layer_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor] = layer_norm
    bias_gelu: Callable[[Tensor, Tensor], Tensor] = bias_gelu
    bias_dropout_add: Callable[[Tensor, Tensor, Tensor, float], Tensor] = bias_dropout_add
    bias_dropout_add_norm: Callable[[Tensor, Tensor, Tensor, float, Tensor, Tensor, float], tuple[Tensor, Tensor]] = (
        bias_dropout_add_norm
    )
    swiglu: Callable[[Tensor, Tensor], Tensor] = swiglu
    dropout_add: Callable[[Tensor, Tensor, float], Tensor] = dropout_add
    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    dropout_add_rms_norm: Callable[[Tensor, Tensor, float, Tensor, float], tuple[Tensor, Tensor]] = dropout_add_rms_norm
    rotate: Callable[[Tensor, Tensor, Tensor], Tensor] = rotate
    attention: AttentionOp = attention


EAGER = Ops()
"""Every operation in plain PyTorch."""


class Attend(Protocol):
    """Replacement for causal self-attention in one layer, such as a key-value cache or packed rows."""

    @property
    def places(self) -> Tensor | None:
        """Indices into the sequence to compute outputs for; None for all S."""

    def __call__(self, attention: AttentionOp, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, rule: Rule) -> Tensor:
        """Context [B, N, S or len(places), D], computed by any number of calls of ``attention``."""


class Segments(Protocol):
    """A mask that computes `attention` itself, from the other arguments."""

    @property
    def attention(self) -> Callable[..., Tensor]:
        """Context of every query."""


@dataclass(frozen=True)
class Documents:
    """An `Attend` for rows of concatenated documents: a token attends to the earlier tokens of its document.

    ``lengths`` are the documents' lengths in tokens, in order over all rows; each row ends at the end of a document.
    ``bounds`` are the cumulative sums of ``lengths`` from 0, int32 [documents + 1], on the GPU of q; None on a CPU.
    """

    lengths: tuple[int, ...]
    bounds: Tensor | None = None

    @property
    def places(self) -> None:
        """None: all tokens."""

    def __call__(self, attention: AttentionOp, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, rule: Rule) -> Tensor:
        """Context [B, N, S, D]."""
        return attention(q_BNSD, k_BNSD, v_BNSD, self, rule)

    def attention(self, q_BNSD: Tensor, k_BGSD: Tensor, v_BGSD: Tensor, rule: Rule) -> Tensor:
        """`attention` within each document, one after the other, or by one GPU kernel that computes the same."""
        b, _, s, _ = q_BNSD.shape
        if self.bounds is not None and (rule.cap, rule.slopes) == (None, None) and has_flash(q_BNSD):
            q_TND, k_TGD, v_TGD = (x.transpose(1, 2).flatten(0, 1) for x in (q_BNSD, k_BGSD, v_BGSD))
            bounds, longest = (self.bounds, self.bounds), (max(self.lengths),) * 2
            x_TND = flash_varlen(q_TND, k_TGD, v_TGD, bounds, longest, rule)
            return x_TND.view(b, s, *x_TND.shape[1:]).transpose(1, 2)
        rows = (x.transpose(0, 1).flatten(1, 2)[None] for x in (q_BNSD, k_BGSD, v_BGSD))
        parts: Any = zip(*(torch.split(x_1NTD, list(self.lengths), 2) for x_1NTD in rows), strict=True)
        x_NTD = torch.cat([attention(q, k, v, None, rule) for q, k, v in parts], 2)[0]
        return x_NTD.view(len(x_NTD), b, s, -1).transpose(0, 1)
