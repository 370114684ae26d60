"""DeepSpeed's pipeline engine for this rank's stage: 1F1B, ZeRO-1 over the data-parallel ranks, AdamW, clipping.

Under bf16, gradients are accumulated and reduced in fp32, and master weights and moments are fp32 (paper.md section 2).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mtnlg_parallel.model.head import EAGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.model.pipeline import Pipeline
    from mtnlg_parallel.recipe import Recipe, Train

MARGIN = timedelta(minutes=1)
"""Added to the watchdog's patience as the timeout of collectives: only the watchdog can say which rank is missing."""


def init_distributed(layout: Layout, patience: float = 600.0) -> torch.device:
    """Initialize torch.distributed, DeepSpeed and megatron-core from the environment; returns this rank's device.

    ``patience`` is the watchdog's, in seconds.
    """
    os.environ["DS_ACCELERATOR"] = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # orders kernels as megatron-core's overlap needs
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # megatron-core uses torch.compile on functions we never call
    # DeepSpeed calls collectives by names that torch has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    with suppress_output():
        import deepspeed.ops  # noqa: PLC0415  (reads DS_ACCELERATOR when imported)

        from mtnlg_parallel.model import slicing  # noqa: PLC0415  (as above)

        # Else DeepSpeed compiles C++ for half a minute, for inference collectives that we never call.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        device = slicing.init_process_group(timedelta(seconds=patience) + MARGIN)
        deepspeed.init_distributed(dist_backend=distributed.get_backend(), verbose=False)
        slicing.initialize_megatron_groups(layout)
    return device


def build_engine(recipe: Recipe, device: torch.device, ops: ParallelOps = EAGER) -> Any:  # noqa: ANN401  (DeepSpeed has no annotations)
    """Build this rank's engine with uninitialised parameters; `zero.restore` fills them.

    ``ops`` are the operations of its layers.
    """
    import deepspeed  # noqa: PLC0415  (as in init_distributed)

    from mtnlg_parallel.model.pipeline import Pipeline  # noqa: PLC0415

    with suppress_output():
        with torch.no_grad():  # it broadcasts tied weights, which autograd would record
            module = Pipeline(recipe, device, ops)
        optimizer = build_optimizer(module, recipe.train, fused=device.type == "cuda")
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=deepspeed_config(recipe))
    return engine


def deepspeed_config(recipe: Recipe) -> dict[str, Any]:
    """DeepSpeed's configuration for a recipe."""
    train = recipe.train
    config: dict[str, Any] = {
        "train_batch_size": train.batch,
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_clipping": train.clip,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,  # torch's AdamW, which the guard can make skip
        "steps_per_print": sys.maxsize,
    }
    if train.sequence_parallel:
        # By default each rank sends 1/tp of its activations, as if they were replicated; here each has its own part.
        config["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    if train.precision == "bf16":
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        config["communication_data_type"] = "fp32"
    return config


def build_optimizer(module: Pipeline, train: Train, fused: bool) -> GuardedAdamW:
    """AdamW with weight decay on matrices only, not on biases and norms (paper.md section 2)."""
    matrices = [local.parameter for local in module.local_parameters() if local.parameter.ndim > 1]
    vectors = [local.parameter for local in module.local_parameters() if local.parameter.ndim == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return GuardedAdamW(groups, lr=train.lr, betas=train.betas, eps=train.eps, fused=fused)


class GuardedAdamW(torch.optim.AdamW):
    """AdamW that leaves weights and moments unchanged in a step that ``permits_update`` forbids."""

    permits_update: Callable[[], bool] = staticmethod(lambda: True)

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401  (torch's signature)
        """Update one step, if permitted. DeepSpeed calls this once per parameter group."""
        return super().step(closure) if self.permits_update() else None


def loss_and_grad_norm(engine: Any, device: torch.device) -> tuple[float, float]:  # noqa: ANN401  (as above)
    """Loss and gradient norm of the batch whose gradients ``engine`` has just reduced, equal on every rank.

    One sum over all ranks, in fp64: each of the dp x tp ranks of the last stage adds its share of the mean loss. Every
    rank has the norm, but only rank 0 adds it, so that all ranks judge by the same bits.
    """
    loss_and_norm = torch.zeros(2, dtype=torch.float64, device=device)
    if engine.is_last_stage():
        last_stage_ranks = engine.grid.data_parallel_size * engine.grid.model_parallel_size
        loss_and_norm[0] = engine.total_loss.double() / (engine.micro_batches * last_stage_ranks)
    if distributed.get_rank() == 0:
        loss_and_norm[1] = float(engine.optimizer._global_grad_norm)  # noqa: SLF001  (public only after the step)
    distributed.all_reduce(loss_and_norm)
    loss, grad_norm = loss_and_norm.tolist()
    return loss, grad_norm


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Silence prints and warnings of DeepSpeed and megatron-core; errors still pass."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    with warnings.catch_warnings(), open(os.devnull, "w", encoding="utf-8") as sink:  # noqa: PTH123
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(sink):
            yield
