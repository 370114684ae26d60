"""The plain loop that an engine is compared with: one process, PyTorch's autograd and AdamW, no parallel code.

    w   = round(master)                                 weights in the precision of the recipe; fp32 in fp32
    g   = Σ ∇ loss(w; micro-batch) / micro-batches      summed in fp32
    g   = g min(1, clip / (|g| + 1e-6))                 |g| over all parameters
    master, moments = AdamW(master, moments, g)         in fp32; weight decay on matrices alone

In fp8 the factors of the layers' products are rounded as in `model.eight_bit`, with one scale per matrix. A run wholly
in fp64 measures how far rounding alone moves the fp32 run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mtnlg_data.stream import Sample
from mtnlg_model import decoder
from mtnlg_model.decoder import Decoder
from mtnlg_parallel.engine.contract import matches
from mtnlg_parallel.model import eight_bit
from mtnlg_parallel.training.samples import micro_batches

from .cases import TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from mtnlg_data.stream import TokenStream
    from mtnlg_model.checkpoint.manifest import SlotName
    from mtnlg_parallel.engine.contract import MicroBatch
    from mtnlg_parallel.recipe import Recipe

    from .cases import Case

Precision = Literal["fp64", "fp32", "bf16", "fp8"]
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.bfloat16}
EXACT: Mapping[Precision, Precision] = {"fp32": "fp64", "bf16": "fp32", "fp8": "fp32"}
"""For each precision, a wider one whose rounding is negligible in comparison."""

SLOTS: tuple[SlotName, ...] = ("master", "exp_avg", "exp_avg_sq")
Arrays = dict[str, dict["SlotName", "NDArray[np.float64]"]]
"""Global tensors by parameter and slot."""


@dataclass(frozen=True)
class Tokens:
    """Learnable training samples by number (`DocumentStream`): each token is the previous one plus 0 to 3."""

    seq_length: int
    seed: int
    masked: bool = False
    vocab_size: int = TOKENS
    fingerprint: str = "conformance"

    def __len__(self) -> int:
        """More than any case reads."""
        return 1 << 40

    def __getitem__(self, sample: int) -> NDArray[np.int32]:
        """Tokens [seq_length + 1] of a sample."""
        drawn = np.random.default_rng((self.seed, sample)).integers(0, 4, self.seq_length + 1)
        return (np.cumsum(drawn) % TOKENS).astype(np.int32)

    def sample(self, sample: int) -> Sample:
        """A sample of documents of five tokens on average; if ``masked``, about a third of the tokens are learned."""
        drawn = np.random.default_rng((self.seed, sample, 1)).random((2, self.seq_length + 1))
        learned, begins = drawn[0] < 1 / 3, drawn[1] < 1 / 5
        learned[-1], begins[-1] = True, False  # a step has a target
        return Sample(self[sample], learned if self.masked else None, begins)


@dataclass(frozen=True)
class State:
    """State of a run in global tensors, as input of `engine.zero.restore`."""

    optimizer_steps: int
    arrays: Arrays

    def weight(self, name: str, box: tuple[slice, ...], dtype: torch.dtype) -> Tensor:
        """A weight, rounded to ``dtype``."""
        return torch.from_numpy(self.arrays[name]["master"][box]).float().to(dtype)

    def elements(self, name: str, slot: SlotName, box: tuple[slice, ...], start: int, stop: int) -> Tensor:
        """Elements of the master weight or of a moment, in fp32."""
        return torch.from_numpy(self.arrays[name][slot][box]).float().flatten()[start:stop]


class Trace(NamedTuple):
    """Results of a run from ``start`` on: loss, norm and state after every step, and a validation loss."""

    start: State
    losses: list[float]
    norms: list[float]
    states: list[State]
    validation: float


class PlainLoop:
    """A decoder, its master weights and their optimizer in one process."""

    def __init__(
        self,
        recipe: Recipe,
        precision: Precision,
        start: State | None = None,
        stream: TokenStream | None = None,
        masked: bool = False,
    ) -> None:
        self.recipe, train = recipe, recipe.train
        self.stream = stream or Tokens(recipe.model.sequence, train.seed, masked)
        self._decoder = Decoder(recipe.model, seed=train.seed)
        high = torch.float64 if precision == "fp64" else torch.float32
        self._masters = {
            name: (torch.from_numpy(start.arrays[name]["master"]) if start else weight.detach()).to(high, copy=True)
            for name, weight in self._decoder.named_parameters()
        }
        self._decoder.to(DTYPES[precision])
        if precision == "fp8":
            for layer in self._decoder.layers.modules():
                if isinstance(layer, decoder.Linear):
                    vars(layer)["forward"] = _rounded_product(layer)
        groups = [
            {"params": [m for m in self._masters.values() if (m.ndim > 1) == matrices]} for matrices in (True, False)
        ]
        self._adamw = torch.optim.AdamW([g for g in groups if g["params"]], train.lr, train.betas, train.eps)
        if start and start.optimizer_steps:
            for name, master in self._masters.items():
                moments = {slot: torch.from_numpy(start.arrays[name][slot]).to(high, copy=True) for slot in SLOTS[1:]}
                self._adamw.state[master] = {"step": torch.tensor(float(start.optimizer_steps)), **moments}
        self._updates = start.optimizer_steps if start else 0
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        for name, weight in self._decoder.named_parameters():
            weight.copy_(self._masters[name])

    def loss(self, samples: range, stream: TokenStream | None = None) -> Tensor:
        """Mean cross entropy of samples, in nats, over the targets that count.

        ``stream`` replaces the training stream. Each isolated document is run as a sample of its own.
        """
        batch = self._batch(samples, stream)
        inputs, targets = batch.inputs, batch.targets.flatten()
        if batch.positions is None:
            logits = self._decoder(inputs).flatten(0, 1)
        else:
            documents = inputs.flatten().split(batch.lengths)  # type: ignore[no-untyped-call]
            logits = torch.cat([self._decoder(tokens[None])[0] for tokens in documents])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, targets, ignore_index=-1) if (targets >= 0).any() else 0.0 * logits.sum()

    def _batch(self, samples: range, stream: TokenStream | None = None) -> MicroBatch:
        isolated = self.recipe.data.isolated
        return next(micro_batches(stream or self.stream, samples, len(samples), 1, 0, isolated))

    def step(self, before: int, batch: int, update: bool) -> tuple[float, float]:
        """Take a step; returns its loss and gradient norm."""
        now, total = self.recipe.train.at(before), 0.0
        size = now.micro_batch
        for name, weight in self._decoder.named_parameters():
            weight.requires_grad = not matches(name, now.frozen)
        trained = {name for name, weight in self._decoder.named_parameters() if weight.requires_grad}
        gradients = {name: torch.zeros_like(self._masters[name]) for name in trained}
        parts = [range(first, first + size) for first in range(before, before + batch, size)]
        counted = [int((self._batch(part).targets >= 0).sum()) for part in parts]
        for part, count in zip(parts, counted, strict=True):
            loss = self.loss(part) * (count / sum(counted))
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            for name, weight in self._decoder.named_parameters():
                if weight.grad is not None:
                    gradients[name] += weight.grad
                    weight.grad = None
        for name, master in self._masters.items():
            master.grad = gradients.get(name)
        norm = torch.nn.utils.clip_grad_norm_(self._masters.values(), now.clip)
        if update:
            for group in self._adamw.param_groups:
                decay = now.weight_decay if group["params"][0].ndim > 1 else 0.0
                group |= {"lr": now.learning_rate.at(before + batch), "weight_decay": decay}
            self._adamw.step()
            self._updates += 1
            self._round()
        return total, float(norm)

    def state(self) -> State:
        """A copy of the state."""
        zeros = {name: dict.fromkeys(SLOTS[1:], torch.zeros_like(m)) for name, m in self._masters.items()}
        arrays = {
            name: {
                slot: tensor.double().numpy().copy()
                for slot, tensor in {"master": master, **zeros[name], **self._adamw.state.get(master, {})}.items()
                if slot in SLOTS
            }
            for name, master in self._masters.items()
        }
        return State(self._updates, arrays)


def plain_run(case: Case, precision: Precision, start: State | None = None) -> Trace:
    """Train a case. Without ``start`` the loop first takes the case's ``steps_before`` itself."""
    loop = PlainLoop(case.recipe, precision, start, masked=case.masked)
    numbered = list(enumerate(case.steps))
    if start is None:
        for number, (before, batch) in numbered[: case.steps_before]:
            loop.step(before, batch, number != case.skipped)
    trace = Trace(loop.state(), [], [], [], 0.0)
    for number, (before, batch) in numbered[case.steps_before :]:
        loss, norm = loop.step(before, batch, number != case.skipped)
        trace.losses.append(loss)
        trace.norms.append(norm)
        trace.states.append(loop.state())
    with torch.no_grad():
        return trace._replace(validation=float(loop.loss(range(case.recipe.train.validation_samples))))


def _rounded_product(linear: decoder.Linear) -> Callable[[Tensor], Tensor]:
    return lambda x: _EightBit.apply(x, linear.weight)  # type: ignore[no-untyped-call]


class _EightBit(Function):
    """x Wᵀ with 8-bit factors; backward rounds dy as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # noqa: ANN401  (autograd's context)
        x_NI, x_IN = eight_bit.rounded(x.flatten(0, -2), eight_bit.FORWARD, transposed=True)
        w_OI, w_IO = eight_bit.rounded(weight, eight_bit.FORWARD, transposed=True)
        ctx.factors, ctx.dtype = (x_IN, w_IO), x.dtype
        return eight_bit.product(x_NI, w_OI, x.dtype).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401  (as above)
        x_IN, w_IO = ctx.factors
        dy_NO, dy_ON = eight_bit.rounded(dy.flatten(0, -2), eight_bit.BACKWARD, transposed=True)
        dx = eight_bit.product(dy_NO, w_IO, ctx.dtype).view(*dy.shape[:-1], -1)
        return dx, eight_bit.product(dy_ON, x_IN, ctx.dtype)
