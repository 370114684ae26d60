"""Rounding to 8 bits in two launches gives the bits of PyTorch's operations, for every matrix.

Triton's interpreter converts to 8 bits otherwise than a GPU: ties go up, and a carry leaves the exponent as it is; of
bf16 it loses subnormal numbers. So here it converts as the PTX ISA says of ``cvt.rn.satfinite``, to which the kernels
compile (tests/test_compiled_kernels.py).
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mtnlg_parallel.model import eight_bit
from mtnlg_parallel.model.eight_bit import BACKWARD, FORWARD

pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")

from triton.runtime import interpreter

from mtnlg_parallel.kernels import best_ops, rounding, tiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS = [FORWARD, BACKWARD]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (3, 5), (16, 48), (129, 67), (128, 64), (260, 16), (0, 16), (16, 0)]
TINY = torch.finfo(torch.float32).tiny


@pytest.fixture(autouse=True)
def _conversion_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    convert_constants = interpreter._convert_float

    def convert(x: NDArray[Any], kind: Any, to: Any, mode: object) -> Any:  # noqa: ANN401  (Triton's types)
        """To the nearest number, of two the even one, at most the largest: positive numbers are in order of bits."""
        if kind.is_bf16() and to.is_fp32():
            return np.left_shift(x, 16, dtype=np.uint32)
        if not to.is_fp8():
            return convert_constants(x, kind, to, mode)
        format_ = BACKWARD if to.is_fp8e5() else FORWARD
        numbers = torch.arange(128, dtype=torch.uint8).view(format_).double()
        finite = numbers[torch.isfinite(numbers)].numpy()
        numbers_of_x = x.view(np.float32).astype(np.float64)
        right = np.searchsorted(finite, np.abs(numbers_of_x)).clip(1, len(finite) - 1)
        below, above = np.abs(numbers_of_x) - finite[right - 1], finite[right] - np.abs(numbers_of_x)
        is_left = (below < above) | ((below == above) & (right % 2 == 1))
        bits: NDArray[Any] = np.where(np.isnan(numbers_of_x), 127, right - is_left) | np.signbit(numbers_of_x) << 7
        return bits.astype(np.uint8)

    monkeypatch.setattr(interpreter, "_convert_float", convert)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def every_number(dtype: torch.dtype) -> Tensor:
    """All finite numbers of 16 bits, or those of fp32 about all numbers of 8 bits and about the ties between them."""
    if dtype != torch.float32:
        numbers = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)
        return numbers[torch.isfinite(numbers)]
    eighths = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(FORWARD).float()
    eighths = eighths[torch.isfinite(eighths)].sort().values
    ties = (eighths[1:] + eighths[:-1]) / 2
    exact = torch.cat((eighths, ties)).view(torch.int32)
    return torch.cat([(exact + off).view(torch.float32) for off in (-1, 0, 1)])


def assert_same_bits(x_RK: Tensor, format_: torch.dtype) -> None:
    with np.errstate(invalid="ignore"):  # of zero times infinity
        expected, ours = (side(x_RK, format_, True) for side in (eight_bit.rounded, rounding.rounded))
    for right, factor in zip(expected, ours, strict=True):
        assert factor.values.is_contiguous()
        assert factor.values.shape == right.values.shape
        assert factor.scale.shape == right.scale.shape
        assert torch.equal(factor.scale.nan_to_num(-1), right.scale.nan_to_num(-1))
        is_nan = right.values.float().isnan()  # whose sign differs between devices
        assert torch.equal(factor.values.float().isnan(), is_nan)
        assert torch.equal(*(each.view(torch.uint8).masked_fill(is_nan, 0) for each in (factor.values, right.values)))


@pytest.mark.parametrize(("format_", "dtype", "shape"), list(product(FORMATS, DTYPES, SHAPES)), ids=str)
def test_a_matrix_of_any_shape_is_rounded_to_the_same_bits(
    format_: torch.dtype, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    if not all(shape):
        factor, turned = rounding.rounded(torch.empty(shape, dtype=dtype), format_, True)
        assert (factor.values.shape, turned.values.shape) == (shape, shape[::-1])
        return
    assert_same_bits(noise(*shape).to(dtype), format_)


@pytest.mark.parametrize(("format_", "dtype"), list(product(FORMATS, DTYPES)), ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-2, 2.0**-40])
def test_every_number_is_rounded_to_the_same_bits(format_: torch.dtype, dtype: torch.dtype, scale: float) -> None:
    """Beside a largest that scales nothing, by a power of two, and by a number without one."""
    numbers = every_number(dtype).float() * scale
    for largest in (torch.finfo(format_).max * scale, 3.0 * scale):
        x = numbers.clamp(-largest, largest).to(dtype)
        rest = torch.tensor([largest]).to(dtype).expand(64 - len(x) % 64)
        assert_same_bits(torch.cat((x, rest)).view(-1, 64), format_)


@pytest.mark.parametrize(("format_", "dtype"), list(product(FORMATS, DTYPES)), ids=str)
def test_special_values_round_to_the_same_bits(format_: torch.dtype, dtype: torch.dtype) -> None:
    zeros = torch.zeros(5, 9, dtype=dtype)
    assert_same_bits(zeros, format_)
    assert_same_bits(-zeros, format_)
    smallest = noise(5, 9).to(dtype) * torch.finfo(dtype).tiny * 0.3
    assert smallest.any()
    assert_same_bits(smallest, format_)
    for bad in (torch.nan, torch.inf, -torch.inf):
        broken = noise(5, 9).to(dtype)
        broken[3, 4] = bad
        assert_same_bits(broken, format_)
        assert bool(eight_bit.rounded(broken, format_, True)[1].values[4, 3].isnan()), (
            "products of it are seen to be wrong"
        )


def test_a_matrix_with_gaps_is_rounded_as_without(monkeypatch: pytest.MonkeyPatch) -> None:
    x_RK = noise(40, 64).bfloat16()
    for gaps in (x_RK.t(), x_RK[:, ::2], x_RK[::3]):
        assert_same_bits(gaps, FORWARD)
    assert torch.equal(rounding.transpose(eight_bit.rounded(x_RK, FORWARD, False)[0].values).float(), turned(x_RK))
    started: list[Any] = []

    def launch(kernel: Any, *rest: Any, **constants: Any) -> None:  # noqa: ANN401  (any kernel)
        started.append(kernel)
        tiles.launch(kernel, *rest, **constants)

    monkeypatch.setattr(rounding, "launch", launch)
    rounding.rounded(x_RK, FORWARD, True)
    assert len(started) == 2, "one for the largest, one for both results"


def turned(x_RK: Tensor) -> Tensor:
    return eight_bit.rounded(x_RK, FORWARD, True)[1].values.float()


def test_what_is_not_asked_for_is_empty() -> None:
    assert not rounding.rounded(noise(16, 32), FORWARD, False)[1].values.numel()


def test_torch_compile_takes_rounding_into_one_graph() -> None:
    def multiplied(x_RK: Tensor) -> Tensor:
        factor, turned = rounding.rounded(x_RK * 2, BACKWARD, True)
        return eight_bit.product(factor, turned._replace(values=rounding.transpose(turned.values)), torch.float32)

    x_RK = noise(16, 32)
    torch.testing.assert_close(
        torch.compile(multiplied, fullgraph=True, backend="aot_eager")(x_RK), multiplied(x_RK), rtol=0, atol=0
    )


def test_devices_without_8_bit_conversion_use_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert best_ops(torch.device("cpu")).eight_bit == eight_bit.Rounding()
    assert best_ops(torch.device("meta")).eight_bit.transpose is rounding.transpose
    for capability, is_fused in (((8, 0), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, found=capability: found)
        ops = best_ops(torch.device("cuda")).eight_bit
        assert (ops.transpose is not eight_bit.transpose) is is_fused
