"""Checks of the kernels' numbers on this GPU, before anything is timed.

Every operation's outputs and gradients, in bf16 and fp32, with the widest and with ragged rows, against eager fp64: the
error is at most four times eager's own in that dtype, plus two roundings of the greatest value. The same for the
head's two kernels and, in fp32, for operations with dropout, under a mask computed by a reference Philox-4x32-7 (Salmon
et al. 2011, sections 2 and 3.3). That mask bit by bit. Bias + GeLU of more than 2³¹ elements, each of them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mtnlg_model import functional
from mtnlg_parallel.model import eight_bit, head

from .clock import DEVICE, DTYPE, GPU, generator, kernels, release
from .operations import EPS, OPERATIONS, Shape, random_input

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray

    from mtnlg_parallel.model.head import ParallelOps

    from .operations import Operation
    from .results import Results

WIDE = Shape("widest rows", 64, 2, 20480, 81920 // 8, 16, 160, 51200 // 8)
RAGGED = Shape("ragged", 37, 3, 1001, 1013, 3, 72, 1003)
TINY = Shape("ragged", 3, 1, 41, 37, 2, 12, 59)
DTYPES = (DTYPE, torch.float32)
RATE = 0.1


class Check(NamedTuple):
    """One claim: what was compared, its error, and the allowed error."""

    what: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the error is within bounds; a NaN is not."""
        return self.error <= self.allowed


def all_checks(ops: ParallelOps, tiny: bool) -> Iterator[tuple[str, Callable[[], Iterable[Check]]]]:
    """Return all checks, named by the first claim of each; ``tiny`` shrinks the shapes for a trial."""
    for shape in (TINY,) if tiny else (WIDE, RAGGED):
        for dtype in DTYPES:
            for operation in OPERATIONS:
                if not operation.drops:
                    what = f"{operation.name}, {shape.name}, {SHORT[dtype]}"
                    yield what, partial(_against_fp64, what, operation, ops, shape, dtype)
            what = f"{shape.name}, {SHORT[dtype]}"
            yield f"head's statistics, {what}", partial(_head_kernels, what, ops, shape, dtype)
            for eighth in (eight_bit.FORWARD, eight_bit.BACKWARD) if dtype == DTYPE else ():
                what = f"rounded to {SHORT[eighth]}, {shape.name}, {SHORT[dtype]}: elements that differ"
                yield what, partial(_rounding, what, ops, shape, dtype, eighth)
        for operation in OPERATIONS:
            if operation.drops:
                what = f"{operation.name}, {shape.name}, fp32"
                yield what, partial(_check_dropout, what, operation, ops, shape)
        what = f"dropout's mask, {shape.name}: elements that differ"
        yield what, partial(_check_mask, what, ops, shape)
    rows, columns = (7, 40) if tiny else ((1 << 17) + 3, 20480)
    what = f"bias_gelu of {rows * columns:,} elements, bf16{'' if GPU else ' (small, for a trial)'}"
    yield what, partial(_past_31_bits, what, ops, rows, columns)


def main(tiny: bool, results: Results) -> None:
    """Check."""
    for what, run in all_checks(kernels(), tiny):
        if results.has(what):
            continue
        with results.attempt(what):
            for check in run():
                line = f"error {check.error:.2e}, allowed {check.allowed:.2e}{'' if check.passed else ': WRONG'}"
                wrong = {} if check.passed else {"error": line}
                figures: dict[str, object] = {
                    "difference": check.error,
                    "allowed": check.allowed,
                    "passed": check.passed,
                }
                results.add(check.what, line, figures | wrong)
        release()


def _against_fp64(what: str, operation: Operation, ops: ParallelOps, shape: Shape, dtype: torch.dtype) -> tuple[Check]:
    numbers = generator(7)
    inputs = [random_input(size, dtype, numbers) for size in operation.inputs(shape)]
    sides = operation.sides(ops, shape)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    reference = sides["eager"](*exact)
    upstream = [torch.randn(out.shape, generator=numbers, device=DEVICE).to(dtype) for out in reference]
    tensors = {name: _with_gradients(sides[name](*inputs), inputs, upstream) for name in ("kernel", "eager")}
    expected = _with_gradients(reference, exact, [tensor.double() for tensor in upstream])
    return (_worst(what, tensors["kernel"], tensors["eager"], expected, dtype),)


def _with_gradients(outputs: tuple[Tensor, ...], inputs: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
    """Return the outputs and the gradients of the inputs."""
    return [*(out.detach() for out in outputs), *torch.autograd.grad(outputs, inputs, upstream)]


def _worst(what: str, ours: list[Tensor], eager: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> Check:
    """Return the check of the tensor whose error is nearest to its bound, or farthest beyond."""
    results = []
    for our, their, right in zip(ours, eager, expected, strict=True):
        error, eager_error = ((tensor.double() - right).abs().max().item() for tensor in (our, their))
        # ``dtype`` is the inputs': a loss is always fp32, but its error is theirs.
        results.append(Check(what, error, 4 * eager_error + 2 * torch.finfo(dtype).eps * right.abs().max().item()))
    return max(results, key=lambda check: math.inf if math.isnan(check.error) else check.error / (check.allowed or 1))


def _head_kernels(about: str, ops: ParallelOps, shape: Shape, dtype: torch.dtype) -> tuple[Check, Check]:
    """Check the head on a slice in the middle of the vocabulary, with targets before, in and after it."""
    numbers, width = generator(8), shape.vocabulary
    tokens = shape.sequence * shape.batch
    logits = 4 * torch.randn(tokens, width, generator=numbers, device=DEVICE)
    targets = torch.randint(3 * width, (tokens,), generator=numbers, device=DEVICE)
    logits, exact = logits.to(dtype), logits.to(dtype).double()
    expected = head.statistics(exact, targets, width)
    ours, eager = (list(side(logits, targets, width)) for side in (ops.statistics, head.statistics))
    statistics = _worst(f"head's statistics, {about}", ours, eager, list(expected), torch.float32)
    logsumexp = expected[0] + expected[1].log()
    our_logits, eager_logits = logits.clone(), logits.clone()
    ops.gradient(our_logits, targets, width, logsumexp.float(), 0.5)
    head.gradient(eager_logits, targets, width, logsumexp.float(), 0.5)
    head.gradient(exact, targets, width, logsumexp, 0.5)
    return statistics, _worst(f"head's gradient, {about}", [our_logits], [eager_logits], [exact], dtype)


def _rounding(what: str, ops: ParallelOps, shape: Shape, dtype: torch.dtype, eighth: torch.dtype) -> tuple[Check]:
    """Both results and the scale of random numbers, zeros, subnormal numbers and some that are not finite."""
    numbers = generator(12)
    size = (shape.sequence * shape.batch, shape.hidden)
    x_RK = torch.randn(size, generator=numbers, device=DEVICE).to(dtype)
    differing = 0
    for factor in (x_RK, x_RK.t(), 0 * x_RK, x_RK * torch.finfo(dtype).tiny / 8, x_RK / (x_RK > 1), x_RK.log()):
        sides = (rounding.rounded(factor, eighth, True) for rounding in (ops.eight_bit, eight_bit.Rounding()))
        for ours, right in zip(*sides, strict=True):
            for mine, theirs in zip(ours, right, strict=True):
                differing += int((mine.float().nan_to_num(7e4) != theirs.float().nan_to_num(7e4)).sum())
    return (Check(what, float(differing), 0.0),)


def philox(counter: tuple[NDArray[np.uint64], ...], seed: int, rounds: int = 7) -> tuple[NDArray[np.uint64], ...]:
    """Philox-4x32: four 32-bit words from four counter words and a 64-bit key, each word in a uint64."""
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


def keep_mask(seed: int, rows: int, columns: int) -> Tensor:
    """Elements that dropout of `RATE` keeps, [rows, columns], as kernels/dropout_mask.py: 8 16-bit draws a counter."""
    groups = np.arange(-(-columns // 8), dtype=np.uint64)[None, :]
    zero = np.zeros((rows, groups.shape[1]), dtype=np.uint64)
    words = philox((zero + groups, zero + np.arange(rows, dtype=np.uint64)[:, None], zero, zero), seed)
    halves = [half for word in words for half in (word & np.uint64(0xFFFF), word >> np.uint64(16))]
    numbers = np.stack(halves, axis=-1).reshape(rows, -1)[:, :columns]
    return torch.from_numpy(numbers >= np.uint64(round(RATE * 65536))).to(DEVICE)


SCALE = 65536 / (65536 - round(RATE * 65536))


def _predict_seed() -> int:
    """Seed torch; return the seed that the next call's dropout will draw."""
    torch.manual_seed(11)
    seed = int(torch.randint(1 << 62, (), device=DEVICE))
    torch.manual_seed(11)
    return seed


def _check_mask(what: str, ops: ParallelOps, shape: Shape) -> tuple[Check]:
    """Dropout of ones, added to zeros, shows the mask."""
    ones = torch.ones(shape.sequence * shape.batch, shape.hidden, device=DEVICE)
    expected = keep_mask(_predict_seed(), *ones.shape)
    zeros = torch.zeros_like(ones)
    mask = ops.bias_dropout_add(ones, zeros[0], zeros, RATE) != 0
    return (Check(what, float((mask != expected).sum()), 0.0),)


def _check_dropout(what: str, operation: Operation, ops: ParallelOps, shape: Shape) -> tuple[Check]:
    """An operation with dropout and its gradients, against fp64 under the reference mask."""
    numbers = generator(9)
    inputs = [random_input(size, torch.float32, numbers) for size in operation.inputs(shape)]
    keeps = keep_mask(_predict_seed(), shape.sequence * shape.batch, shape.hidden).view(shape.x)
    masked = partial(MASKED[operation.name], keeps)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    reference = masked(*exact)
    upstream = [torch.randn(out.shape, generator=numbers, device=DEVICE) for out in reference]
    expected = _with_gradients(reference, exact, [tensor.double() for tensor in upstream])
    eager = _with_gradients(masked(*inputs), inputs, upstream)
    _predict_seed()
    ours = _with_gradients(operation.sides(ops, shape)["kernel"](*inputs), inputs, upstream)
    return (_worst(what, ours, eager, expected, torch.float32),)


def _masked_add(keeps: Tensor, x: Tensor, bias: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
    return (residual + torch.where(keeps, (x + bias) * SCALE, 0.0),)


def _masked_add_norm(keeps: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    total, (weight, shift) = _masked_add(keeps, *inputs[:3])[0], inputs[3:]
    return total, functional.layer_norm(total, weight, shift, EPS)


MASKED: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "bias_dropout_add_norm 0.1": _masked_add_norm,
    "bias_dropout_add 0.1": _masked_add,
}


def _past_31_bits(what: str, ops: ParallelOps, rows: int, columns: int) -> tuple[Check]:
    """Check every element of a tensor beyond 32-bit offsets; a wrong offset shows as an error of about 1."""
    x = torch.empty(rows, columns, dtype=DTYPE, device=DEVICE)
    upstream = torch.empty_like(x)
    numbers = generator(10)
    with torch.no_grad():
        for tensor in (x, upstream):
            tensor.normal_(generator=numbers)
    bias = random_input((columns,), DTYPE, numbers)
    out = ops.bias_gelu(x.requires_grad_(), bias)
    x_grad, bias_grad = torch.autograd.grad(out, [x, bias], upstream)
    worst, bias_expected = 0.0, torch.zeros(columns, dtype=torch.float64, device=DEVICE)
    step = 1 << 13
    for start in range(0, rows, step):
        part = slice(start, start + step)
        part_x, part_bias = (tensor.detach().float().requires_grad_() for tensor in (x[part], bias))
        right = functional.bias_gelu(part_x, part_bias)
        right_grad, right_bias = torch.autograd.grad(right, [part_x, part_bias], upstream[part].float())
        bias_expected += right_bias.double()
        for ours, exact in ((out[part], right), (x_grad[part], right_grad)):
            worst = max(worst, ((ours.float() - exact).abs() / (1 + exact.abs())).max().item())
    error = (bias_grad.double() - bias_expected).abs().max() / bias_expected.abs().max()
    worst = max(worst, error.item())
    return (Check(what, worst, torch.finfo(DTYPE).eps),)


SHORT = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    eight_bit.FORWARD: "E4M3",
    eight_bit.BACKWARD: "E5M2",
}
