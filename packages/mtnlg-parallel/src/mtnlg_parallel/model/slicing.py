"""Which slices of the decoder a rank holds, by its tensor-parallel group, and whether activations are sliced too."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import Tensor, distributed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from mtnlg_parallel.layout import Layout

Box = tuple[slice, ...]
"""A rank's slice of a global tensor, one range an axis."""


def init_process_group(timeout: timedelta) -> torch.device:
    """Join torch.distributed as the rank in the environment (RANK, WORLD_SIZE, MASTER_ADDR …); returns its device.

    One GPU a rank and nccl if there are GPUs, else the CPU and gloo. ``timeout`` is that of collectives.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if cuda else "gloo", timeout=timeout, device_id=device if cuda else None)
    return device


def initialize_megatron_groups(layout: Layout) -> None:
    """Create megatron-core's process groups; torch.distributed must be initialized with ``layout.world`` ranks."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp, pipeline_model_parallel_size=layout.pp
    )


@dataclass(frozen=True)
class Slicing:
    """A rank's tensor-parallel group, and whether it also slices activations along the sequence.

    ``overlapped`` leaves sequence parallelism inside the layers to megatron-core, which supports it on CUDA only.
    """

    group: Any  # a torch.distributed.ProcessGroup
    sequence_parallel: bool = False
    overlapped: bool = False

    @classmethod
    def of_this_rank(cls, sequence_parallel: bool, device: torch.device) -> Slicing:
        """Slicing of this process; `initialize_megatron_groups` must have run."""
        group = parallel_state.get_tensor_model_parallel_group()
        sequence_parallel = sequence_parallel and group.size() > 1
        return cls(group, sequence_parallel, overlapped=sequence_parallel and device.type == "cuda")

    @property
    def rank(self) -> int:
        """Tensor-parallel rank."""
        return int(self.group.rank())

    @property
    def degree(self) -> int:
        """Number of tensor-parallel ranks."""
        return int(self.group.size())

    @property
    def layers_gather(self) -> bool:
        """Whether our layers gather and scatter the sequence themselves, by `sequence_parallel`."""
        return self.sequence_parallel and not self.overlapped

    @property
    def config(self) -> ModelParallelConfig:
        """Settings for megatron-core's layers."""
        return ModelParallelConfig(
            tensor_model_parallel_size=self.degree,
            sequence_parallel=self.overlapped,
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


@contextmanager
def fake_process_group(rank: int, degree: int, sequence_parallel: bool) -> Iterator[Slicing]:
    """Slicing of any rank of a job that is not running, to build and run modules on the meta device.

    Collectives return at once and move nothing.
    """
    # Importing this registers the backend; torch keeps it for its tests and has no other that moves nothing.
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=degree)
    try:
        yield Slicing(distributed.group.WORLD, sequence_parallel and degree > 1)
    finally:
        distributed.destroy_process_group()
