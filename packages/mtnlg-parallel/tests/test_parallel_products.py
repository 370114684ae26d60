"""`products` and `sharded_optimizer.ParameterGradient`: weight gradients added in fp32, once, and when told to."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from mtnlg_parallel.engine.sharded_optimizer import Deferral, ParameterGradient
from mtnlg_parallel.model import products

ROWS, INPUTS, OUTPUTS = 6, 48, 40
Product = Callable[[Tensor, Tensor, Any], Tensor]
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


def weight_with_sink(dtype: torch.dtype, deferral: Deferral) -> tuple[torch.nn.Parameter, Tensor, list[str]]:
    """A weight, the fp32 total of its gradients, and a list of its arrivals."""
    weight = torch.nn.Parameter(torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(7)).to(dtype))
    total, arrivals = torch.full(weight.shape, torch.nan), list[str]()
    vars(weight)["gradient_sink"] = ParameterGradient(total, lambda: arrivals.append("arrived"), deferral)
    return weight, total, arrivals


def direct(product: Product, x: Tensor, weight: Tensor) -> Tensor:
    """The product."""
    return product(x, weight, ALONE)


def recomputed(product: Product, x: Tensor, weight: Tensor) -> Tensor:
    """A layer of which the product's input alone is kept until backward."""
    y: Tensor = checkpoint(lambda x: product(x.clone(), weight, ALONE), x, use_reentrant=False)
    return y


def hooked(product: Product, x: Tensor, weight: Tensor) -> Tensor:
    """As where activations are offloaded: what is saved passes through hooks."""
    with saved_tensors_hooks(lambda saved: saved, lambda kept: kept):
        return product(x, weight, ALONE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("product", [products.column, products.row])
@pytest.mark.parametrize("run", [direct, recomputed, hooked])
@pytest.mark.parametrize("deferred", [False, True])
def test_a_weights_gradient_is_the_sum_of_its_products_in_fp32(
    product: Product, run: Callable[[Product, Tensor, Tensor], Tensor], dtype: torch.dtype, deferred: bool
) -> None:
    deferral = Deferral()
    weight, total, arrivals = weight_with_sink(dtype, deferral)
    expected = torch.zeros(OUTPUTS, INPUTS, dtype=torch.float64)
    put_off = []
    for number in range(3):
        x, dy = micro_batch(number, dtype)
        deferral.products = [] if deferred else None
        run(product, x.requires_grad_(), weight).backward(dy)  # type: ignore[no-untyped-call]
        put_off += deferral.products or []
        expected += dy.double().flatten(0, 1).t() @ x.detach().double().flatten(0, 1)
        torch.testing.assert_close(x.grad, dy @ weight.detach())
    assert arrivals == ([] if deferred else ["arrived"] * 3)
    for add in put_off:
        add()
    assert arrivals == ["arrived"] * 3
    assert weight.grad is None
    torch.testing.assert_close(total.double(), expected, rtol=1e-5, atol=1e-5)


def test_without_a_sink_autograd_has_the_gradient() -> None:
    weight = torch.nn.Parameter(torch.randn(OUTPUTS, INPUTS))
    x, dy = micro_batch(0, torch.float32)
    products.column(x, weight, ALONE).backward(dy)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(weight.grad, dy.flatten(0, 1).t() @ x.flatten(0, 1))


def test_adding_a_gradient_moves_eight_bytes_a_parameter() -> None:
    """Reads and writes of the fp32 total, none of a gradient of its own: 28 bytes where DeepSpeed's engine adds it."""
    weight, total, _ = weight_with_sink(torch.bfloat16, Deferral())
    sink = vars(weight)["gradient_sink"]
    for number in range(2):
        x, dy = (value.flatten(0, 1) for value in micro_batch(number, torch.bfloat16))
        with WeightTraffic() as traffic:
            sink.product(dy.t(), x.t())
    given_twice = 2 * total.nbytes  # as the operand and as ``out``; and it is the result
    assert traffic.bytes == total.nbytes + given_twice
    assert given_twice / weight.numel() == 8


def test_recomputation_leaves_out_a_layers_last_product() -> None:
    up, down = (torch.nn.Parameter(torch.randn(*shape)) for shape in ((OUTPUTS, INPUTS), (INPUTS, OUTPUTS)))
    x, _ = micro_batch(0, torch.float32)
    inputs = [x.requires_grad_(), up, down]

    def layer(x: Tensor) -> Tensor:
        return x + products.row(products.column(x, up, ALONE).tanh(), down, ALONE)

    with FlopCounterMode(display=False) as counter:
        y: Tensor = checkpoint(layer, x, use_reentrant=False)
        gradients = torch.autograd.grad(y.sum(), inputs)
    assert counter.get_total_flops() == 7 * 2 * x.numel() * OUTPUTS, "2 forward, 1 again, 4 backward"
    assert all(map(torch.equal, gradients, torch.autograd.grad(layer(x).sum(), inputs)))


@pytest.mark.parametrize(("error", "adds"), [(None, True), (RuntimeError, False), (TypeError, False)])
def test_whether_a_gpu_adds_in_fp32_is_tried_not_asked_of_a_version(
    error: type[Exception] | None, adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def addmm(*_: Tensor, out_dtype: torch.dtype, out: Tensor) -> None:
        assert out.dtype == out_dtype
        if error:
            raise error

    monkeypatch.setattr(torch, "addmm", addmm)
    assert products.adds_in_fp32.__wrapped__(torch.device("cpu")) is adds
