"""Pipeline engine that runs any schedule of `mtnlg_parallel.schedules`, with weight gradients in backward or separate.

    forward    receive x; run the part; send its output, keeping only the autograd graph
    backward   receive dy; send the gradient of the part's input; compute weight gradients unless they are separate
    weights    compute the weight gradients that backward has deferred (`ShardedOptimizer.take_put_off`)

Each rank has at most one receive in flight per kind of message, the next that its order needs, and waits for no send
within a step. Forward, backward, and the links from the last rank to the first have separate process groups, so that no
two ranks send to each other in one group: NCCL would serialize these sends in call order.

docs/decisions/0100 says why not the schedules of torch.distributed.pipelining or megatron-core.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge
from torch.nn.attention import SDPBackend, sdpa_kernel

from mtnlg_parallel.model.ring_attention import Context
from mtnlg_parallel.model.slicing import new_group
from mtnlg_parallel.model.stage_modules import DTYPES, build_stages
from mtnlg_parallel.schedules import load_schedule, orders
from mtnlg_parallel.waiting import wait_for

from .contract import Outcome
from .offloading import HostActivations
from .sharded_optimizer import BucketKind, ShardedOptimizer, without_memory
from .targets import weigh_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch.autograd.graph import GradientEdge
    from torch.distributed import Work

    from mtnlg_model.functional import Attend
    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.model.stage_modules import LocalParameter
    from mtnlg_parallel.recipe import Recipe
    from mtnlg_parallel.schedules import Action, Order
    from mtnlg_parallel.schedules.schedule import Kind

    from .contract import Fragment, Judge, MicroBatch, MicroBatches, Observe, StepSettings

HOPPER = (9, 0)
"""Compute capability of the H100."""

ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

Key = tuple[int, int]
"""(micro-batch, chunk) of one of a rank's passes."""


class PipelineEngine:
    """One rank's parts of the decoder, the order in which they run, and its share of the optimizer."""

    def __init__(self, recipe: Recipe, device: torch.device, ops: ParallelOps) -> None:
        self.before_update: Callable[[], None] = lambda: None
        self.observe: Observe = lambda _what, _tensor: None
        layout, train, self.device = recipe.layout, recipe.train, device
        self._layout, self._chunks, self._schedule = layout, train.chunks, train.schedule
        self.splits_backward = load_schedule(train.schedule).splits_backward
        self._place = place = layout.coordinates(distributed.get_rank())
        self.parts = build_stages(recipe, torch.device("meta"), ops)
        for owner in (owner for part in self.parts for owner in part.modules()):  # buckets allocate the weights
            for name, weight in [*owner.named_parameters(recurse=False)]:
                setattr(owner, name, nn.Parameter(without_memory(torch.empty_like(weight, device=device))))
        self._slicing = slicing = self.parts[0].slicing
        self._dp_group = dp_group = new_group(layout.replicas(place.tp, place.pp))
        sharing = [layout.rank(*place._replace(cp=cp)) for cp in range(layout.cp)]
        self._context = Context(new_group(sharing), recipe.model.sequence) if layout.cp > 1 else None
        self.reads_samples, self.layers = recipe.reads_samples(place.pp), recipe.model.layers
        ring = [layout.rank(*place._replace(pp=pp)) for pp in range(layout.pp)]
        self.links = Links(ring, train.chunks, device)
        kinds = (
            (BucketKind(chunk, local.parameter.ndim > 1, local.is_primary, local.summed_over, local.module), local)
            for chunk, part in enumerate(self.parts)
            for local in part.local_parameters()
        )
        at_most = None if self.splits_backward else int(layout.tp > 1)
        self.optimizer = ShardedOptimizer(kinds, dp_group, train, at_most)
        for part in self.parts:
            for module in (part.embedding, *part.layers.values(), part.final_norm):
                if module:
                    self.optimizer.wait_before(module, backward=module is not part.embedding)
        if slicing.eight_bit:
            self.optimizer.on_release = slicing.eight_bit.forget_weights
        staying = [tensor for part in self.parts for tensor in (*part.parameters(), *part.buffers())]
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        """Input with a gradient, so that autograd records operations on a received message."""
        self.host_activations = HostActivations(device, staying) if train.offload_activations else None
        width = recipe.model.sequence // layout.cp // (slicing.degree if slicing.sequence_parallel else 1)
        self._message = partial(
            torch.empty, width, train.micro_batch, recipe.model.hidden, dtype=DTYPES[train.storage], device=device
        )

    @staticmethod
    def unsupported(_recipe: Recipe) -> str | None:
        """Always None: this engine trains every valid recipe."""
        return None

    @property
    def optimizer_steps(self) -> int:
        """Number of updates."""
        return self.optimizer.steps

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        self.optimizer.steps = steps

    def local_parameters(self) -> Iterator[LocalParameter]:
        """Every parameter of this rank, in model order; sharded ones are gathered until the next is taken."""
        for part in self.parts:
            for local in part.local_parameters():
                self.optimizer.wait_for(local.parameter)
                yield local
        self.optimizer.release()

    def fragments(self) -> Iterator[Fragment]:
        """The rank's fragments of master weights and moments."""
        return self.optimizer.fragments()

    def train_batch(
        self, batches: MicroBatches | None, micro_batches: int, settings: StepSettings, judge: Judge
    ) -> Outcome:
        """Run the micro-batches, then update unless ``judge`` returns a reason not to."""
        order = orders(self._schedule, self._layout.pp, self._chunks, micro_batches)[self._place.pp]
        self.optimizer.begin_step(micro_batches)
        losses = self._run(order, batches or iter(()), 1 / (micro_batches * self._dp_group.size()), training=True)
        figures = torch.stack(
            [self._share_of_loss(losses, micro_batches), self.optimizer.finish_gradients(settings.frozen)]
        )
        wait_for(distributed.all_reduce(figures, async_op=True))
        loss, squares = figures.tolist()
        norm = math.sqrt(squares) if squares >= 0 else math.nan
        reason = judge(loss, norm)
        if reason is None:
            self.before_update()
            self.optimizer.update(norm, settings)
        return Outcome(loss, norm, reason)

    @torch.no_grad()
    def evaluate(self, batches: MicroBatches, micro_batches: int) -> float:
        """Mean loss over the micro-batches, in nats per token."""
        order = orders(self._schedule, self._layout.pp, self._chunks, micro_batches)[self._place.pp]
        forward = tuple(action for action in order if action.kind == "forward")
        loss = self._share_of_loss(self._run(forward, batches, 0.0, training=False), micro_batches)
        distributed.all_reduce(loss)
        return float(loss)

    def _run(self, order: Order, batches: MicroBatches, scale: float, training: bool) -> list[Tensor]:
        """Run an order, with dropout in training; returns the losses. 8-bit weights are kept until the order ends."""
        for part in self.parts:
            part.train(training)
            part.observe = self.observe if training else None
        if self._place.pp == self._layout.pp - 1:
            micro_batches = len({action.micro_batch for action in order})
            batches, self.parts[-1].target_weight = weigh_targets(batches, micro_batches, self._dp_group, self.device)
        step = _Step(self, order, batches, scale)
        self.optimizer.take_turns(module for action in order for module in self._modules(action))
        with native_attention(self.device):
            step.run()
        self.optimizer.release()
        return step.losses

    def _modules(self, action: Action) -> Iterable[nn.Module | None]:
        """Modules whose matrices a pass needs, in order."""
        part = self.parts[action.chunk]
        layers = [*part.layers.values()]
        if action.kind == "forward":
            return part.embedding, *layers, part.head or part.embedding
        return layers[::-1] if action.kind == "backward" else ()

    def _share_of_loss(self, losses: list[Tensor], micro_batches: int) -> Tensor:
        """The rank's contribution to the mean loss, which is summed over all ranks."""
        if not losses:
            return torch.zeros((), dtype=torch.float64, device=self.device)
        copies: int = micro_batches * self._dp_group.size() * self._layout.tp
        return torch.stack(losses).double().sum() / copies

    def own_tokens(self, whole_BS: Tensor) -> Tensor:
        """The rank's part of the sequences, on its device."""
        whole_BS = whole_BS.to(self.device, non_blocking=True)
        return self._context.slice(whole_BS) if self._context else whole_BS

    def attention(self, batch: MicroBatch | None) -> tuple[Tensor | None, Sequence[Attend] | None, Tensor | None]:
        """Positions, each layer's attention and the lengths of texts, as `StageModules` takes them."""
        if self._context:
            positions_BS, ring, lengths_BS = self._context.attention(self.device, batch and batch.positions)
            return positions_BS, [ring] * self.layers, lengths_BS
        return *(batch.attention(self.layers, self.device) if batch else (None, None)), None

    def stage_of(self, chunk: int) -> int:
        """Virtual stage of this rank's part ``chunk``."""
        return chunk * self._layout.pp + self._place.pp

    @property
    def last_stage(self) -> int:
        """The last virtual stage."""
        return self._chunks * self._layout.pp - 1

    def new_message(self) -> Tensor:
        """An uninitialised message: hidden states of a micro-batch, or their gradient."""
        return self._message()


def native_attention(device: torch.device) -> AbstractContextManager[object]:
    """Prefer cuDNN's attention from Hopper on, whose kernels are made for the GPU; PyTorch's default varies by release.

    If kernels must be deterministic, PyTorch chooses. Calls that cuDNN cannot run go to the next kernel that can.
    """
    any_kernel = device.type != "cuda" or torch.are_deterministic_algorithms_enabled()
    if any_kernel or torch.cuda.get_device_capability(device) < HOPPER:
        return nullcontext()
    return sdpa_kernel(ATTENTION, set_priority=True)


class _Step:
    """Runs one rank's actions of one step."""

    def __init__(self, engine: PipelineEngine, order: Order, batches: MicroBatches, loss_scale: float) -> None:
        self._engine, self._order, self._batches, self._loss_scale = engine, order, batches, loss_scale
        self._read: dict[int, MicroBatch] = {}
        self._input_gradients: dict[Key, Tensor] = {}
        self._outputs: dict[Key, GradientEdge] = {}
        self._put_off: dict[Key, list[Callable[[], None]]] = {}
        self._next_backward = dict(pairwise(action[1:] for action in order if action.kind == "backward"))
        self._back_at_once = {one[1:] for one, other in pairwise(order) if other == one._replace(kind="backward")}
        self._sends: list[tuple[Work, Tensor]] = []
        self._receives = {
            kind: _Receives(engine, kind, [a for a in order if a.kind == kind]) for kind in ("forward", "backward")
        }
        self.losses: list[Tensor] = []

    def run(self) -> None:
        """Run the order."""
        work = {"forward": self._forward, "backward": self._backward, "weights": self._weights}
        for action in self._order:
            work[action.kind](action)
        for product in self._engine.optimizer.take_put_off():  # which waited for a collective
            product()
        for send, _ in self._sends:
            wait_for(send)

    def _forward(self, action: Action) -> None:
        engine, key = self._engine, action[1:]
        part, stage = engine.parts[action.chunk], engine.stage_of(action.chunk)
        batch = self._batch(action)
        x = self._receives["forward"].take() if stage or batch is None else engine.own_tokens(batch.inputs)
        if torch.is_grad_enabled() and stage:
            x = _Received.apply(x, engine.anchor, self._input_gradients, key)  # type: ignore[no-untyped-call]
        host = engine.host_activations if torch.is_grad_enabled() and key not in self._back_at_once else None
        with host.moved_out(key) if host else nullcontext():
            y = part(x, *engine.attention(batch))
        if batch and stage == engine.last_stage:
            engine.optimizer.wait_for(part.table, part.table_bias)
            y = part.loss(y, engine.own_tokens(batch.targets))
            self.losses.append(y.detach())
        else:
            self._send("forward", y.detach(), stage + 1)
        if torch.is_grad_enabled():
            self._outputs[key] = get_gradient_edge(y)

    def _batch(self, action: Action) -> MicroBatch | None:
        """The micro-batch of a forward pass; read for the rank's first part, and kept until its last part."""
        if not self._engine.reads_samples:
            return None
        if action.chunk == 0:
            self._read[action.micro_batch] = next(self._batches)
        is_last = action.chunk == len(self._engine.parts) - 1
        return self._read.pop(action.micro_batch) if is_last else self._read[action.micro_batch]

    def _backward(self, action: Action) -> None:
        engine, key = self._engine, action[1:]
        stage, output = engine.stage_of(action.chunk), self._outputs.pop(key)
        if engine.host_activations:  # before the stream waits for dy
            engine.host_activations.bring_back(key)
            engine.host_activations.bring_back(self._next_backward.get(key, key))
        if stage == engine.last_stage:
            dy = torch.full((), self._loss_scale, device=engine.device)
        else:
            dy = self._receives["backward"].take()
        torch.autograd.backward((output,), (dy,))
        if engine.splits_backward:
            self._put_off[key] = engine.optimizer.take_put_off()
        if stage:
            self._send("backward", self._input_gradients.pop(key), stage - 1)
        if engine.host_activations:
            engine.host_activations.drop(key)

    def _weights(self, action: Action) -> None:
        for product in self._put_off.pop(action[1:]):
            product()

    def _send(self, kind: Kind, message: Tensor, stage: int) -> None:
        message = message.contiguous()
        self._sends = [(work, sent) for work, sent in self._sends if not work.is_completed()]
        self._sends.append((self._engine.links.send(kind, message, stage), message))


class _Received(Function):
    """Makes a message the input of a part; backward stores its gradient in ``gradients[key]``. Keeps no reference."""

    @staticmethod
    def forward(ctx: Any, message: Tensor, _anchor: Tensor, gradients: dict[Key, Tensor], key: Key) -> Tensor:  # noqa: ANN401
        ctx.gradients, ctx.key = gradients, key
        return message.view_as(message)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:  # noqa: ANN401  (autograd's context)
        ctx.gradients[ctx.key] = gradient
        return None, None, None, None


class _Receives:
    """Receives a step's messages of one kind in order, one at a time: taking one posts the next receive."""

    def __init__(self, engine: PipelineEngine, kind: Kind, actions: Sequence[Action]) -> None:
        self._engine, self._kind = engine, kind
        end = 0 if kind == "forward" else engine.last_stage  # gets no message
        stages = (engine.stage_of(action.chunk) for action in actions)
        self._expected = deque(stage for stage in stages if stage != end)
        self._on_its_way = deque[tuple["Work", Tensor]]()
        self._post()

    def _post(self) -> None:
        if self._expected:
            message = self._engine.new_message()
            work = self._engine.links.receive(self._kind, message, self._expected.popleft())
            self._on_its_way.append((work, message))

    def take(self) -> Tensor:
        """Wait for the next message."""
        work, message = self._on_its_way.popleft()
        wait_for(work)
        self._post()
        return message


class Links:
    """Messages between the pipeline ranks of a ring: forward to the next rank, backward to the previous one.

    Links between the last rank and the first exist only with several parts per rank.
    """

    def __init__(self, ring: Sequence[int], chunks: int, device: torch.device) -> None:
        self._ring = ring
        ways: list[tuple[Kind, bool]] = [
            (kind, around) for kind in ("forward", "backward") for around in (False, True)[: 1 + (chunks > 1)]
        ]
        self._groups = {way: new_group(ring) for way in ways} if len(ring) > 1 else {}
        self._connect(torch.zeros(1, device=device))

    def _connect(self, message: Tensor) -> None:
        """Send a message over every link, in the same order on all ranks.

        NCCL connects two ranks at their first message, and their hosts wait for each other; within a step, each rank
        could wait at another link. Receivers are taken by parity, since links to receivers of one parity share no rank.
        """
        here = self._ring.index(distributed.get_rank())
        for kind, around in self._groups:
            for place in sorted(range(len(self._ring)), key=lambda place: place % 2):
                if self._goes_around(kind, place) == around and here in {place, self._sender(kind, place)}:
                    wait_for((self.receive if place == here else self.send)(kind, message, place))

    def send(self, kind: Kind, message: Tensor, stage: int) -> Work:
        """Start to send a message to a virtual stage."""
        place = stage % len(self._ring)
        return cast(
            "Work", distributed.isend(message, self._ring[place], self._groups[kind, self._goes_around(kind, place)])
        )

    def receive(self, kind: Kind, message: Tensor, stage: int) -> Work:
        """Start to receive a message for virtual stage ``stage`` of this rank."""
        place = stage % len(self._ring)
        sender = self._ring[self._sender(kind, place)]
        return cast("Work", distributed.irecv(message, sender, self._groups[kind, self._goes_around(kind, place)]))

    def _sender(self, kind: Kind, place: int) -> int:
        return (place + (-1 if kind == "forward" else 1)) % len(self._ring)

    def _goes_around(self, kind: Kind, receiver: int) -> bool:
        return receiver == (0 if kind == "forward" else len(self._ring) - 1)
