"""Dropout masks of the kernels: Philox's bits, the same in every kernel, in backward and in recomputation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from mtnlg_model import functional

pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")

from mtnlg_parallel.kernels import dropout, dropout_mask, norm

RATE = 0.3
EPS = 1e-5


def philox(counter: tuple[int, int, int, int], key: tuple[int, int], rounds: int) -> tuple[int, int, int, int]:
    """Philox-4x32 as its authors define it, in Python's integers."""
    (a, b, c, d), (first, second) = counter, key
    for _ in range(rounds):
        low, high = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (high >> 32) ^ b ^ first, high & 0xFFFFFFFF, (low >> 32) ^ d ^ second, low & 0xFFFFFFFF
        first, second = (first + 0x9E3779B9) & 0xFFFFFFFF, (second + 0xBB67AE85) & 0xFFFFFFFF
    return a, b, c, d


def kept(seed: int, rows: int, columns: int) -> torch.Tensor:
    """Mask of the elements that are kept at `RATE`, computed one number at a time."""
    mask = np.empty((rows, columns), dtype=bool)
    key, (threshold, _) = (seed & 0xFFFFFFFF, seed >> 32), dropout_mask.threshold_and_scale(RATE)
    for row in range(rows):
        for group in range(-(-columns // 8)):
            words = philox((group, row, 0, 0), key, 7)
            halves = [half for word in words for half in (word & 0xFFFF, word >> 16)]
            stays = np.array(halves) >= threshold
            mask[row, group * 8 : group * 8 + 8] = stays[: columns - group * 8]
    return torch.from_numpy(mask)


def test_the_reference_is_philox() -> None:
    # Known answers of Random123 for zero counter and key.
    assert philox((0, 0, 0, 0), (0, 0), 10) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((0, 0, 0, 0), (0, 0), 7) == (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)


@pytest.mark.parametrize(("rows", "columns"), [(6, 40), (5, 21), (2, 530)])
def test_every_kernel_drops_the_elements_that_philox_selects(rows: int, columns: int) -> None:
    x_H, row = torch.randn(rows, columns) + 5, torch.zeros(columns)
    drawn, scale = _drawn(11)
    expected_H = torch.where(kept(drawn, rows, columns), x_H * scale, 0)
    torch.manual_seed(11)
    torch.testing.assert_close(dropout.bias_dropout_add(x_H, row, torch.zeros_like(x_H), RATE), expected_H)
    torch.manual_seed(11)
    total_H, _ = norm.bias_dropout_add_norm(x_H, row, torch.zeros_like(x_H), RATE, row, row, EPS)
    torch.testing.assert_close(total_H, expected_H)


def test_an_element_whose_number_is_the_threshold_is_kept() -> None:
    torch.manual_seed(4)
    seed = int(torch.randint(1 << 62, ()))
    word = philox((0, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32), 7)[1]
    for column, number in ((2, word & 0xFFFF), (3, word >> 16)):
        for rate, stays in ((number / 65536, True), ((number + 1) / 65536, False)):
            torch.manual_seed(4)
            out_H = dropout.dropout_add(torch.ones(1, 8), torch.zeros(1, 8), rate)
            assert bool(out_H[0, column]) is stays


def test_dropped_elements_have_no_gradient() -> None:
    x_H, bias_H = torch.randn(67, 24, requires_grad=True), torch.randn(24, requires_grad=True)
    residual_H, upstream_H = torch.randn(67, 24, requires_grad=True), torch.randn(67, 24)
    drawn, scale = _drawn(3)
    mask_H = torch.where(kept(drawn, 67, 24), scale, 0.0)
    torch.manual_seed(3)
    torch.autograd.backward(dropout.bias_dropout_add(x_H, bias_H, residual_H, RATE), upstream_H)
    torch.testing.assert_close(x_H.grad, upstream_H * mask_H)
    torch.testing.assert_close(bias_H.grad, (upstream_H * mask_H).sum(0))
    torch.testing.assert_close(residual_H.grad, upstream_H)


def test_norm_after_dropout_uses_one_mask() -> None:
    shapes = [(5, 24), (24,), (5, 24), (24,), (24,)]
    ours = [torch.randn(shape, requires_grad=True) for shape in shapes]
    exact = [tensor.detach().double().requires_grad_() for tensor in ours]
    upstream = [torch.randn(5, 24) for _ in range(2)]
    drawn, scale = _drawn(7)
    torch.manual_seed(7)
    x_H, bias_H, residual_H, weight_H, shift_H = ours
    torch.autograd.backward(norm.bias_dropout_add_norm(x_H, bias_H, residual_H, RATE, weight_H, shift_H, EPS), upstream)
    x_H, bias_H, residual_H, weight_H, shift_H = exact
    total_H = residual_H + (x_H + bias_H) * torch.where(kept(drawn, 5, 24), scale, 0.0)
    outputs = (total_H, functional.layer_norm(total_H, weight_H, shift_H, EPS))
    torch.autograd.backward(outputs, [tensor.double() for tensor in upstream])
    for tensor, reference in zip(ours, exact, strict=True):
        assert tensor.grad is not None
        torch.testing.assert_close(tensor.grad.double(), reference.grad, rtol=1e-5, atol=1e-5)


def test_recomputation_draws_the_same_mask() -> None:
    inputs = torch.randn(8, 24), torch.randn(24), torch.randn(8, 24)

    def gradient(recompute: bool) -> torch.Tensor:
        torch.manual_seed(2)
        x_H = inputs[0].clone().requires_grad_()
        arguments = (x_H, *inputs[1:], RATE)
        if recompute:
            out_H = checkpoint(dropout.bias_dropout_add, *arguments, use_reentrant=False)
        else:
            out_H = dropout.bias_dropout_add(*arguments)
        torch.rand(3)  # advance the generator before backward
        torch.autograd.backward(out_H.square().sum())
        assert x_H.grad is not None
        return x_H.grad

    assert torch.equal(gradient(recompute=True), gradient(recompute=False))


def test_a_rate_is_rounded_to_1_in_65536_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    ones_H = dropout.bias_dropout_add(torch.ones(64, 4096), torch.zeros(4096), torch.zeros(64, 4096), 0.1)
    threshold, scale = dropout_mask.threshold_and_scale(0.1)
    assert threshold == round(0.1 * 65536)
    assert scale * (1 - threshold / 65536) == pytest.approx(1)
    # Standard deviation of the kept fraction over 262,144 draws: 5.9e-4.
    assert float((ones_H > 0).float().mean()) == pytest.approx(0.9, abs=5 * 5.9e-4)


def test_without_dropout_no_number_is_drawn() -> None:
    before = torch.get_rng_state()
    dropout.bias_dropout_add(torch.ones(2, 8), torch.ones(8), torch.ones(2, 8), 0.0)
    assert torch.equal(torch.get_rng_state(), before)


def _drawn(seed: int) -> tuple[int, float]:
    """Seed of the mask of the next call after this seed, and its scale."""
    torch.manual_seed(seed)
    return int(torch.randint(1 << 62, ())), dropout_mask.threshold_and_scale(RATE)[1]
