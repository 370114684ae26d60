"""A rank's parameters and ZeRO-1 optimizer state, to and from the global tensors of a checkpoint.

ZeRO-1 flattens and concatenates the parameters of a group and splits the result evenly over the data-parallel ranks,
at any element. A data-parallel rank's partition holds, of each parameter, a fragment of its rank's box:

    global tensor  ⊃  box (layout.SLICED_AXES)  ⊃  flat range [start, stop) of the box (``param._hp_mapping``)

Each rank writes its own fragments of weight, master weight and both moments; nothing is gathered. To read, a rank reads
its box and takes its fragments from it, whatever layout wrote the checkpoint.
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
    from mtnlg_parallel.model.pipeline import LocalParameter
    from mtnlg_parallel.model.slicing import Box

MOMENTS: tuple[SlotName, SlotName] = ("exp_avg", "exp_avg_sq")


class InitialState(Protocol):
    """State that a run starts from: initial weights or a checkpoint."""

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer updates so far."""

    def weight(self, name: str, box: Box) -> Tensor:
        """The weight, in the highest precision available."""

    def moment(self, name: str, slot: SlotName, box: Box) -> Tensor:
        """One of Adam's moments; called only if ``optimizer_steps`` > 0."""


@dataclass(frozen=True)
class InitialWeights:
    """Initial weights, a pure function of seed and parameter name."""

    config: ModelConfig
    seed: int
    optimizer_steps: int = 0

    def weight(self, name: str, box: Box) -> Tensor:
        """The initial weight, in fp32."""
        return initialization.initial_value(self.config, name, self.seed, box)

    def moment(self, name: str, slot: SlotName, box: Box) -> Tensor:
        """Raise ``KeyError``: there are no moments before the first step."""
        raise KeyError(f"{name}: {slot}: {box}")


@dataclass(frozen=True)
class CheckpointState:
    """State of a checkpoint, written under any layout and precision."""

    checkpoint: Checkpoint

    @property
    def optimizer_steps(self) -> int:
        """Number of optimizer updates so far."""
        return self.checkpoint.optimizer_steps

    def weight(self, name: str, box: Box) -> Tensor:
        """The master weight if there is one, else the weight, in fp32."""
        slot: SlotName = "master" if "master" in self.checkpoint.slots(name) else "weight"
        return self.checkpoint.tensor(name, box, slot).float()

    def moment(self, name: str, slot: SlotName, box: Box) -> Tensor:
        """Read one of Adam's moments."""
        return self.checkpoint.optimizer(name, slot, box)


@dataclass(frozen=True)
class Fragment:
    """ZeRO's fragment of a parameter on this rank: elements [start, stop) of its flattened box, as views."""

    local: LocalParameter
    start: int
    stop: int
    master: Tensor
    moments: dict[SlotName, Tensor]


def local_fragments(engine: Any) -> Iterator[Fragment]:  # noqa: ANN401  (DeepSpeed has no annotations)
    """Fragments in this rank's optimizer state; creates moments of zero if there are none yet."""
    optimizer = engine.optimizer.optimizer
    for local in engine.module.local_parameters():
        mapping = local.parameter._hp_mapping  # noqa: SLF001  (DeepSpeed's only access to ZeRO's fragments)
        if mapping is None:
            continue
        flat = optimizer.param_groups[mapping.param_group_index]["params"][0]
        state = optimizer.state[flat]
        if not state:
            state.update(step=flat.new_tensor(0.0), **{slot: torch.zeros_like(flat) for slot in MOMENTS})
        in_box, in_flat = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
        yield Fragment(
            local,
            start=in_box.start,
            stop=in_box.start + in_box.numel,
            master=flat.detach().narrow(0, in_flat.start, in_flat.numel),
            moments={slot: state[slot].narrow(0, in_flat.start, in_flat.numel) for slot in MOMENTS},
        )


def restore(engine: Any, initial: InitialState) -> None:  # noqa: ANN401  (as above)
    """Set this rank's parameters, master weights, moments and step count from ``initial``."""
    with torch.no_grad():
        for local in engine.module.local_parameters():
            local.parameter.copy_(initial.weight(local.name, local.box))
        for fragment in local_fragments(engine):
            name, box, elements = fragment.local.name, fragment.local.box, slice(fragment.start, fragment.stop)
            fragment.master.copy_(initial.weight(name, box).flatten()[elements])
            if initial.optimizer_steps:
                for slot, moment in fragment.moments.items():
                    moment.copy_(initial.moment(name, slot, box).flatten()[elements])
    for state in engine.optimizer.optimizer.state.values():
        state["step"].fill_(initial.optimizer_steps)


def optimizer_steps(engine: Any) -> int:  # noqa: ANN401  (as above)
    """Number of updates by this rank's optimizer; steps that the guard skipped do not count."""
    return max((int(state["step"]) for state in engine.optimizer.optimizer.state.values()), default=0)


def write_fragments(engine: Any, directory: Path, step: int, writer: str) -> CheckpointWriter:  # noqa: ANN401  (as above)
    """Start to write this rank's fragments as checkpoint ``step``; later updates do not change what is written."""
    files = CheckpointWriter(directory, step, writer)
    for fragment in local_fragments(engine):
        local, elements = fragment.local, (fragment.start, fragment.stop)
        if not local.is_primary:
            continue
        weight = local.parameter.detach().flatten()[slice(*elements)]
        slots: dict[SlotName, Tensor] = {"weight": weight, **fragment.moments}
        if weight.dtype != torch.float32:
            slots["master"] = fragment.master
        for slot, tensor in slots.items():
            files.add(local.name, local.shape, slot, local.box, tensor, elements)
    files.finish()
    return files


def open_checkpoint(path: Path, config: ModelConfig, stream: str) -> Checkpoint:
    """Open a checkpoint to resume from. Raises ``Failure`` if its model or its token stream is not this run's."""
    checkpoint = Checkpoint.open(path)
    may_change = {"dropout", "attention_dropout", "init_std"}
    ours, theirs = config.model_dump(exclude=may_change), checkpoint.config.model_dump(exclude=may_change)
    for key, value in theirs.items():
        if ours[key] != value:
            raise Failure(f"{path}: model.{key} is {value} here and {ours[key]} in the recipe; use another --out")
    if checkpoint.progress.stream != stream:
        raise Failure(
            f"{path}: trained on token stream {checkpoint.progress.stream[:12]}, but --data is {stream[:12]}; "
            "use that run's data, or another --out"
        )
    return checkpoint
