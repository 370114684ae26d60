"""Which slices this rank holds: its tensor parallel group, and whether activations are cut along the sequence too."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from megatron.core import parallel_state
from megatron.core.model_parallel_config import ModelParallelConfig
from torch import Tensor, distributed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_parallel.layout import Layout

Box = tuple[slice, ...]


def initialize(layout: Layout) -> None:
    """Tell megatron-core the groups; torch.distributed must be up, with ``layout.world`` ranks."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tp, pipeline_model_parallel_size=layout.pp
    )


@dataclass(frozen=True)
class Slicing:
    """How this rank's parts are cut: over which ranks, and whether along the sequence too between the slices.

    ``overlapped`` leaves sequence parallelism to megatron-core, which knows CUDA alone.
    """

    group: Any  # a torch.distributed.ProcessGroup
    sequence_parallel: bool = False
    overlapped: bool = False

    @classmethod
    def here(cls, sequence_parallel: bool, device: torch.device) -> Slicing:
        """Of this process, as `initialize` has placed it."""
        group = parallel_state.get_tensor_model_parallel_group()
        wanted = sequence_parallel and group.size() > 1
        return cls(group, wanted, overlapped=wanted and device.type == "cuda")

    @property
    def rank(self) -> int:
        """Tensor-parallel rank."""
        return int(self.group.rank())

    @property
    def degree(self) -> int:
        """Number of tensor-parallel ranks."""
        return int(self.group.size())

    @property
    def by_regions(self) -> bool:
        """Whether sequence parallelism is done by `regions`."""
        return self.sequence_parallel and not self.overlapped

    @property
    def config(self) -> ModelParallelConfig:
        """The same for megatron-core."""
        return ModelParallelConfig(
            tensor_model_parallel_size=self.degree,
            sequence_parallel=self.overlapped,
            use_cpu_initialization=True,  # that is: allocate where torch's default device says
            perform_initialization=False,
        )

    def box(self, shape: tuple[int, ...], axis: int | None) -> Box:
        """What this rank has of a global tensor of ``shape`` that is cut along ``axis``."""
        if axis is None:
            return tuple(slice(0, size) for size in shape)
        width = shape[axis] // self.degree
        mine = slice(self.rank * width, (self.rank + 1) * width)
        return tuple(mine if n == axis else slice(0, size) for n, size in enumerate(shape))

    def positions(self, tokens_BS: Tensor) -> Tensor | None:
        """Of the part of the sequence that this rank embeds, [1, S/tp]; None where it embeds all of it."""
        if not self.sequence_parallel:
            return None
        width = tokens_BS.shape[1] // self.degree
        return torch.arange(self.rank * width, (self.rank + 1) * width, device=tokens_BS.device)[None]


@contextmanager
def imagined(rank: int, degree: int, sequence_parallel: bool) -> Iterator[Slicing]:
    """The slicing of any rank of a job that does not run: parts can be built and run on the meta device.

    Its collectives return at once and move nothing.
    """
    # Importing it is what makes the backend known; torch has it for tests, and no other that moves nothing.
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=degree)
    try:
        yield Slicing(distributed.group.WORLD, sequence_parallel and degree > 1)
    finally:
        distributed.destroy_process_group()
