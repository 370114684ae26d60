"""Builds the engine that a recipe asks for."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from mtnlg_parallel.model.head import EAGER

from .process import collective_timeout

if TYPE_CHECKING:
    import torch

    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.recipe import Recipe

    from .contract import Engine


def build_engine(recipe: Recipe, device: torch.device, ops: ParallelOps = EAGER) -> Engine:
    """Build this rank's engine with uninitialised parameters; `zero.restore` fills them.

    ``ops`` are the operations of its layers. From here on every process group has the timeout of `collective_timeout`.
    """
    from mtnlg_parallel.model import slicing  # noqa: PLC0415  (slow to import)

    from .deepspeed_engine import DeepSpeedEngine  # noqa: PLC0415  (as above)
    from .pipeline_engine import PipelineEngine  # noqa: PLC0415

    engine: Engine = (DeepSpeedEngine if recipe.train.schedule == "1f1b" else PipelineEngine)(recipe, device, ops)
    slicing.level_group_counts(device)
    slicing.set_timeouts(collective_timeout(recipe.guard))
    # A full garbage collection would stop this rank for 0.14 s at a time of its own, and the others wait; now 0.3 ms.
    gc.collect()
    gc.freeze()
    return engine
