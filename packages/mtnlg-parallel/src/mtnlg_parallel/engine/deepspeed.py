"""DeepSpeed's pipeline engine for this rank's stage: 1F1B, ZeRO-1 over the data-parallel ranks, AdamW, clipping.

This is the paper's system: Megatron's tensor parallelism with DeepSpeed's pipeline and data parallelism. DeepSpeed sees
a whole stage as one layer of its pipeline. Under bf16, gradients are accumulated and reduced in fp32, and master
weights and moments are fp32 (paper.md section 2).
"""

from __future__ import annotations

import math
import os
import sys
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from mtnlg_parallel.model.stage_modules import build_stages

from .contract import MOMENTS, Fragment, Outcome, Skip, deepspeed_error
from .process import suppress_output
from .targets import weigh_targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import Tensor

    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.model.stage_modules import LocalParameter, StageModules
    from mtnlg_parallel.recipe import Recipe, Train

    from .contract import Judge, MicroBatches, Observe, StepSettings


COPIED_ELEMENTS = 1 << 16
"""Largest gradient, in elements, that DeepSpeed copies into a joint buffer to reduce it; larger ones are reduced in
place. By default it copies all, into a buffer of 2 GB."""


class DeepSpeedEngine:
    """DeepSpeed's pipeline engine for this rank's stage (`contract.Engine`)."""

    unsupported = staticmethod(deepspeed_error)

    def __init__(self, recipe: Recipe, device: torch.device, ops: ParallelOps) -> None:
        os.environ["DS_ACCELERATOR"] = device.type
        self.device, self._multiple = device, recipe.batch_size.multiple
        self._steps = 0
        self._layers, self._isolated = recipe.model.layers, recipe.data.isolated
        self._batches: Iterator[tuple[Tensor, Tensor]] = iter(())
        self._attention: deque[tuple[Any, ...]] = deque()
        self.observe: Observe = lambda _what, _tensor: None
        with suppress_output():
            import deepspeed.ops  # noqa: PLC0415  (slow, and reads DS_ACCELERATOR when imported)
            import deepspeed.runtime.pipe.engine  # noqa: PLC0415  (as above)

            # Else DeepSpeed probes the build of every operator, and on a CPU compiles collectives that we never call.
            vars(deepspeed.ops)["__compatible_ops__"] = {}
            # For gradients summed in fp32. DeepSpeed has no setting for it.
            vars(deepspeed.runtime.pipe.engine)["MEMORY_OPT_ALLREDUCE_SIZE"] = COPIED_ELEMENTS
            deepspeed.init_distributed(dist_backend=distributed.get_backend(), verbose=False)
            (self._stage,) = build_stages(recipe, device, ops, megatron_layers(recipe.train))
            self._stage.register_forward_pre_hook(self._with_documents)
            self._adamw = build_optimizer(self._stage, recipe.train)
            with _own_groups_alone():
                self._engine, *_ = deepspeed.initialize(
                    model=build_pipeline(self._stage, recipe.layout),
                    optimizer=self._adamw,
                    config=deepspeed_config(recipe),
                )

    @property
    def before_update(self) -> Callable[[], None]:
        """Called before weights and moments change."""
        return self._adamw.before_update

    @before_update.setter
    def before_update(self, function: Callable[[], None]) -> None:
        self._adamw.before_update = function

    @property
    def optimizer_steps(self) -> int:
        """Number of updates."""
        return self._steps

    @optimizer_steps.setter
    def optimizer_steps(self, steps: int) -> None:
        self._steps = steps
        for state in self._adamw.state.values():
            state["step"].fill_(steps)

    def local_parameters(self) -> Iterator[LocalParameter]:
        """Every parameter of this rank, in model order."""
        return self._stage.local_parameters()

    def fragments(self) -> Iterator[Fragment]:
        """ZeRO's fragments, from ``param._hp_mapping``; creates zero moments if there are none yet."""
        for local in self.local_parameters():
            mapping = local.parameter._hp_mapping  # type: ignore[attr-defined]  # noqa: SLF001  (DeepSpeed's only access)
            if mapping is None:
                continue
            flat = self._adamw.param_groups[mapping.param_group_index]["params"][0]
            state = self._adamw.state[flat]
            if not state:
                state.update(step=flat.new_tensor(0.0), **{slot: torch.zeros_like(flat) for slot in MOMENTS})
            in_box, in_flat = mapping.lp_fragment_address, mapping.get_hp_fragment_address()
            yield Fragment(
                local,
                start=in_box.start,
                stop=in_box.start + in_box.numel,
                weight=local.parameter.detach().flatten().narrow(0, in_box.start, in_box.numel),
                master=flat.detach().narrow(0, in_flat.start, in_flat.numel),
                moments={slot: state[slot].narrow(0, in_flat.start, in_flat.numel) for slot in MOMENTS},
            )

    def train_batch(
        self, batches: MicroBatches | None, micro_batches: int, settings: StepSettings, judge: Judge
    ) -> Outcome:
        """Run the micro-batches, then update unless ``judge`` returns a reason not to."""
        for group in self._engine.optimizer.param_groups:
            group |= {"lr": settings.lr, "weight_decay": settings.weight_decay if group["decays"] else 0.0}
        self._engine.optimizer.clip_grad = settings.clip
        verdict = Verdict(judge, self._loss_and_grad_norm)
        self._adamw.permits_update = verdict.permits_update
        self._engine.set_train_batch_size(micro_batches * self._multiple)
        self._stage.observe = self.observe
        self._engine.train_batch(self._on_device(batches, micro_batches) if batches else None)
        self._stage.observe = None
        self._forget_rounded()
        for timer in self._engine.timers.get_timers().values():  # else it keeps two events of every step
            timer.reset()
        outcome = verdict.outcome()
        self._steps += outcome.skip is None
        return outcome

    def evaluate(self, batches: MicroBatches, micro_batches: int) -> float:
        """Mean loss over the micro-batches, in nats per token."""
        loss = float(self._engine.eval_batch(self._on_device(batches, micro_batches), num_micro_batches=micro_batches))
        self._forget_rounded()
        return loss

    def _forget_rounded(self) -> None:
        if self._stage.slicing.eight_bit:
            self._stage.slicing.eight_bit.forget_weights()

    def _on_device(self, batches: MicroBatches, micro_batches: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The micro-batches on this rank's device. DeepSpeed's own copies would synchronize the host with the GPU."""
        if self._engine.is_last_stage():
            dp_group = self._engine.grid.get_data_parallel_group()
            batches, self._stage.target_weight = weigh_targets(batches, micro_batches, dp_group, self.device)
        self._batches = self._move(batches)
        return self._batches

    def _move(self, batches: MicroBatches) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches:
            self._attention.append(batch.attention(self._layers, self.device))
            tokens_BS, targets_BS = (tensor.to(self.device, non_blocking=True) for tensor in batch[:2])
            yield tokens_BS, targets_BS

    def _with_documents(self, _stage: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Append positions and documents, which DeepSpeed does not pass on, to the inputs of the next forward pass.

        On a middle stage, for which DeepSpeed reads no data, this reads the micro-batch.
        """
        if self._isolated and not self._attention:
            next(self._batches)
        return (*inputs, *self._attention.popleft()) if self._attention else inputs

    def _loss_and_grad_norm(self) -> tuple[float, float]:
        """Loss and gradient norm of the batch whose gradients have just been reduced, equal on every rank.

        One fp64 all-reduce over all ranks: each of the dp x tp ranks of the last stage adds its share of the mean loss.
        Every rank has the norm, but only rank 0 adds it, so that all ranks judge by the same bits.
        """
        engine = self._engine
        loss_and_norm = torch.zeros(2, dtype=torch.float64, device=self.device)
        if engine.is_last_stage():
            last_stage_ranks = engine.grid.data_parallel_size * engine.grid.model_parallel_size
            loss_and_norm[0] = engine.total_loss.double() / (engine.micro_batches * last_stage_ranks)
        if distributed.get_rank() == 0:
            loss_and_norm[1] = engine.optimizer._global_grad_norm  # noqa: SLF001  (public only after the step)
        distributed.all_reduce(loss_and_norm)
        loss, grad_norm = loss_and_norm.tolist()
        return loss, grad_norm


def megatron_layers(train: Train) -> Mapping[type, type] | None:
    """megatron-core's layers to use in place of ours (`model.megatron`); None where they cannot train the recipe."""
    if train.sequence_parallel or train.precision == "fp8":
        return None
    from mtnlg_parallel.model.megatron import LAYERS  # noqa: PLC0415  (slow to import)

    return LAYERS


def build_pipeline(stage: StageModules, layout: Layout) -> nn.Module:
    """DeepSpeed's pipeline module with the stage as the only layer of this rank."""
    from deepspeed.pipe import LayerSpec, PipelineModule  # noqa: PLC0415  (as above)
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology  # noqa: PLC0415  (as above)

    class Pipeline(PipelineModule):  # type: ignore[misc] # DeepSpeed has no annotations
        def get_tied_weights_and_groups(self) -> list[tuple[nn.Parameter, Any]]:
            """Parameters whose gradients the engine sums over a group before it averages them over dp."""
            return [(local.parameter, local.summed_over) for local in stage.local_parameters() if local.summed_over]

    layers = [LayerSpec(nn.Identity)] * layout.pp
    layers[layout.coordinates(distributed.get_rank()).pp] = stage
    topology = PipeModelDataParallelTopology(num_pp=layout.pp, num_dp=layout.dp, num_mp=layout.tp)
    pipeline = Pipeline(layers, topology=topology, loss_fn=stage.loss, partition_method="uniform")
    for local in stage.local_parameters():  # each counts once in a norm: where it is primary
        vars(local.parameter).update(ds_pipe_replicated=not local.is_primary, tensor_model_parallel=True)
    return pipeline


@contextmanager
def _own_groups_alone() -> Iterator[None]:
    """In this context DeepSpeed creates only the groups that this rank is in, and only their members take part.

    By default every rank creates every group of the grid: 697 in a job of 2,240 ranks, though it is in 6 of them.
    """
    import deepspeed.comm  # noqa: PLC0415  (as above)

    together, rank, world = deepspeed.comm.new_group, distributed.get_rank(), distributed.get_world_size()

    def new_group(ranks: Iterable[int]) -> Any:  # noqa: ANN401  (a group, or torch's mark of one that is another's)
        members = [*ranks]
        if len(members) == world:
            return together(members)
        if rank not in members:
            return distributed.GroupMember.NON_GROUP_MEMBER
        return distributed.new_group(members, use_local_synchronization=True)

    vars(deepspeed.comm)["new_group"] = new_group
    try:
        yield
    finally:
        vars(deepspeed.comm)["new_group"] = together


class Verdict:
    """Judges a step once: DeepSpeed updates one parameter group at a time and asks for each."""

    def __init__(self, judge: Judge, measure: Callable[[], tuple[float, float]]) -> None:
        self._judge, self._measure = judge, measure
        self._loss, self._grad_norm = math.nan, math.nan
        self._decided = False
        self._skip: Skip | None = None

    def permits_update(self) -> bool:
        """Whether the optimizer may update. The first call measures loss and norm: all ranks must make it together."""
        if not self._decided:
            self._decided, (self._loss, self._grad_norm) = True, self._measure()
            self._skip = self._judge(self._loss, self._grad_norm)
        return self._skip is None

    def outcome(self) -> Outcome:
        """Loss and gradient norm of the finished step, and why it was skipped; equal on every rank.

        DeepSpeed drops an update with non-finite gradients without asking; then this call measures, on all ranks.
        """
        dropped = not self._decided
        if self.permits_update() and dropped:
            self._skip = Skip("grad_norm_not_finite", "grad_norm is not finite")
        return Outcome(self._loss, self._grad_norm, self._skip)


def deepspeed_config(recipe: Recipe) -> dict[str, Any]:
    """DeepSpeed's configuration for a recipe."""
    train = recipe.train
    config: dict[str, Any] = {
        "train_batch_size": train.batch,
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_clipping": train.clip,
        "zero_optimization": {"stage": 1, "reduce_bucket_size": COPIED_ELEMENTS},
        "zero_allow_untested_optimizer": True,  # torch's AdamW, which the guard can make skip
        "steps_per_print": sys.maxsize,
    }
    if train.sequence_parallel:
        # By default each rank sends 1/tp of its activations, as if they were replicated; here they are already sliced.
        config["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    if train.storage == "bf16":
        # Add each gradient to its fp32 sum as soon as it arrives. By default DeepSpeed adds all of them when backward
        # ends, and clears them when backward reaches the stage's output, which is after the head's gradient arrived.
        config |= {"bf16": {"enabled": True, "immediate_grad_update": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        config["communication_data_type"] = "fp32"
    return config


def build_optimizer(module: StageModules, train: Train) -> GuardedAdamW:
    """AdamW with weight decay on matrices only, not on biases and norms (paper.md section 2)."""
    matrices = [local.parameter for local in module.local_parameters() if local.parameter.ndim > 1]
    vectors = [local.parameter for local in module.local_parameters() if local.parameter.ndim == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "decays": True},
        {"params": vectors, "decays": False},
    ]
    groups = [group for group in groups if group["params"]]
    return GuardedAdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=True)


class GuardedAdamW(torch.optim.AdamW):
    """AdamW that leaves weights and moments unchanged in a step that ``permits_update`` forbids."""

    permits_update: Callable[[], bool] = staticmethod(lambda: True)
    before_update: Callable[[], None] = staticmethod(lambda: None)

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401  (torch's signature)
        """Call ``before_update`` and update, if permitted. DeepSpeed calls this once per parameter group."""
        if not self.permits_update():
            return None
        self.before_update()
        return super().step(closure)
