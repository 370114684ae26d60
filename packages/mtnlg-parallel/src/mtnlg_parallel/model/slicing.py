"""Which slices of the decoder a rank holds, its process groups, and how it multiplies by the slices."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed
from torch.distributed import distributed_c10d

from mtnlg_parallel import rendezvous, shared_memory
from mtnlg_parallel.environment import this_rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import timedelta

    from mtnlg_model.config import ModelConfig
    from mtnlg_parallel.layout import Layout

    from .eight_bit import EightBit

Box = tuple[slice, ...]
"""A rank's slice of a global tensor, one range per axis."""


def init_process_group(device: torch.device, timeout: timedelta) -> None:
    """Join torch.distributed as `this_rank`, with NCCL on a GPU, else gloo.

    ``timeout`` applies to the default group's collectives. No ``device_id`` is passed: with one, NCCL would create each
    group at once, by a split in which all ranks take part. Without it a group's first collective creates its
    communicator, and an unused group costs nothing.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, place = rendezvous.join(timeout), this_rank()
    os.environ.update(place.variables())  # DeepSpeed reads torch's names, which srun, MPI and Kubeflow do not set all
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        timeout=timeout,
        store=store,
        rank=place.rank,
        world_size=place.world,
    )


def local_device() -> torch.device:
    """The GPU with this rank's local number, or the CPU of a machine without GPUs."""
    return torch.device("cuda", this_rank().local_rank) if torch.cuda.is_available() else torch.device("cpu")


def set_timeouts(timeout: timedelta) -> None:
    """Set the collectives' timeout of every process group that this process is in, whoever made it."""
    for group in distributed_c10d._world.pg_map:  # noqa: SLF001  (torch has no public list of its groups)
        distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001  (and no public way to change this)


def new_group(ranks: Sequence[int]) -> Any:  # noqa: ANN401  (a ProcessGroup, of which torch has no public name)
    """Create a process group; only its own ranks take part. torch names it by how many groups they made before.

    On CPUs it uses shared memory if all its ranks are on one machine.
    """
    shared_memory.register()
    backend = shared_memory.BACKEND if distributed.get_backend() == "gloo" else None
    return distributed.new_group(list(ranks), backend=backend, use_local_synchronization=True)


@dataclass(frozen=True)
class Slicing:
    """A rank's process groups within its replica, and how its layers are sliced and multiplied."""

    group: Any  # the tensor-parallel torch.distributed.ProcessGroup
    sequence_parallel: bool = False
    eight_bit: EightBit | None = None  # of the layers' sliced products, where they are of 8-bit factors
    kv_group: Any = None  # of the ranks that share a head of keys and values (`shared_heads`), if there are any
    tied_group: Any = None  # of first and last stage, where each holds a copy of the token table
    layers: Mapping[type, type] = field(default_factory=dict)  # in place of those of `tensor_parallel`

    @classmethod
    def of_this_rank(
        cls,
        layout: Layout,
        config: ModelConfig,
        sequence_parallel: bool = False,
        eight_bit: EightBit | None = None,
        layers: Mapping[type, type] | None = None,
    ) -> Slicing:
        """Slicing of this process; creates its groups, each with only that group's members.

        Every rank must create the same number: torch names a group by how many its ranks made before.
        """
        place = layout.coordinates(distributed.get_rank())
        ranks = [layout.rank(*place._replace(tp=tp)) for tp in range(layout.tp)]
        group = new_group(ranks)
        tied = None
        if config.tied and layout.pp > 1:
            ends = [layout.rank(*place._replace(pp=pp)) for pp in (0, layout.pp - 1)]
            tied = new_group(ends if distributed.get_rank() in ends else [distributed.get_rank()])
        kv_group = _kv_group(ranks, place.tp, config)
        return cls(group, sequence_parallel and layout.tp > 1, eight_bit, kv_group, tied, layers or {})

    @property
    def rank(self) -> int:
        """Tensor-parallel rank."""
        return int(self.group.rank())

    @property
    def degree(self) -> int:
        """Number of tensor-parallel ranks."""
        return int(self.group.size())

    def box(self, shape: tuple[int, ...], axis: int | None) -> Box:
        """The rank's slice of a global tensor of ``shape`` along ``axis``; the whole tensor for axis None."""
        box = [slice(0, size) for size in shape]
        if axis is not None:
            width = shape[axis] // self.degree
            box[axis] = slice(self.rank * width, (self.rank + 1) * width)
        return tuple(box)

    def positions(self, tokens_BS: Tensor, positions_BS: Tensor | None = None) -> Tensor | None:
        """Positions that this rank embeds, [B or 1, S/tp], counted from 0 unless given.

        Without sequence parallelism it embeds all positions: returns those given, or None.
        """
        if not self.sequence_parallel:
            return positions_BS
        if positions_BS is None:
            positions_BS = torch.arange(tokens_BS.shape[1], device=tokens_BS.device)[None]
        width = tokens_BS.shape[1] // self.degree
        return positions_BS[:, self.rank * width : (self.rank + 1) * width]


def _kv_group(ranks: list[int], place: int, config: ModelConfig) -> Any:  # noqa: ANN401  (a ProcessGroup)
    """The group of ranks that share a key-value head with the rank at ``place``; None if heads are not shared."""
    sharing = len(ranks) // config.kv_heads
    if sharing < 2:
        return None
    first = place // sharing * sharing
    return new_group(ranks[first : first + sharing])


@contextmanager
def fake_process_group(
    rank: int, degree: int, config: ModelConfig, sequence_parallel: bool, eight_bit: EightBit | None = None
) -> Iterator[Slicing]:
    """Slicing of any rank of a job that is not running, to build and run modules on the meta device.

    Collectives return at once and transfer nothing.
    """
    # Importing this registers the backend, which torch keeps for its tests; it has no other that transfers nothing.
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=degree)
    try:
        kv_group = _kv_group(list(range(degree)), rank, config)
        yield Slicing(distributed.group.WORLD, sequence_parallel and degree > 1, eight_bit, kv_group)
    finally:
        distributed.destroy_process_group()
