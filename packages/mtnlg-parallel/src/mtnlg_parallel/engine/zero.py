"""Converts a rank's parameters and ZeRO-1 optimizer state to and from the global tensors of a checkpoint.

ZeRO-1 flattens and concatenates parameters and splits the result evenly over the data-parallel ranks, at any element.
So a data-parallel rank holds a fragment of each parameter's box:

    global tensor  ⊃  box (layout.SLICED_AXES)  ⊃  flat range [start, stop) of the box

Each rank writes its own fragments of weight, master weight and both moments; nothing is gathered. It reads its whole
boxes of the weights, but only its own fragments of master weights and moments, whatever layout wrote them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from .contract import MOMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from mtnlg_model.checkpoint.manifest import SlotName
    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_parallel.model.slicing import Box

    from .contract import Engine, Fragment


class InitialState(Protocol):
    """State that `restore` gives an engine, in global tensors."""

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer updates so far."""

    def weight(self, name: str, box: Box, dtype: torch.dtype, /) -> Tensor:
        """A box of a weight, in ``dtype``."""

    def elements(self, name: str, slot: SlotName, box: Box, start: int, stop: int, /) -> Tensor:
        """Elements [start, stop) of a box of the master weight or of a moment, in fp32."""


class InitialWeights:
    """State of a new run: weights only. ``value(name, box)`` makes a box of one on the CPU; the last is kept."""

    optimizer_steps = 0

    def __init__(self, value: Callable[[str, Box], Tensor]) -> None:
        self._value = value
        self._last: tuple[str, Box, Tensor] | None = None

    def weight(self, name: str, box: Box, dtype: torch.dtype) -> Tensor:
        """The initial weight, rounded to ``dtype``."""
        return self._made(name, box).to(dtype)

    def elements(self, name: str, slot: SlotName, box: Box, start: int, stop: int) -> Tensor:
        """Elements of the initial weight, in fp32. Raises ``KeyError`` for a moment: there is none before step 1."""
        if slot in MOMENTS:
            raise KeyError(f"{name}: {slot}: {box}")
        return self._made(name, box).flatten()[start:stop].float()

    def _made(self, name: str, box: Box) -> Tensor:
        if self._last is None or self._last[:2] != (name, box):
            self._last = None  # before the next is made
            self._last = name, box, self._value(name, box)
        return self._last[2]


@dataclass(frozen=True)
class CheckpointState:
    """State of a checkpoint, written under any layout and precision."""

    checkpoint: Checkpoint

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer updates so far."""
        return self.checkpoint.optimizer_steps

    def weight(self, name: str, box: Box, dtype: torch.dtype) -> Tensor:
        """The stored weight if it is in ``dtype`` or has no master weight, else the master weight."""
        slot: SlotName = "weight" if self.checkpoint.dtype(name) == dtype else self._stored_slot(name, "master")
        return self.checkpoint.tensor(name, box, slot)

    def elements(self, name: str, slot: SlotName, box: Box, start: int, stop: int) -> Tensor:
        """Elements of a moment, or of the master weight, which is the weight itself if that is fp32."""
        return self.checkpoint.tensor(name, box, self._stored_slot(name, slot), flat=(start, stop))

    def _stored_slot(self, name: str, slot: SlotName) -> SlotName:
        return "weight" if slot == "master" and slot not in self.checkpoint.slots(name) else slot


def restore(engine: Engine, initial: InitialState) -> None:
    """Set this rank's parameters, master weights, moments and step count from ``initial``."""
    with torch.no_grad():
        fragments: dict[Tensor, list[Fragment]] = defaultdict(list)
        for fragment in engine.fragments():
            fragments[fragment.local.parameter].append(fragment)
        for local in engine.local_parameters():  # each with its fragments: a tensor may be costly to make
            weight = initial.weight(local.name, local.box, local.parameter.dtype)
            local.parameter.copy_(weight)
            for fragment in fragments[local.parameter]:
                fragment.weight.copy_(weight.flatten()[fragment.start : fragment.stop])
                for slot, tensor in fragment.slots(initial.optimizer_steps > 0).items():
                    tensor.copy_(initial.elements(local.name, slot, local.box, fragment.start, fragment.stop))
    engine.optimizer_steps = initial.optimizer_steps


class PieceToWrite(NamedTuple):
    """Arguments of `CheckpointWriter.add`; the tensor is a view of this rank's state."""

    name: str
    shape: tuple[int, ...]
    slot: SlotName
    box: Box
    tensor: Tensor
    flat: tuple[int, int]


def fragment_pieces(engine: Engine) -> Iterator[PieceToWrite]:
    """The pieces of a checkpoint that this rank writes: its fragments of the boxes whose primary holder it is."""
    for fragment in engine.fragments():
        local, elements = fragment.local, (fragment.start, fragment.stop)
        if not local.is_primary:
            continue
        slots: dict[SlotName, Tensor] = {"weight": fragment.weight, **fragment.moments}
        if fragment.weight.dtype != torch.float32:
            slots["master"] = fragment.master
        for slot, tensor in slots.items():
            yield PieceToWrite(local.name, local.shape, slot, local.box, tensor, elements)
