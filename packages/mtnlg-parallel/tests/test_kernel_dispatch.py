"""Fused or eager operations for a device, and the message when they are eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from mtnlg_parallel.engine.pipeline_engine import native_attention
from mtnlg_parallel.kernels import best_ops, dispatch
from mtnlg_parallel.model.eight_bit import FORWARD
from mtnlg_parallel.model.head import EAGER

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget_messages() -> None:
    dispatch._say_once.cache_clear()


@pytest.mark.parametrize(
    ("device", "has_triton", "reason"),
    [
        ("cpu", True, "cpu is not an NVIDIA GPU"),
        ("cpu", False, "Triton is not installed; pip install 'mtnlg-parallel[kernels]'"),
        ("cuda", True, "Tesla V100 is older than the A100"),
    ],
)
def test_other_devices_get_eager_operations_and_one_message(
    device: str, has_triton: bool, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    triton = pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")
    monkeypatch.setattr(triton.knobs, "propagate_env", False)  # else it sets TRITON_INTERPRET in the environment
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla V100")
    if not has_triton:
        monkeypatch.setattr(dispatch, "find_spec", lambda _name: None)
    assert [best_ops(torch.device(device)) for _ in range(2)] == [EAGER, EAGER]
    assert capsys.readouterr().err == f"no fused kernels: {reason}\n"


def test_interpreted_kernels_fall_back_for_other_dtypes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")
    ops = best_ops(CPU)
    assert ops is not EAGER
    x_F, bias_F = torch.randn(2, 8), torch.randn(8)
    assert "mtnlg_bias_gelu" in str(ops.bias_gelu(x_F.requires_grad_(), bias_F).grad_fn)
    assert not capsys.readouterr().err
    for _ in range(2):
        out_F = ops.bias_gelu(x_F.double(), bias_F.double())
    assert torch.equal(out_F, EAGER.bias_gelu(x_F.double(), bias_F.double()))
    assert capsys.readouterr().err == "bias_gelu: no fused kernel for float64 on cpu\n"


def test_loss_kernel_falls_back_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")
    chunk = torch.randn(2, 8, dtype=torch.float64), torch.tensor([1, 9]), 0
    assert torch.equal(best_ops(CPU).statistics(*chunk), EAGER.statistics(*chunk))
    assert capsys.readouterr().err == "statistics: no fused kernel for float64 on cpu\n"


def test_fp32_is_rounded_to_8_bits_without_a_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")
    factor, _ = best_ops(torch.device("meta")).eight_bit.rounded(torch.empty(16, 16, device="meta"), FORWARD, True)
    assert factor.values.shape == (16, 16)
    assert capsys.readouterr().err == "rounded: no fused kernel for float32 on meta\n"


def test_empty_tensors_launch_nothing() -> None:
    pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")
    x_F, bias_F = torch.empty(0, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    torch.autograd.backward(best_ops(CPU).bias_gelu(x_F, bias_F).sum())
    assert bias_F.grad is not None
    assert not bias_F.grad.any()


@pytest.mark.parametrize(
    ("capability", "deterministic", "is_first"),
    [((9, 0), False, True), ((10, 0), False, True), ((8, 0), False, False), ((9, 0), True, False)],
)
def test_cudnn_attention_comes_first_from_hopper_on(
    capability: tuple[int, int], deterministic: bool, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    order = torch._C._get_sdp_priority_order
    cudnn: Any = SDPBackend.CUDNN_ATTENTION
    before = order()
    with native_attention(torch.device("cuda")):
        assert (order() != before) == is_first
        assert order()[0] == (int(cudnn) if is_first else before[0])
    assert order() == before
