"""A rank's parameters and optimizer state, to and from the global tensors of a checkpoint.

ZeRO-1 lays the parameters of a group end to end and cuts the line into one run a data-parallel rank, in any place. A
rank's run holds, of each parameter, a range of elements of the box that this tensor- and pipeline-parallel rank has:

    global tensor  ⊃  box (tensor.cuts)  ⊃  flat range [a, b) of the box (``param._hp_mapping``)

Each rank writes its own ranges of weight, master and both moments, and nobody gathers. Reading, a rank asks for its box
and takes its range of it, whatever the layout that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from mtnlg_model import initialization
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.writer import CheckpointWriter
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from mtnlg_model.checkpoint.manifest import SlotName
    from mtnlg_model.config import ModelConfig
    from mtnlg_parallel.model.pipeline import Part
    from mtnlg_parallel.model.slicing import Box

MOMENTS: tuple[SlotName, SlotName] = ("exp_avg", "exp_avg_sq")


class Source(Protocol):
    """Where a run begins: initial values, or a checkpoint."""

    @property
    def optimizer_steps(self) -> int:
        """Updates made."""

    def value(self, name: str, box: Box) -> Tensor:
        """The weight in the highest precision there is."""

    def moment(self, name: str, slot: SlotName, box: Box) -> Tensor:
        """One of Adam's moments; asked for only where ``optimizer_steps`` > 0."""


@dataclass(frozen=True)
class Beginning:
    """Initial weights, a pure function of (seed, name)."""

    config: ModelConfig
    seed: int
    optimizer_steps: int = 0

    def value(self, name: str, box: Box) -> Tensor:
        """The initial weight."""
        return initialization.initial(self.config, name, self.seed, box)

    def moment(self, name: str, slot: SlotName, box: Box) -> Tensor:
        """There is none before the first step."""
        raise KeyError(f"{name}: {slot}: {box}")


@dataclass(frozen=True)
class Saved:
    """A checkpoint written in any layout and precision."""

    checkpoint: Checkpoint

    @property
    def optimizer_steps(self) -> int:
        """Updates made."""
        return self.checkpoint.optimizer_steps

    def value(self, name: str, box: Box) -> Tensor:
        """The master weight, or the weight itself where it is fp32."""
        slot: SlotName = "master" if "master" in self.checkpoint.slots(name) else "weight"
        return self.checkpoint.tensor(name, box, slot).float()

    def moment(self, name: str, slot: SlotName, box: Box) -> Tensor:
        """One of Adam's moments."""
        return self.checkpoint.optimizer(name, slot, box)


@dataclass(frozen=True)
class Fragment:
    """ZeRO's run of one parameter on this rank: elements [first, last) of its flattening, and where they live."""

    part: Part
    first: int
    last: int
    master: Tensor
    moments: dict[SlotName, Tensor]


def fragments(engine: Any) -> Iterator[Fragment]:  # noqa: ANN401  (DeepSpeed has no annotations)
    """What this rank's optimizer holds; its moments are made, zero, where there are none yet."""
    inner = engine.optimizer.optimizer
    for part in engine.module.held():
        mapping = part.parameter._hp_mapping  # noqa: SLF001  (DeepSpeed's only door to ZeRO's fragments)
        if mapping is None:
            continue
        flat = inner.param_groups[mapping.param_group_index]["params"][0]
        state = inner.state[flat]
        if not state:
            state.update(step=flat.new_tensor(0.0), **{slot: torch.zeros_like(flat) for slot in MOMENTS})
        here, there = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
        yield Fragment(
            part,
            first=here.start,
            last=here.start + here.numel,
            master=flat.detach().narrow(0, there.start, there.numel),
            moments={slot: state[slot].narrow(0, there.start, there.numel) for slot in MOMENTS},
        )


def restore(engine: Any, source: Source) -> None:  # noqa: ANN401  (as above)
    """Set this rank's parameters, master weights, moments and step count from ``source``."""
    with torch.no_grad():
        for part in engine.module.held():
            part.parameter.copy_(source.value(part.name, part.box))
        for held in fragments(engine):
            name, box, run = held.part.name, held.part.box, slice(held.first, held.last)
            held.master.copy_(source.value(name, box).flatten()[run])
            if source.optimizer_steps:
                for slot, moment in held.moments.items():
                    moment.copy_(source.moment(name, slot, box).flatten()[run])
    for state in engine.optimizer.optimizer.state.values():
        state["step"].fill_(source.optimizer_steps)


def optimizer_steps(engine: Any) -> int:  # noqa: ANN401  (as above)
    """Updates that this rank's optimizer has made; skipped steps are none."""
    return max((int(state["step"]) for state in engine.optimizer.optimizer.state.values()), default=0)


def write(engine: Any, directory: Path, step: int, writer: str) -> CheckpointWriter:  # noqa: ANN401  (as above)
    """Begin to write this rank's pieces of ``step``, as they are now; `saving` sees to the rest."""
    files = CheckpointWriter(directory, step, writer)
    for held in fragments(engine):
        part = held.part
        if not part.first:
            continue
        flat = (held.first, held.last)
        weight = part.parameter.detach().flatten()[held.first : held.last]
        slots: dict[SlotName, Tensor] = {"weight": weight, **held.moments}
        if weight.dtype != torch.float32:
            slots["master"] = held.master
        for slot, tensor in slots.items():
            files.add(part.name, part.shape, slot, part.box, tensor, flat)
    files.finish()
    return files


def open_checkpoint(path: Path, config: ModelConfig, stream: str) -> Checkpoint:
    """Open the checkpoint that a run goes on from. Raises ``Failure`` where model or token stream are others."""
    checkpoint = Checkpoint.open(path)
    free = {"dropout", "attention_dropout", "init_std"}
    ours, theirs = config.model_dump(exclude=free), checkpoint.config.model_dump(exclude=free)
    for key, value in theirs.items():
        if ours[key] != value:
            raise Failure(f"{path}: its model has {key} = {value}, the recipe {ours[key]}; give another --out")
    if checkpoint.progress.stream != stream:
        raise Failure(
            f"{path}: was trained on the token stream {checkpoint.progress.stream[:12]}, --data is {stream[:12]}; "
            "give the data of that run, or another --out"
        )
    return checkpoint
