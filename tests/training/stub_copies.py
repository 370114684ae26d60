"""Trains on `stub_gpu`'s GPU while activations go to the host and a checkpoint is copied: races (`stub_streams`).

    python -m training.stub_copies LIBRARY MISSING RECIPE [KEY=VALUE ...]

Prints JSON: the races, and where the host has waited for the GPU. MISSING, if not "", is a method of streams that does
nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from training import stub_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_parallel.recipe import Recipe

MICRO_BATCHES = 8


def main(library: str, missing: str, path: str, *overrides: str) -> None:
    """Run two steps on a rank, the second while the state after the first is copied."""
    stub_gpu.install(library)
    from torch import distributed
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from mtnlg_parallel.recipe_file import load_recipe
    from training import stub_streams

    if missing:
        setattr(stub_streams.Stream, missing, lambda *_: None)
    recipe = load_recipe(Path(path), overrides)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=recipe.layout.world)
    with FakeTensorMode() as fake, stub_streams.Streams() as streams:
        fake.cache_enabled = False
        run(recipe)
    distributed.destroy_process_group()
    sys.stdout.write(json.dumps({"races": sorted(streams.races), "waits": streams.waits}))


def run(recipe: Recipe) -> None:
    """Two steps and a copy of the state between them."""
    import torch

    from mtnlg_parallel.engine.contract import MicroBatch, StepSettings
    from mtnlg_parallel.engine.pipeline_engine import PipelineEngine
    from mtnlg_parallel.kernels import best_ops
    from mtnlg_parallel.training import checkpointing
    from training.stub_streams import Executor

    vars(checkpointing)["ThreadPoolExecutor"] = Executor
    device = torch.device("cuda", 0)
    engine = PipelineEngine(recipe, device, best_ops(device))
    copier = checkpointing.StateCopier(engine, device)

    def batches() -> Iterator[MicroBatch]:
        while True:
            shape = recipe.train.micro_batch, recipe.model.sequence
            inputs, targets = (torch.empty(shape, dtype=torch.long).pin_memory() for _ in range(2))
            yield MicroBatch(inputs, targets)

    def step() -> None:
        engine.train_batch(batches(), MICRO_BATCHES, StepSettings(1e-4, 0.1, 1.0), lambda _loss, _norm: None)

    step()
    for _ in range(2):
        copy = copier.start(None)  # type: ignore[arg-type]  # nothing reads it
        step()
        for piece in copy.pieces.result():
            piece.tensor.sum()  # as the thread that writes files


if __name__ == "__main__":
    main(*sys.argv[1:])
