"""What is in flight beside what: the order in which collectives begin, are waited for, and products run between.

Torch's collectives are replaced by ones that note when they begin and when they are waited for. On CUDA waiting makes
the stream wait, not the host, so what runs between the two runs beside the collective.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from mtnlg_parallel import layout
from mtnlg_parallel.engine import sharded_optimizer
from mtnlg_parallel.engine.contract import StepSettings
from mtnlg_parallel.engine.sharded_optimizer import BucketKind, ShardedOptimizer
from mtnlg_parallel.model import products, sequence_parallel
from mtnlg_parallel.model.products import SlicedWeight
from mtnlg_parallel.model.tensor_parallel import checkpoint_activations
from mtnlg_parallel.recipe import Train

Events = list[str]
TRAIN = Train.model_validate({"samples": 8, "batch": 8, "lr": 1e-3, "decay": 8})


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    """What happens, in order."""
    noted: Events = []

    def begin(name: str) -> Any:  # noqa: ANN401  (a collective)
        def collective(*_tensors: Tensor, async_op: bool = False, **_group: object) -> Any:  # noqa: ANN401
            assert async_op, f"{name} blocks"
            noted.append(name)
            return SimpleNamespace(wait=lambda: noted.append(f"waited for {name}"))

        return collective

    names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor")
    fake = SimpleNamespace(**{name: begin(name) for name in names})
    for module in (products, sequence_parallel, sharded_optimizer):
        monkeypatch.setattr(module, "distributed", fake)
    return noted


def sliced(degree: int, sequence_parallel: bool) -> Any:  # noqa: ANN401  (what a product asks of a slicing)
    group = SimpleNamespace(size=lambda: degree)
    return SimpleNamespace(degree=degree, sequence_parallel=sequence_parallel, eight_bit=None, group=group)


def sliced_weight(slicing: Any, events: Events) -> SlicedWeight:  # noqa: ANN401  (as above)
    """A weight whose gradient's product is noted."""
    layer = SlicedWeight(torch.nn.Parameter(torch.randn(4, 4)), slicing)
    layer.sink = SimpleNamespace(
        product=lambda *_: events.append("product for dW"), beside=lambda: events.append("product that waits")
    )
    return layer


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_input_gradient_sum_overlaps_weight_product(sequence_parallel: bool, events: Events) -> None:
    slicing = sliced(2, sequence_parallel)
    y = products.column(torch.randn(2, 1, 4, requires_grad=True), sliced_weight(slicing, events))
    events.clear()
    y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]
    if sequence_parallel:
        gather, scatter = "all_gather_into_tensor", "reduce_scatter_tensor"
        beside = ["product that waits", f"waited for {gather}", "product for dW"]
        assert events == [gather, scatter, *beside, f"waited for {scatter}"]
    else:
        assert events == ["all_reduce", "product that waits", "product for dW", "waited for all_reduce"]


def test_output_gradient_gather_overlaps_a_product_that_waits(events: Events) -> None:
    slicing = sliced(2, True)
    y = products.row(torch.randn(2, 1, 4, requires_grad=True), sliced_weight(slicing, events))
    events.clear()
    y.backward(torch.ones_like(y))  # type: ignore[no-untyped-call]
    gather = "all_gather_into_tensor"
    assert events == [gather, "product that waits", f"waited for {gather}", "product for dW"]


@pytest.mark.parametrize("product", [products.column, products.row])
def test_forward_collectives_overlap_products_of_pieces(
    product: Callable[..., Tensor], events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "PIECE_TOKENS", 1)
    slicing = sliced(4, True)
    layer, is_row = sliced_weight(slicing, events), product is products.row
    matmul = products.matmul

    def noted(*factors: Tensor) -> Tensor:
        events.append("product")
        return matmul(*factors)

    monkeypatch.setattr(products, "matmul", noted)
    y = product(torch.randn(8, 1, 4), layer)
    assert len(y) == (2 if is_row else 32)
    if is_row:
        scatter = "reduce_scatter_tensor"
        assert events == ["product", scatter] * 2 + [f"waited for {scatter}"] * 2
    else:
        gather = "all_gather_into_tensor"
        assert events == [gather, gather, *2 * [f"waited for {gather}", "product"]]


def test_a_product_waits_for_a_collective(events: Events) -> None:
    layers, optimizer = bucketed([0, 0, 0], events, at_most=1)
    optimizer.begin_step(1)
    sums = [cast("Any", layer.sink) for layer in layers]
    sums[2].product(torch.ones(4, 2), torch.ones(4, 2))
    assert sums[2].is_empty
    sums[1].beside()
    assert not sums[2].is_empty
    for number in (1, 0):
        sums[number].product(torch.ones(4, 2), torch.ones(4, 2))
    assert [each.is_empty for each in sums] == [True, False, False]
    (last,) = optimizer.take_put_off()
    assert not events
    last()
    assert events == ["reduce_scatter_tensor"]


def bucketed(
    chunks: Sequence[int], events: Events, at_most: int = 0, shard: str = "state"
) -> tuple[list[SlicedWeight], ShardedOptimizer]:
    """A weight in each of these chunks, and their optimizer over two ranks."""
    group: Any = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
    layers = [sliced_weight(None, events) for _ in chunks]
    optimizer = ShardedOptimizer(
        (
            (
                BucketKind(chunk, decays=True, counts=True, summed_over=None, module=layer),
                cast(
                    "Any", SimpleNamespace(name="w", parameter=layer.weight, layer=layer)
                ),  # all that a bucket reads of it
            )
            for chunk, layer in zip(chunks, layers, strict=True)
        ),
        group,
        TRAIN.model_copy(update={"shard": shard}),
        at_most,
    )
    return layers, optimizer


def test_reductions_overlap_backward_and_gathers_forward(events: Events) -> None:
    layers, optimizer = bucketed([0, 0, 1], events)
    optimizer.begin_step(2)
    for number in (2, 2, 1, 1, 0, 0):  # the last part's two micro-batches first
        events.append(f"dW of {number}")
        layers[number].sink.product(torch.ones(4, 2), torch.ones(4, 2))  # type: ignore[union-attr]
    reduced = "reduce_scatter_tensor"
    assert events == ["dW of 2"] * 2 + [reduced] + ["dW of 1"] * 2 + ["dW of 0"] * 2 + [reduced]
    optimizer.finish_gradients()
    assert events[-2:] == [f"waited for {reduced}"] * 2
    events.clear()
    optimizer.update(1.0, StepSettings(1e-3, 0.1, 1.0))
    gathered = "all_gather_into_tensor"
    assert events == [gathered] * 2
    optimizer.wait_for(layers[0].weight, layers[1].weight)
    assert events == [gathered] * 2 + [f"waited for {gathered}"]
    optimizer.wait_for(layers[2].weight, None)
    assert events == [gathered] * 2 + [f"waited for {gathered}"] * 2


def test_each_layer_waits_for_its_own_weights(events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_optimizer, "BUCKET_ELEMENTS", 1)
    layers, optimizer = bucketed([0, 0, 0], events)
    for number, layer in enumerate(layers):
        optimizer.wait_before(layer, backward=True)
        layer.forward = lambda number=number: events.append(f"layer {number}")
    optimizer.begin_step(1)
    for layer in layers:
        cast("Any", layer.sink).product(torch.ones(4, 2), torch.ones(4, 2))
    optimizer.finish_gradients()
    before = [layer.weight.data_ptr() for layer in layers]
    gathers: list[int] = []
    fake: Any = vars(sharded_optimizer)["distributed"]
    begin = fake.all_gather_into_tensor

    def gather(weights: Tensor, *rest: Any, **options: Any) -> Any:  # noqa: ANN401  (a collective)
        gathers.append(weights.data_ptr())
        return begin(weights, *rest, **options)

    monkeypatch.setattr(fake, "all_gather_into_tensor", gather)
    events.clear()
    optimizer.update(1.0, StepSettings(1e-3, 0.1, 1.0))
    assert gathers == before
    for layer in layers:
        layer()
    gathered = "all_gather_into_tensor"
    ran = [event for number in range(3) for event in (f"waited for {gathered}", f"layer {number}")]
    assert events == [gathered] * 3 + ran


def test_sharded_gradients_are_reduced_beside_the_next_layers_backward(events: Events) -> None:
    layers, optimizer = bucketed([0, 0, 0], events, shard="gradients")
    optimizer.begin_step(2)
    for number in (2, 1, 0, 2, 1, 0):
        events.append(f"dW of {number}")
        cast("Any", layers[number].sink).product(torch.ones(4, 2), torch.ones(4, 2))
        assert sum(each.gradients.untyped_storage().nbytes() > 0 for each in optimizer.buckets) == 1
    reduced, waited = "reduce_scatter_tensor", "waited for reduce_scatter_tensor"
    first, *others = [[f"dW of {number}", reduced, waited] for number in (2, 1, 0, 2, 1, 0)]
    assert events == [*first[:2], *(event for each in others for event in each)]
    optimizer.finish_gradients()
    assert events[-1] == waited
    assert not any(each.gradients.untyped_storage().nbytes() for each in optimizer.buckets)
    assert all(each.master.grad is not None and bool((each.master.grad == 4).all()) for each in optimizer.buckets)


@pytest.mark.parametrize("recompute", [False, True])
def test_sharded_weights_are_gathered_beside_the_layer_before(recompute: bool, events: Events) -> None:
    layers, optimizer = bucketed([0, 0, 0], events, shard="parameters")
    *inner, head = layers

    def forward(number: int, x: Tensor) -> Tensor:
        assert sum(each.weights.untyped_storage().nbytes() > 0 for each in optimizer.buckets) <= 2
        events.append(f"layer {number}")
        y = x * 2
        y.register_hook(lambda _: events.append(f"backward of {number}"))  # type: ignore[no-untyped-call]
        return y.sin()  # which keeps y

    for number, layer in enumerate(inner):
        optimizer.wait_before(layer, backward=True)
        layer.forward = partial(forward, number)
    x = torch.ones(2, requires_grad=True)
    optimizer.take_turns([*layers, *reversed(inner), head])
    for layer in inner:
        x = checkpoint_activations(layer, x) if recompute else layer(x)
    optimizer.wait_for(head.weight)
    x.sum().backward()  # type: ignore[no-untyped-call]
    gathered, waited = "all_gather_into_tensor", "waited for all_gather_into_tensor"
    again = [[f"layer {number}"] if recompute else [] for number in range(2)]
    assert events == [
        *(gathered, gathered, waited, "layer 0", gathered, waited, "layer 1"),
        *(gathered, waited),  # the head's
        *(gathered, waited, *again[1], "backward of 1"),
        *(gathered, waited, *again[0], "backward of 0"),
    ]
    optimizer.release()
    assert [each.weights.untyped_storage().nbytes() > 0 for each in optimizer.buckets].count(True) == 1  # the next
