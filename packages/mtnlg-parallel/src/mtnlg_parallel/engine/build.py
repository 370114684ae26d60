"""Finds the recipe's engine by name, and builds it on a rank.

An engine implements `contract.Engine`. A user's engine is an entry point of the group ``mtnlg_parallel.engines``, or a
reference such as ``my_package.adapter:MyEngine``; `mtnlg_parallel.conformance` tests any of them.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Final, cast

from mtnlg_model.console import UsageFailure
from mtnlg_model.registry import load, references
from mtnlg_parallel.model.head import EAGER

from .contract import ENGINES
from .process import collective_timeout, suppress_output

if TYPE_CHECKING:
    import torch

    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.recipe import Recipe

    from .contract import Engine, EngineClass

GROUP: Final = "mtnlg_parallel.engines"


def engine_class(name: str) -> EngineClass:
    """The engine of this name or reference. Raises ``UsageFailure`` that lists the names, or says what is missing."""
    with suppress_output():
        engine = load(name, references(GROUP, ENGINES), f'train.engine = "{name}"')
    if not callable(getattr(engine, "unsupported", None)):
        raise UsageFailure(f"{name}: not an engine: it has no method unsupported (engine/contract.py: EngineClass)")
    return cast("EngineClass", engine)


def supported_engine(recipe: Recipe) -> EngineClass:
    """The recipe's engine. Raises ``UsageFailure`` if it is unknown or cannot train the recipe."""
    engine = engine_class(recipe.train.engine)
    if reason := engine.unsupported(recipe):
        raise UsageFailure(f'train.engine = "{recipe.train.engine}": {reason}')
    return engine


def build_engine(
    recipe: Recipe, device: torch.device, ops: ParallelOps = EAGER, engine: EngineClass | None = None
) -> Engine:
    """Build this rank's engine with uninitialised parameters; `zero.restore` fills them.

    ``ops`` are the operations that its layers use; ``engine`` defaults to the recipe's. From here on every process
    group has the timeout of `collective_timeout`.
    """
    from mtnlg_parallel.model import slicing  # noqa: PLC0415  (slow to import)

    built = (engine or supported_engine(recipe))(recipe, device, ops)
    slicing.set_timeouts(collective_timeout(recipe.guard))
    # Else a full garbage collection later stops this rank for 0.14 s while the others wait; after this, for 0.3 ms.
    gc.collect()
    gc.freeze()
    return built
