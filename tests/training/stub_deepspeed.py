"""Trains by DeepSpeed's engine on `stub_gpu`'s GPU while a checkpoint is copied, beside ranks that are not there.

    python -m training.stub_deepspeed LIBRARY CASES

CASES is a file, a list of `stub_gpu.Case`; prints an `Answer` for each as JSON. What neighbours would have said of the
shapes of their messages is said here. Not tried: NCCL, and the kernels of a fused AdamW.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from training import stub_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from mtnlg_parallel.engine.contract import MicroBatch
    from mtnlg_parallel.recipe import Recipe


class Answer(NamedTuple):
    """Bytes on the GPU at the peak of the third step, as planned, and left by that step; what held up the host.

    ``waits`` are those of the third step, ``races`` of all; ``events`` how many more there are after it than before.
    """

    peak: int
    planned: float
    left: int
    waits: dict[str, int]
    races: list[str]
    events: int


def main(library: str, cases: str) -> None:
    """Answer every case."""
    os.environ["DS_ACCELERATOR"] = "cuda"
    stub_gpu.install(library)
    import torch

    vars(torch.cuda).update(set_device=lambda _device: None)
    vars(torch.cuda.nvtx).update(range_push=lambda _message: None, range_pop=lambda: None)
    sys.stdout.write(json.dumps([run(stub_gpu.Case(*case)) for case in json.loads(Path(cases).read_text())]))


def run(case: stub_gpu.Case) -> Answer:
    """Build the engine and run three steps, the third while the state after the second is copied."""
    import torch
    from torch import distributed
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from mtnlg_parallel.engine.contract import StepSettings
    from mtnlg_parallel.engine.deepspeed import DeepSpeedEngine
    from mtnlg_parallel.kernels import best_ops
    from mtnlg_parallel.planner.memory import memory
    from mtnlg_parallel.planner.run import train_run
    from mtnlg_parallel.recipe_file import load_recipe
    from mtnlg_parallel.training import checkpointing
    from training.stub_streams import Executor, Streams

    recipe = load_recipe(Path(case.recipe), case.overrides)
    device, layout = torch.device("cuda", 0), recipe.layout
    know_neighbours(recipe)
    vars(checkpointing)["ThreadPoolExecutor"] = Executor
    world = str(layout.world)
    os.environ.update(RANK=str(case.rank), LOCAL_RANK="0", WORLD_SIZE=world)
    distributed.init_process_group("fake", store=FakeStore(), rank=case.rank, world_size=layout.world)
    with FakeTensorMode() as fake, Streams() as streams, stub_gpu.storages() as gpu:
        fake.cache_enabled = False
        engine = DeepSpeedEngine(recipe, device, best_ops(device))
        copier = checkpointing.StateCopier(engine, device)

        def step() -> None:
            engine.train_batch(
                pinned(recipe), case.micro_batches, StepSettings(1e-4, 0.1, 1.0), lambda _loss, _norm: None
            )

        step()
        step()
        events, before = timing_events(), gpu.bytes
        gpu.peak = gpu.bytes
        streams.waits.clear()
        copy = copier.start(None)  # type: ignore[arg-type]  # nothing reads it
        step()
        for piece in copy.pieces.result():
            piece.tensor.sum()  # as the thread that writes files
        left = gpu.bytes - before
    distributed.destroy_process_group()
    planned = memory(train_run(recipe))[layout.coordinates(case.rank).pp]
    bytes_planned = planned.total - planned.buffers - planned.slack
    more = timing_events() - events
    return Answer(gpu.peak, bytes_planned, left, dict(streams.waits), sorted(streams.races), more)


def know_neighbours(recipe: Recipe) -> None:
    """Have DeepSpeed know shapes that it would be sent; and refuse to compile operators, which takes a compiler."""
    import deepspeed.ops
    import torch
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from deepspeed.runtime.utils import PartitionedTensor

    train, tp = recipe.train, recipe.layout.tp
    dtype = torch.bfloat16 if train.storage == "bf16" else torch.float32
    shape = [recipe.model.sequence // (tp if train.sequence_parallel else 1), train.micro_batch, recipe.model.hidden]

    def buffers(engine: Any, _stage: int) -> Any:  # noqa: ANN401  (DeepSpeed's)
        if not engine.is_pipe_partitioned:
            return engine._allocate_or_extend_buffers(0, shape, dtype)
        part = PartitionedTensor(
            torch.empty(shape, dtype=dtype, device=engine.device), engine.grid.get_slice_parallel_group()
        )
        sent = part.to_meta(), part.data()
        return tuple(engine._allocate_or_extend_buffers(i, list(t.size()), t.dtype) for i, t in enumerate(sent))

    def whole(meta: Tensor, local_part: Tensor, group: Any) -> PartitionedTensor:  # noqa: ANN401  (a group)
        assert meta.is_cpu
        part = PartitionedTensor(torch.empty(shape, dtype=dtype), group)
        part.local_data, part.orig_device = local_part.detach(), local_part.device
        return part

    def refuse(*builder: OpBuilder) -> None:
        raise AssertionError(f"a node would need a compiler for {[each.name for each in builder] or 'all operators'}")

    PipelineEngine._recv_tensor_meta, PartitionedTensor.from_meta, OpBuilder.load = buffers, whole, refuse
    deepspeed.ops._probe_compatible_ops = refuse


def pinned(recipe: Recipe) -> Iterator[MicroBatch]:
    """Micro-batches as `training.samples.Prefetch` has them."""
    import torch

    from mtnlg_parallel.engine.contract import MicroBatch

    shape = recipe.train.micro_batch, recipe.model.sequence
    while True:
        inputs, targets = (torch.empty(shape, dtype=torch.long).pin_memory() for _ in range(2))
        yield MicroBatch(inputs, targets)


def timing_events() -> int:
    """How many there are."""
    from training.stub_streams import Event

    return sum(isinstance(each, Event) and each.times for each in gc.get_objects())


if __name__ == "__main__":
    main(*sys.argv[1:])
