"""What the sliced products cost: bytes of weight gradients, and what is computed again."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mtnlg_parallel.engine.sharded_optimizer import ParameterGradient, PutOff
from mtnlg_parallel.model import products
from mtnlg_parallel.model.products import SlicedWeight

ROWS, INPUTS, OUTPUTS = 6, 48, 40
ALONE: Any = SimpleNamespace(degree=1, sequence_parallel=False, eight_bit=None)


class WeightTraffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes that operations read and write in tensors as large as the weight, views left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401  (torch's)
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
            self.bytes += sum(tensor.nbytes for tensor in tensors if tensor.numel() == OUTPUTS * INPUTS)
        return out


def micro_batch(number: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x and dy."""
    draw = torch.Generator().manual_seed(number)
    return (torch.randn(ROWS, 2, width, generator=draw).to(dtype) for width in (INPUTS, OUTPUTS))  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def _torchs_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU."""
    monkeypatch.setattr(products, "HAS_ONEDNN", False)


def test_adding_a_gradient_moves_eight_bytes_a_parameter() -> None:
    """Reads and writes of the fp32 total, none of a gradient of its own: 28 bytes where DeepSpeed's engine adds it."""
    total = torch.empty(OUTPUTS, INPUTS)
    sink = ParameterGradient(total, lambda: None, PutOff(0))
    for number in range(2):
        x, dy = (value.flatten(0, 1) for value in micro_batch(number, torch.bfloat16))
        with WeightTraffic() as traffic:
            sink.product(dy.t(), x.t())
    given_twice = 2 * total.nbytes  # as the operand and as ``out``; and it is the result
    assert traffic.bytes == total.nbytes + given_twice
    assert given_twice / total.numel() == 8


def test_recomputation_leaves_out_a_layers_last_product() -> None:
    up, down = (torch.nn.Parameter(torch.randn(*shape)) for shape in ((OUTPUTS, INPUTS), (INPUTS, OUTPUTS)))
    first, second = SlicedWeight(up, ALONE), SlicedWeight(down, ALONE)
    x, _ = micro_batch(0, torch.float32)
    inputs = [x.requires_grad_(), up, down]

    def layer(x: Tensor) -> Tensor:
        return x + products.row(products.column(x, first).tanh(), second)

    with FlopCounterMode(display=False) as counter:
        y: Tensor = checkpoint(layer, x, use_reentrant=False)
        gradients = torch.autograd.grad(y.sum(), inputs)
    assert counter.get_total_flops() == 7 * 2 * x.numel() * OUTPUTS, "2 forward, 1 again, 4 backward"
    assert all(map(torch.equal, gradients, torch.autograd.grad(layer(x).sum(), inputs)))
