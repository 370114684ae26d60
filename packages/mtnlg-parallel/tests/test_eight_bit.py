"""Products of 8-bit factors: their rounding, their transposes, and the gradients of a product that is made of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from mtnlg_model.families import preset
from mtnlg_parallel.layout import Layout, eight_bit_error
from mtnlg_parallel.model import eight_bit, products
from mtnlg_parallel.model.eight_bit import BACKWARD, FORWARD, EightBit, Factor, Rounding
from mtnlg_parallel.model.products import SlicedWeight

#: Half the distance between two 8-bit numbers, relative to the larger: of E4M3 and of E5M2.
ROUNDING = {FORWARD: 2**-4, BACKWARD: 2**-3}
ONE_RANK: Any = SimpleNamespace(degree=1, sequence_parallel=False, eight_bit=EightBit(Rounding()))


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


def test_zeros_stay_zeros_and_what_is_not_finite_is_seen() -> None:
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


@pytest.mark.parametrize("product", [products.column, products.row])
@pytest.mark.parametrize("recompute", [False, True])
def test_weight_is_rounded_once_per_step(
    product: Any,  # noqa: ANN401  (as above)
    recompute: bool,
) -> None:
    x, weight, rounded_weights = noise(4, 8, 64).requires_grad_(), torch.nn.Parameter(noise(48, 64)), []

    def counted(x_RK: Tensor, dtype: torch.dtype, transposed: bool) -> tuple[Factor, Factor]:
        rounded_weights.extend([x_RK] if x_RK.data_ptr() == weight.data_ptr() else [])
        return eight_bit.rounded(x_RK, dtype, transposed)

    counting: Any = SimpleNamespace(**{**vars(ONE_RANK), "eight_bit": EightBit(Rounding(counted))})
    layer = SlicedWeight(weight, counting)

    def run() -> Tensor:
        y: Tensor = product(x.clone(), layer)
        return y

    answers = []
    for _ in range(2):
        counting.eight_bit.forget_weights()
        for _ in range(3):  # micro-batches
            out = checkpoint(run, use_reentrant=False) if recompute else run()
            answers.append([out.detach(), *torch.autograd.grad(out, [x, weight], torch.ones_like(out))])
        with torch.no_grad():
            weight.data.neg_()  # as an engine updates: no version of autograd's says so
    assert len(rounded_weights) == 2
    for first, second in zip(answers[0], answers[1], strict=True):
        assert torch.equal(first, second)
    (before, before_grad, _), (after, after_grad, _) = answers[0], answers[3]
    assert torch.equal(after, -before)
    assert torch.equal(after_grad, -before_grad)


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


@pytest.mark.parametrize("rank", [0, 1])
def test_sequence_parallel_rank_gathers_8_bit_rows(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The factors are those of the whole input: a rank's rows have the scale of all."""
    x, weight, dy = noise(8, 2, 64), torch.nn.Parameter(noise(48, 64)), noise(8, 2, 48)
    x_NI, x_IN = eight_bit.rounded(x.view(-1, 64), FORWARD, True)
    wholes = {torch.float32: x, torch.uint8: x_NI.values.view(torch.uint8)}

    def gather(local: Tensor, _slicing: object) -> tuple[Tensor, None]:
        whole = wholes[local.dtype]
        assert torch.equal(local, whole.chunk(2)[rank])
        return whole, None

    monkeypatch.setattr(products, "_gather", gather)
    monkeypatch.setattr(products, "_sum", lambda partial, _slicing: (partial.chunk(2)[rank], None))
    slicing: Any = SimpleNamespace(degree=2, rank=rank, sequence_parallel=True, eight_bit=EightBit(Rounding()))
    y = products.column(x.chunk(2)[rank].clone().requires_grad_(), SlicedWeight(weight, slicing))
    y.backward(dy)  # type: ignore[no-untyped-call]
    w_OI = rounded(weight.detach(), FORWARD)
    assert torch.equal(y.detach().view(-1, 48), eight_bit.product(x_NI, w_OI, torch.float32))
    _, dy_ON = eight_bit.rounded(dy.view(-1, 48), BACKWARD, True)
    assert weight.grad is not None
    assert torch.equal(weight.grad, eight_bit.product(dy_ON, x_IN, torch.float32))


@pytest.mark.parametrize("bits", [8, 16])
def test_shared_input_is_rounded_once_for_all_products(bits: int) -> None:
    roundings: list[tuple[torch.Size, torch.dtype]] = []

    def noted(x_RK: Tensor, dtype: torch.dtype, transposed: bool) -> tuple[Factor, Factor]:
        roundings.append((x_RK.shape, dtype))
        return eight_bit.rounded(x_RK, dtype, transposed)

    slicing: Any = SimpleNamespace(
        degree=1, sequence_parallel=False, eight_bit=EightBit(Rounding(rounded=noted)) if bits == 8 else None
    )
    x = noise(16, 2, 64).bfloat16()
    weights = [torch.nn.Parameter(noise(width, 64).bfloat16()) for width in (48, 80)]
    layers = [SlicedWeight(weight, slicing) for weight in weights]
    dys = [noise(16, 2, width).bfloat16() for width in (48, 80)]

    def gradients(products_of: Any) -> list[Tensor]:  # noqa: ANN401  (a function)
        input_SBH = x.clone().requires_grad_()
        ys = products_of(input_SBH)
        return [*ys, *torch.autograd.grad(ys, [input_SBH, *weights], dys)]

    together = gradients(lambda input_SBH: products.columns(input_SBH, *layers))
    assert roundings.count((torch.Size([32, 64]), FORWARD)) == (bits == 8)
    apart = gradients(lambda input_SBH: [products.column(input_SBH, layer) for layer in layers])
    assert all(map(torch.equal, together, apart))
