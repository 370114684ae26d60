"""What a sliced product computes again in backward."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mtnlg_parallel.model import products
from mtnlg_parallel.model.products import SlicedWeight

INPUTS, OUTPUTS = 48, 40
ALONE: Any = SimpleNamespace(degree=1, sequence_parallel=False, eight_bit=None)


def test_recomputation_leaves_out_a_layers_last_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "HAS_ONEDNN", False)  # as on a GPU
    up, down = (torch.nn.Parameter(torch.randn(*shape)) for shape in ((OUTPUTS, INPUTS), (INPUTS, OUTPUTS)))
    first, second = SlicedWeight(up, ALONE), SlicedWeight(down, ALONE)
    x = torch.randn(6, 2, INPUTS, requires_grad=True)
    inputs = [x, up, down]

    def layer(x: Tensor) -> Tensor:
        return x + products.row(products.column(x, first).tanh(), second)

    with FlopCounterMode(display=False) as counter:
        y: Tensor = checkpoint(layer, x, use_reentrant=False)
        gradients = torch.autograd.grad(y.sum(), inputs)
    assert counter.get_total_flops() == 7 * 2 * x.numel() * OUTPUTS, "2 forward, 1 again, 4 backward"
    assert all(map(torch.equal, gradients, torch.autograd.grad(layer(x).sum(), inputs)))
