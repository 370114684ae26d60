"""Both engines with one thing broken, to show that `mtnlg_parallel.conformance` names the parameter that suffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mtnlg_parallel import layout
from mtnlg_parallel.engine import deepspeed as deepspeed_engine
from mtnlg_parallel.engine import pipeline_engine, sharded_optimizer
from mtnlg_parallel.engine.deepspeed import DeepSpeedEngine, GuardedAdamW
from mtnlg_parallel.engine.pipeline_engine import PipelineEngine
from mtnlg_parallel.engine.sharded_optimizer import BucketKind, ParameterGradient
from mtnlg_parallel.model import head
from mtnlg_parallel.model.stage_modules import StageModules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.model.stage_modules import LocalParameter
    from mtnlg_parallel.recipe import Recipe, Train

_local_parameters = StageModules.local_parameters
_config = deepspeed_engine.deepspeed_config
_has_arrived = ParameterGradient._has_arrived


def broken(engine: type[Any], break_it: Callable[[], None]) -> type[Any]:
    """The engine, built in a process in which ``break_it`` was called."""

    class Broken(engine):  # type: ignore[misc]
        def __init__(self, recipe: Recipe, device: torch.device, ops: ParallelOps) -> None:
            break_it()
            super().__init__(recipe, device, ops)

    return Broken


def sum_nothing() -> None:
    """Have an engine sum neither the tied table nor what ranks have seen in part."""

    def alone(self: StageModules) -> Iterator[LocalParameter]:
        return (local._replace(summed_over=None) for local in _local_parameters(self))

    setattr(StageModules, "local_parameters", alone)  # noqa: B010  (mypy refuses a method)


def decay_everything() -> None:
    """Have the pipeline engine decay biases and norms too."""
    vars(pipeline_engine)["BucketKind"] = lambda *fields: BucketKind(*fields)._replace(decays=True)


def config_with(section: str, **changes: Any) -> Callable[[], None]:  # noqa: ANN401  (settings of DeepSpeed's)
    """Have DeepSpeed's configuration changed in one section."""

    def changed(recipe: Recipe) -> dict[str, Any]:
        config = _config(recipe)
        return {**config, section: {**config.get(section, {}), **changes}}

    return lambda: vars(deepspeed_engine).update(deepspeed_config=changed)


def lose_head_gradient() -> None:
    """Have the head's weight get a gradient of zero."""
    backward = head._MeanLoss.backward

    def without(ctx: Any, upstream: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401  (autograd's context)
        dx, dw, *rest = backward(ctx, upstream)
        return dx, None if dw is None else torch.zeros_like(dw), *rest

    setattr(head._MeanLoss, "backward", staticmethod(without))  # noqa: B010  (as above)


def sum_in_bf16() -> None:
    """Have the pipeline engine round its sum of gradients to bf16 after each micro-batch."""

    def rounded(self: ParameterGradient) -> None:
        self._total.copy_(self._total.bfloat16())
        _has_arrived(self)

    setattr(ParameterGradient, "_has_arrived", rounded)  # noqa: B010  (as above)


def decay_all() -> None:
    """Have DeepSpeed's optimizer decay biases and norms too."""

    def build(module: Any, train: Train) -> GuardedAdamW:  # noqa: ANN401  (imports DeepSpeed)
        group = {"params": [local.parameter for local in module.local_parameters()], "decays": True}
        return GuardedAdamW([group], train.lr, train.betas, train.eps, fused=True)

    vars(deepspeed_engine)["build_optimizer"] = build


def small_buckets() -> None:
    """Have gradients reduced in buckets of 500 elements."""
    sharded_optimizer.BUCKET_ELEMENTS = deepspeed_engine.COPIED_ELEMENTS = 500


def small_pieces() -> None:
    """Have four tensor-parallel ranks multiply in two pieces, of however few tokens."""
    vars(layout)["PIECE_TOKENS"] = 1


PipelinePieces = broken(PipelineEngine, small_pieces)
PipelineUnsummed = broken(PipelineEngine, sum_nothing)
PipelineHead = broken(PipelineEngine, lose_head_gradient)
PipelineSum = broken(PipelineEngine, sum_in_bf16)
PipelineDecay = broken(PipelineEngine, decay_everything)
PipelineBuckets = broken(PipelineEngine, small_buckets)
DeepSpeedUnsummed = broken(DeepSpeedEngine, sum_nothing)
DeepSpeedHead = broken(DeepSpeedEngine, config_with("bf16", immediate_grad_update=False))
DeepSpeedSum = broken(DeepSpeedEngine, config_with("data_types", grad_accum_dtype="bf16"))
DeepSpeedDecay = broken(DeepSpeedEngine, decay_all)
DeepSpeedBuckets = broken(DeepSpeedEngine, small_buckets)
