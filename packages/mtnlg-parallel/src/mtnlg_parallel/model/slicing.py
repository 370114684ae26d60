"""Which slices of the decoder a rank holds, by its tensor-parallel group, and whether activations are sliced too."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import Tensor, distributed
from torch.distributed import distributed_c10d

from mtnlg_parallel import rendezvous
from mtnlg_parallel.environment import this_rank

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from mtnlg_model.config import ModelConfig
    from mtnlg_parallel.layout import Layout

    from .eight_bit import Rounding

Box = tuple[slice, ...]
"""A rank's slice of a global tensor, one range an axis."""


def init_process_group(device: torch.device, timeout: timedelta) -> None:
    """Join torch.distributed as `this_rank`, with nccl on a GPU.

    ``timeout`` is that of the default group's collectives. There is no ``device_id``: with one, nccl would make every
    group at once, by a split that all ranks take part in. Without it the first collective of a group makes its
    communicator, and a group that is never used costs nothing.
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
    """Set the timeout of the collectives of every process group that this process is in, whoever made it."""
    for group in distributed_c10d._world.pg_map:  # noqa: SLF001  (torch has no public list of its groups)
        distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001  (and no public way to change this)


def level_group_counts(device: torch.device) -> None:
    """Bring every rank into as many process groups, by groups of its own; collective over all ranks.

    torch names a group that its own ranks make alone by how many groups each of them is in: if they differ they wait
    for each other until the timeout. In DeepSpeed's engine only the outer stages have a group for the token table.
    """
    names = distributed_c10d._world.pg_names  # noqa: SLF001  (as above)
    most = torch.tensor(len(names), device=device)
    distributed.all_reduce(most, op=distributed.ReduceOp.MAX)
    for _ in range(int(most) - len(names)):
        distributed.new_group([distributed.get_rank()], use_local_synchronization=True)


@dataclass(frozen=True)
class Slicing:
    """A rank's tensor-parallel group, whether it also slices activations along the sequence, and how it multiplies.

    megatron-core's layers take the group as an argument, so ``parallel_state.initialize_model_parallel``, which makes
    thousands of groups, is never called. ``kv_group`` has the ranks that share a head of keys and values
    (`shared_heads`).
    """

    group: Any  # a torch.distributed.ProcessGroup
    sequence_parallel: bool = False
    eight_bit: Rounding | None = None  # of the layers' sliced products, where they are of 8-bit factors
    kv_group: Any = None  # None where each rank has heads of its own

    @classmethod
    def of_this_rank(
        cls, layout: Layout, config: ModelConfig, sequence_parallel: bool, eight_bit: Rounding | None = None
    ) -> Slicing:
        """Slicing of this process; makes its tensor-parallel group, together with that group's other ranks alone."""
        place = layout.coordinates(distributed.get_rank())
        ranks = [layout.rank(tp, place.pp, place.dp) for tp in range(layout.tp)]
        group = distributed.new_group(ranks, use_local_synchronization=True)
        return cls(group, sequence_parallel and layout.tp > 1, eight_bit, _kv_group(ranks, place.tp, config))

    @property
    def rank(self) -> int:
        """Tensor-parallel rank."""
        return int(self.group.rank())

    @property
    def degree(self) -> int:
        """Number of tensor-parallel ranks."""
        return int(self.group.size())

    @property
    def config(self) -> ModelParallelConfig:
        """Settings for megatron-core's layers."""
        return ModelParallelConfig(
            tensor_model_parallel_size=self.degree,
            use_cpu_initialization=True,  # allocates on torch's default device
            perform_initialization=False,
        )

    def box(self, shape: tuple[int, ...], axis: int | None) -> Box:
        """Slice of a global tensor of ``shape`` that this rank holds; all of it for axis None."""
        box = [slice(0, size) for size in shape]
        if axis is not None:
            width = shape[axis] // self.degree
            box[axis] = slice(self.rank * width, (self.rank + 1) * width)
        return tuple(box)

    def positions(self, tokens_BS: Tensor) -> Tensor | None:
        """Positions that this rank embeds, [1, S/tp]; None without sequence parallelism, where it embeds all."""
        if not self.sequence_parallel:
            return None
        width = tokens_BS.shape[1] // self.degree
        return torch.arange(self.rank * width, (self.rank + 1) * width, device=tokens_BS.device)[None]


def _kv_group(ranks: list[int], place: int, config: ModelConfig) -> Any:  # noqa: ANN401  (a ProcessGroup)
    """The group of the ranks that share a head of keys and values with the one at this ``place``; None if none does."""
    sharing = len(ranks) // config.kv_heads
    if sharing < 2:
        return None
    first = place // sharing * sharing
    return distributed.new_group(ranks[first : first + sharing], use_local_synchronization=True)


@contextmanager
def fake_process_group(
    rank: int, degree: int, config: ModelConfig, sequence_parallel: bool, eight_bit: Rounding | None = None
) -> Iterator[Slicing]:
    """Slicing of any rank of a job that is not running, to build and run modules on the meta device.

    Collectives return at once and move nothing.
    """
    # Importing this registers the backend; torch keeps it for its tests and has no other that moves nothing.
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=degree)
    try:
        kv_group = _kv_group(list(range(degree)), rank, config)
        yield Slicing(distributed.group.WORLD, sequence_parallel and degree > 1, eight_bit, kv_group)
    finally:
        distributed.destroy_process_group()
