"""Activations in host memory: nothing that a pass saves stays on the device, and the gradients are the same bits.

That copies wait for what they read, and memory for its copies, `tests/training/test_stub_gpu_copies.py` shows.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mtnlg_model.config import ModelConfig
from mtnlg_model.decoder import Decoder
from mtnlg_parallel.engine.offloading import HostActivations, Streams
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.planner.memory import memory
from mtnlg_parallel.planner.run import Run
from mtnlg_parallel.schedules import orders
from mtnlg_parallel.schedules.schedule import PASSES_ON_DEVICE

CONFIG = ModelConfig(layers=2, hidden=16, heads=2, sequence=8, vocabulary=64, dropout=0.1, attention_dropout=0.1)
CPU = torch.device("cpu")


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operations have allocated and that are still there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        made = func(*args, **(kwargs or {}))
        there = {each.untyped_storage()._cdata for each in tree_leaves(args) if isinstance(each, Tensor)}
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in there:
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        return made

    @property
    def alive(self) -> int:
        """Bytes of those that exist."""
        there = [size for reference, size in self._made.values() if not reference.expired()]  # type: ignore[no-untyped-call]
        return sum(there)


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    torch.manual_seed(1)
    decoder = Decoder(CONFIG)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    yield decoder
    decoder.zero_grad()


def gradients(decoder: Decoder, host: HostActivations | None) -> tuple[int, dict[str, Tensor]]:
    """Bytes that two passes leave on the device until their backward, and the gradients of both."""
    torch.manual_seed(2)
    decoder.zero_grad()
    storages, graphs = Storages(), []
    tokens = torch.arange(16).view(2, 8)
    for key in ((0, 0), (1, 0)):
        with host.moved_out(key) if host else nullcontext(), storages:
            graphs.append(torch.autograd.graph.get_gradient_edge(decoder(tokens + key[0]).square().sum()))
    left = storages.alive
    for key, graph in zip(((0, 0), (1, 0)), graphs, strict=True):
        if host:
            host.bring_back(key)
        torch.autograd.backward((graph,), (torch.ones(()),))
        if host:
            host.drop(key)
    return left, {name: each.grad.clone() for name, each in decoder.named_parameters() if each.grad is not None}


def test_offload_leaves_no_activation_and_equal_gradients(decoder: Decoder) -> None:
    kept, expected = gradients(decoder, None)
    left, moved = gradients(decoder, HostActivations(CPU, [*decoder.parameters(), *decoder.buffers()]))
    assert kept > 2 * 10 * 2 * 8 * 16 * 4, "layers, times more than ten tensors of [S, B, H]"
    assert left == 0
    assert moved.keys() == expected.keys()
    for name, gradient in moved.items():
        assert torch.equal(gradient, expected[name]), name


def test_views_return_unchanged_and_parameters_stay() -> None:
    weight, base = torch.randn(4, 6, requires_grad=True), torch.randn(2, 3, 6)
    host = HostActivations(CPU, [weight])
    saved: list[Tensor] = []

    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Tensor, x: Tensor) -> Tensor:  # noqa: ANN401
            ctx.save_for_backward(weight, x.permute(2, 0, 1), x[1:, ::2, 1], x.new_empty(0))
            return weight.sum()

        @staticmethod
        def backward(ctx: Any, *_: Tensor) -> tuple[None, None]:  # noqa: ANN401
            saved.extend(ctx.saved_tensors)
            return None, None

    with host.moved_out((0, 0)):
        y = Save.apply(weight, base)  # type: ignore[no-untyped-call]
    y.backward()
    assert saved[0].data_ptr() == weight.data_ptr()
    for tensor, expected in zip(saved[1:3], (base.permute(2, 0, 1), base[1:, ::2, 1]), strict=True):
        assert torch.equal(tensor, expected)
        assert (tensor.stride(), tensor.storage_offset()) == (expected.stride(), expected.storage_offset())
        assert tensor.data_ptr() != expected.data_ptr()
    assert saved[1].untyped_storage().data_ptr() == saved[2].untyped_storage().data_ptr(), "one copy of a storage"
    assert saved[3].shape == (0,)


@pytest.mark.parametrize(
    ("ranks", "chunks", "schedule"), [(4, 1, "zero-bubble"), (4, 2, "interleaved"), (3, 2, "zero-bubble")]
)
def test_passes_on_the_device_are_bounded(
    ranks: int, chunks: int, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where copies take their time, as in streams."""
    stream: Any = SimpleNamespace(wait_stream=lambda _: None, record_event=lambda: None, wait_event=lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    host = HostActivations(CPU, [])
    host.streams = Streams(stream, stream)
    x, sums, most = torch.randn(4, requires_grad=True), dict[tuple[int, int], Tensor](), 0
    order = orders(schedule, ranks, chunks, 4 * ranks)[0]
    next_backward = dict(pairwise(action[1:] for action in order if action.kind == "backward"))
    for kind, *of in order:
        key = cast("tuple[int, int]", tuple(of))
        if kind == "forward":
            with host.moved_out(key):
                sums[key] = x.sin().sum()
        elif kind == "backward":
            host.bring_back(key)
            host.bring_back(next_backward.get(key, key))
        most = max(most, sum(bool(each._on_device) for each in host._passes.values()))
        if kind == "backward":
            sums.pop(key).backward()  # type: ignore[no-untyped-call]
            host.drop(key)
    assert most == PASSES_ON_DEVICE


@pytest.mark.parametrize(
    ("ranks", "chunks", "schedule"), [(4, 1, "zero-bubble"), (4, 2, "interleaved"), (8, 3, "zero-bubble")]
)
def test_planned_passes_match_a_run(ranks: int, chunks: int, schedule: str) -> None:
    model = CONFIG.model_copy(update={"layers": 48})
    run = Run(model, Layout(pp=ranks), 4 * ranks, recompute="none", interleave=chunks, schedule=schedule)
    kept, moved = (memory(each)[0].activations for each in (run, run._replace(offload_activations=True)))
    passes = ranks if chunks == 1 else 2 * (ranks - 1) + (chunks - 1) * ranks + 1
    assert moved == pytest.approx(kept * PASSES_ON_DEVICE / passes)


def test_a_saved_tensor_of_another_device_stays_where_it_is() -> None:
    host, x = HostActivations(CPU, []), torch.empty(4, device="meta", requires_grad=True)
    with host.moved_out((0, 0)):
        y = x.exp()
    host.bring_back((0, 0))
    (grad,) = torch.autograd.grad(y, x, torch.empty_like(y))
    assert grad.is_meta
