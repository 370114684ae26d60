"""Whether the kernels compute on this GPU what they must, before anything is timed.

Every operation, outputs and gradients, in three dtypes, at the widest rows and at ragged ones, against eager fp64: an
error of at most four times eager's own in that dtype, and two roundings of the greatest value. The head's two kernels
likewise, and in fp32 the operations with dropout, under a mask foretold by Philox-4x32-7 as Salmon et al. 2011 write it
down (sections 2 and 3.3). That mask bit by bit. And bias + GeLU of more than 2³¹ elements, every one of them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpu_clock import DEVICE, DTYPE, GPU, release
from gpu_operations import EPS, OPERATIONS, Shape, drawn
from mtnlg_model import functional
from mtnlg_parallel.model import head

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpu_operations import Operation
    from mtnlg_parallel.model.head import ParallelOps

WIDE = Shape("widest rows", 64, 2, 20480, 81920 // 8, 16, 160, 51200 // 8)
RAGGED = Shape("ragged", 37, 3, 1001, 1013, 3, 72, 1003)
TINY = (Shape("ragged", 3, 1, 41, 37, 2, 12, 59),)
RATE = 0.1


class Check(NamedTuple):
    """One claim: what was compared, the error, and the error that it may have."""

    what: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether it holds; a NaN does not."""
        return self.error <= self.allowed


def checks(ops: ParallelOps, tiny: bool) -> list[Check]:
    """All of them."""
    dtypes = (torch.float32, DTYPE) if tiny else (torch.float32, torch.bfloat16, torch.float16)
    found = []
    for shape in TINY if tiny else (WIDE, RAGGED):
        for dtype in dtypes:
            found += [_against_fp64(each, ops, shape, dtype) for each in OPERATIONS if not each.drops]
            found += _head_kernels(ops, shape, dtype)
        found += [_dropped(each, ops, shape) for each in OPERATIONS if each.drops] + [_mask(ops, shape)]
        release()
    found.append(_past_31_bits(ops, *((7, 40) if tiny else ((1 << 17) + 3, 20480))))
    release()
    return found


def _against_fp64(operation: Operation, ops: ParallelOps, shape: Shape, dtype: torch.dtype) -> Check:
    generator = torch.Generator(DEVICE).manual_seed(7)
    inputs = [drawn(size, dtype, generator) for size in operation.inputs(shape)]
    sides = operation.sides(ops, shape)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    reference = sides["eager"](*exact)
    upstream = [torch.randn(out.shape, generator=generator, device=DEVICE).to(dtype) for out in reference]
    found = {name: _all_of(sides[name](*inputs), inputs, upstream) for name in ("kernel", "eager")}
    wanted = _all_of(reference, exact, [tensor.double() for tensor in upstream])
    return _worst(f"{operation.name}, {shape.name}, {_short(dtype)}", found["kernel"], found["eager"], wanted, dtype)


def _all_of(outputs: tuple[Tensor, ...], inputs: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
    """Outputs and gradients of the inputs."""
    return [*(out.detach() for out in outputs), *torch.autograd.grad(outputs, inputs, upstream)]


def _worst(what: str, ours: list[Tensor], eager: list[Tensor], wanted: list[Tensor], dtype: torch.dtype) -> Check:
    """Of several tensors the one that is nearest to what it may not be."""
    found = []
    for mine, theirs, right in zip(ours, eager, wanted, strict=True):
        error, twin = ((tensor.double() - right).abs().max().item() for tensor in (mine, theirs))
        # A loss is in fp32 whatever its inputs are, and its error theirs.
        found.append(Check(what, error, 4 * twin + 2 * torch.finfo(dtype).eps * right.abs().max().item()))
    return max(found, key=lambda check: math.inf if math.isnan(check.error) else check.error / (check.allowed or 1))


def _head_kernels(ops: ParallelOps, shape: Shape, dtype: torch.dtype) -> list[Check]:
    """Of a slice in the middle of the vocabulary, some targets before it, in it and behind it."""
    generator, width = torch.Generator(DEVICE).manual_seed(8), shape.vocabulary
    tokens = shape.sequence * shape.batch
    logits = 4 * torch.randn(tokens, width, generator=generator, device=DEVICE)
    targets = torch.randint(3 * width, (tokens,), generator=generator, device=DEVICE)
    logits, exact = logits.to(dtype), logits.to(dtype).double()
    about = f"{shape.name}, {_short(dtype)}"
    wanted = head.statistics(exact, targets, width)
    found = [ops.statistics(logits, targets, width), head.statistics(logits, targets, width)]
    statistics = _worst(f"head's statistics, {about}", list(found[0]), list(found[1]), list(wanted), torch.float32)
    logsumexp = wanted[0] + wanted[1].log()
    ours, eager = logits.clone(), logits.clone()
    ops.gradient(ours, targets, width, logsumexp.float(), 0.5)
    head.gradient(eager, targets, width, logsumexp.float(), 0.5)
    head.gradient(exact, targets, width, logsumexp, 0.5)
    return [statistics, _worst(f"head's gradient, {about}", [ours], [eager], [exact], dtype)]


def philox(counter: tuple[NDArray[np.uint64], ...], seed: int, rounds: int = 7) -> tuple[NDArray[np.uint64], ...]:
    """Philox-4x32: four 32-bit words of four counter words and a 64-bit key, all held in 64 bits."""
    low, key = np.uint64(0xFFFFFFFF), [seed & 0xFFFFFFFF, seed >> 32]
    c0, c1, c2, c3 = counter
    for _ in range(rounds):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        k0, k1 = np.uint64(key[0]), np.uint64(key[1])
        c0, c1, c2, c3 = (
            (second >> np.uint64(32)) ^ c1 ^ k0,
            second & low,
            (first >> np.uint64(32)) ^ c3 ^ k1,
            first & low,
        )
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c0, c1, c2, c3


def kept(seed: int, rows: int, columns: int) -> Tensor:
    """What dropout of `RATE` leaves [rows, columns], by kernels/bits.py's words: 8 numbers of 16 bits a counter."""
    groups = np.arange(-(-columns // 8), dtype=np.uint64)[None, :]
    zero = np.zeros((rows, groups.shape[1]), dtype=np.uint64)
    words = philox((zero + groups, zero + np.arange(rows, dtype=np.uint64)[:, None], zero, zero), seed)
    halves = [half for word in words for half in (word & np.uint64(0xFFFF), word >> np.uint64(16))]
    numbers = np.stack(halves, axis=-1).reshape(rows, -1)[:, :columns]
    return torch.from_numpy(numbers >= np.uint64(round(RATE * 65536))).to(DEVICE)


SCALE = 65536 / (65536 - round(RATE * 65536))


def _next_seed() -> int:
    """Seed torch, and foretell what the next call's dropout takes from it."""
    torch.manual_seed(11)
    seed = int(torch.randint(1 << 62, (), device="cpu"))
    torch.manual_seed(11)
    return seed


def _mask(ops: ParallelOps, shape: Shape) -> Check:
    """Ones dropped, with nothing added, show the mask."""
    ones = torch.ones(shape.sequence * shape.batch, shape.hidden, device=DEVICE)
    wanted = kept(_next_seed(), *ones.shape)
    zeros = torch.zeros_like(ones)
    found = ops.bias_dropout_add(ones, zeros[0], zeros, RATE, True) != 0
    return Check(f"dropout's mask, {shape.name}: elements that differ", float((found != wanted).sum()), 0.0)


def _dropped(operation: Operation, ops: ParallelOps, shape: Shape) -> Check:
    """An operation with dropout, its gradients too, against fp64 under the foretold mask."""
    generator = torch.Generator(DEVICE).manual_seed(9)
    inputs = [drawn(size, torch.float32, generator) for size in operation.inputs(shape)]
    rows = (*shape.q[:-1], shape.sequence) if operation.inputs(shape)[0] == shape.q else shape.x
    keeps = kept(_next_seed(), math.prod(rows[:-1]), rows[-1]).view(rows)
    masked = partial(MASKED[operation.name], keeps)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    reference = masked(*exact)
    upstream = [torch.randn(out.shape, generator=generator, device=DEVICE) for out in reference]
    wanted = _all_of(reference, exact, [tensor.double() for tensor in upstream])
    eager = _all_of(masked(*inputs), inputs, upstream)
    _next_seed()
    ours = _all_of(operation.sides(ops, shape)["kernel"](*inputs), inputs, upstream)
    return _worst(f"{operation.name}, {shape.name}, fp32", ours, eager, wanted, torch.float32)


def _masked_add(keeps: Tensor, x: Tensor, bias: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
    return (residual + torch.where(keeps, (x + bias) * SCALE, 0.0),)


def _masked_add_norm(keeps: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    total, (weight, shift) = _masked_add(keeps, *inputs[:3])[0], inputs[3:]
    return total, functional.layer_norm(total, weight, shift, EPS)


def _masked_attention(keeps: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    mask = functional.causal_mask(q.shape[-2], k.shape[-2], DEVICE)
    scores = q @ k.transpose(-1, -2) * functional.attention_scale(q.shape[-1])
    p = torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1)
    return (torch.where(keeps, p * SCALE, 0.0) @ v,)


MASKED: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "bias_dropout_add_norm 0.1": _masked_add_norm,
    "bias_dropout_add 0.1": _masked_add,
    "attention's softmax 0.1": _masked_attention,
}


def _past_31_bits(ops: ParallelOps, rows: int, columns: int) -> Check:
    """Every element of a tensor that 32-bit offsets do not reach; a wrong offset shows as an error of about 1."""
    x = torch.empty(rows, columns, dtype=DTYPE, device=DEVICE)
    upstream = torch.empty_like(x)
    generator = torch.Generator(DEVICE).manual_seed(10)
    with torch.no_grad():
        for tensor in (x, upstream):
            tensor.normal_(generator=generator)
    bias = drawn((columns,), DTYPE, generator)
    out = ops.bias_gelu(x.requires_grad_(), bias)
    x_grad, bias_grad = torch.autograd.grad(out, [x, bias], upstream)
    worst, wanted = 0.0, torch.zeros(columns, dtype=torch.float64, device=DEVICE)
    step = 1 << 13
    for start in range(0, rows, step):
        part = slice(start, start + step)
        mine, mine_bias = (tensor.detach().float().requires_grad_() for tensor in (x[part], bias))
        right = functional.bias_gelu(mine, mine_bias)
        right_grad, right_bias = torch.autograd.grad(right, [mine, mine_bias], upstream[part].float())
        wanted += right_bias.double()
        for found, exact in ((out[part], right), (x_grad[part], right_grad)):
            worst = max(worst, ((found.float() - exact).abs() / (1 + exact.abs())).max().item())
    error = (bias_grad.double() - wanted).abs().max() / wanted.abs().max()
    worst = max(worst, error.item())
    eps = torch.finfo(DTYPE).eps
    return Check(f"bias_gelu of {rows * columns:,} elements, bf16{'' if GPU else ' (small, for a trial)'}", worst, eps)


def _short(dtype: torch.dtype) -> str:
    return {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
