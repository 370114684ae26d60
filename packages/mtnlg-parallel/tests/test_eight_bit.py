"""8-bit factors: their rounding, their product, and sizes; `test_conformance` shows training with them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mtnlg_model.families import preset
from mtnlg_parallel.layout import Layout, eight_bit_error
from mtnlg_parallel.model import eight_bit
from mtnlg_parallel.model.eight_bit import BACKWARD, FORWARD, Factor

#: Half the distance between two 8-bit numbers, relative to the larger: of E4M3 and of E5M2.
ROUNDING = {FORWARD: 2**-4, BACKWARD: 2**-3}


def rounded(x_RK: Tensor, dtype: torch.dtype) -> Factor:
    return eight_bit.rounded(x_RK, dtype, False)[0]


def noise(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", [FORWARD, BACKWARD], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e-4, 1.0, 1e30])
def test_matrix_of_any_magnitude_keeps_format_precision(dtype: torch.dtype, scale: float) -> None:
    x = noise(16, 64, scale=scale)
    values, factor = rounded(x, dtype)
    error = (values.double() * factor.double() - x.double()).abs()
    smallest = torch.finfo(dtype).smallest_normal * factor.double()
    assert values.dtype == dtype
    assert bool((error <= ROUNDING[dtype] * torch.maximum(x.double().abs(), smallest)).all())
    assert values.double().abs().max() == torch.finfo(dtype).max


def test_zeros_stay_zeros_and_non_finite_values_propagate() -> None:
    assert not rounded(torch.zeros(16, 16), FORWARD).values.float().any()
    for bad in (float("nan"), float("inf")):
        broken = noise(16, 16)
        broken[3, 4] = bad
        factor = rounded(broken, BACKWARD)
        assert not bool(torch.isfinite(eight_bit.product(factor, factor, torch.float32)).all())


def test_product_matches_torch_on_rounded_factors() -> None:
    a, b = rounded(noise(32, 64), BACKWARD), rounded(noise(48, 64, scale=7.0), FORWARD)
    by_torch = torch._scaled_mm(a.values, b.values.t(), scale_a=a.scale, scale_b=b.scale, out_dtype=torch.float32)
    torch.testing.assert_close(eight_bit.product(a, b, torch.float32), by_torch, rtol=1e-5, atol=1e-4)
    turned = eight_bit.transpose(a.values)
    assert turned.is_contiguous()
    assert torch.equal(turned.float(), a.values.float().t())


def test_sizes_that_tensor_cores_cannot_take_are_refused() -> None:
    config = preset("mt-nlg-530b")
    assert eight_bit_error(Layout(tp=8, pp=35, dp=8), config, 1) is None
    small = config.model_copy(update={"sequence": 2040})
    assert eight_bit_error(Layout(), small, 1) == (
        'train.precision = "fp8": model.sequence x train.micro_batch is 2040 and must be a multiple of 16; use "bf16"'
    )
    narrow = config.model_copy(update={"ffn": 264})
    assert "model.ffn of a rank, by layout.tp = 8, is 33" in str(eight_bit_error(Layout(tp=8), narrow, 1))
    shared = config.model_copy(update={"heads": 8, "kv_heads": 1, "head_size": 16})
    assert "model.(heads + 2 kv_heads) x head_size of a rank, by layout.tp = 8, is 20" in str(
        eight_bit_error(Layout(tp=8), shared, 1)
    )
