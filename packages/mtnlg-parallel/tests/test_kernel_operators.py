"""Kernels as operators of torch: no graph break, one launch for a norm's backward, seeds on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from mtnlg_parallel.kernels import best_ops
from mtnlg_parallel.model.head import EAGER

pytest.importorskip("triton", reason="kernels are an extra: pip install mtnlg-parallel[kernels]")

from mtnlg_parallel.kernels import dropout, dropout_mask, norm, tiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_model.functional import Ops

CPU = torch.device("cpu")
EPS = 1e-5


def layer(ops: Ops, x_SBH: Tensor, row: Tensor, rate: float) -> Tensor:
    """Every operation of a decoder layer once."""
    normed = ops.rms_norm(ops.layer_norm(x_SBH, row, row, EPS), row, EPS)
    total, out = ops.bias_dropout_add_norm(normed, row, x_SBH, rate, row, row, EPS)
    more, again = ops.dropout_add_rms_norm(ops.swiglu(ops.bias_gelu(out, row), x_SBH), total, rate, row, EPS)
    summed = ops.dropout_add(ops.bias_dropout_add(more, row, again, rate), x_SBH, rate)
    cos, sin = row.detach().view(2, 1, 1, 1, 1, 8).expand(-1, 4, -1, -1, -1, -1)
    return ops.rotate(summed.view(4, 2, 2, 1, 8), cos, sin)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_torch_compile_takes_every_operation_into_one_graph(rate: float) -> None:
    ops = best_ops(CPU)
    assert ops.rms_norm is not EAGER.rms_norm
    x_SBH, row = torch.randn(4, 2, 16), torch.rand(16)  # so small that no exponential overflows: NumPy would warn
    answers = []
    for call in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(5)
        inputs = [x_SBH.clone().requires_grad_(), row.clone().requires_grad_()]
        out = call(ops, inputs[0], inputs[1], rate)
        answers.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for plain, compiled in zip(*answers, strict=True):
        torch.testing.assert_close(compiled, plain)


def test_torch_compile_takes_the_loss_kernels_into_one_graph() -> None:
    ops, logits_NV, targets_N = best_ops(CPU), torch.randn(6, 40), torch.arange(6)

    def loss(logits_NV: Tensor) -> Tensor:
        logits_NV = logits_NV * 2
        terms_3N = ops.statistics(logits_NV, targets_N, 0)
        ops.gradient(logits_NV, targets_N, 0, terms_3N[0] + terms_3N[1].log(), 1.0)
        return logits_NV

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits_NV), loss(logits_NV))


def test_norm_backward_is_one_deterministic_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def launch(kernel: Any, *rest: Any, **constants: Any) -> None:  # noqa: ANN401  (any kernel)
        started.append(kernel)
        tiles.launch(kernel, *rest, **constants)

    monkeypatch.setattr(norm, "launch", launch)
    x_H, row, upstream_H = torch.randn(131, 24), torch.randn(24), torch.randn(131, 24)
    gradients = []
    for _ in range(2):
        inputs = [x_H.clone().requires_grad_(), *(row.clone().requires_grad_() for _ in range(2))]
        out_H = norm.layer_norm(inputs[0], inputs[1], inputs[2], EPS)
        started.clear()
        gradients.append(torch.autograd.grad(out_H, inputs, upstream_H))
        assert len(started) == 1
    assert all(map(torch.equal, *gradients))


def test_replay_after_a_seed_change_draws_a_new_mask() -> None:
    """What a CUDA graph does: the same call with the same tensors, which have other contents."""
    x_H, zero_H, row = torch.ones(8, 64), torch.zeros(8, 64), torch.ones(64)
    torch.manual_seed(1)
    seed = dropout_mask.draw(0.5, x_H)
    assert seed is not None
    on_meta = dropout_mask.draw(0.5, x_H.to("meta"))
    assert on_meta is not None
    assert on_meta.is_meta, "it is drawn where the tensor is"
    operations: list[Callable[[], Any]] = [
        lambda: dropout._dropped_sum(x_H, None, zero_H, seed, 0.5),
        lambda: norm._add_norm(x_H, None, zero_H, seed, 0.5, row, None, EPS)[0],
    ]
    before = [operation() for operation in operations]
    assert all(torch.equal(operation(), first) for operation, first in zip(operations, before, strict=True))
    seed.add_(1)
    assert not any(torch.equal(operation(), first) for operation, first in zip(operations, before, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_replays_of_a_cuda_graph_drop_other_elements() -> None:
    x_H, zero_H = torch.ones(64, 512, device="cuda"), torch.zeros(64, 512, device="cuda")
    dropout.dropout_add(x_H, zero_H, 0.5)  # compiled before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out_H = dropout.dropout_add(x_H, zero_H, 0.5)
    graph.replay()
    first_H = out_H.clone()
    graph.replay()
    assert not torch.equal(out_H, first_H)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_take_fp32_weights_with_half_activations(dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    ops = best_ops(CPU)
    x_H, residual_H, upstream_H = (torch.randn(5, 24).to(dtype) for _ in range(3))
    weight_H, shift_H = torch.randn(24), torch.randn(24)

    def gradients(ops: Ops, kind: torch.dtype, row_kind: torch.dtype) -> list[Tensor]:
        x, residual, upstream = (tensor.to(kind) for tensor in (x_H, residual_H, upstream_H))
        weight, shift = rows = [row.clone().to(row_kind).requires_grad_() for row in (weight_H, shift_H)]
        outputs = [ops.layer_norm(x, weight, shift, EPS), ops.rms_norm(x, weight, EPS)]
        outputs += ops.dropout_add_rms_norm(x, residual, 0.0, weight, EPS)[1:]
        outputs += ops.bias_dropout_add_norm(x, residual[0], residual, 0.0, weight, shift, EPS)[1:]
        return [*outputs, *torch.autograd.grad(outputs, rows, [upstream] * len(outputs))]

    ours, exact = gradients(ops, dtype, torch.float32), gradients(EAGER, torch.float64, torch.float64)
    assert not capsys.readouterr().err, "no fallback"
    assert [tensor.dtype for tensor in ours] == [dtype] * 4 + [torch.float32] * 2
    for result, reference in zip(ours[:4], exact[:4], strict=True):
        torch.testing.assert_close(result.double(), reference, rtol=2**-7, atol=2**-5)  # the sum is rounded, too
    for result, reference in zip(ours[4:], exact[4:], strict=True):
        torch.testing.assert_close(result.double(), reference, rtol=2**-5, atol=2**-4)
