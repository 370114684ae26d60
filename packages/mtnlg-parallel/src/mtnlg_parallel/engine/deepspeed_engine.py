"""DeepSpeed's pipeline engine for this rank's stage: 1F1B, ZeRO-1 over the data-parallel ranks, AdamW, clipping.

Under bf16, gradients are accumulated and reduced in fp32, and master weights and moments are fp32 (paper.md section 2).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import sys
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import distributed

from mtnlg_model.console import Failure
from mtnlg_parallel.model.head import EAGER
from mtnlg_parallel.recipe import GuardSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.model.pipeline import Pipeline
    from mtnlg_parallel.recipe import Recipe, Train

MARGIN = timedelta(minutes=1)
"""Added to the watchdog's patience as the timeout of collectives: only the watchdog can say which rank is missing."""

ENVIRONMENT: Final = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # orders kernels as megatron-core's overlap needs
    "TORCHDYNAMO_DISABLE": "1",  # megatron-core uses torch.compile on functions we never call
}
"""Read when CUDA and megatron-core start, and on rank 0 the forecast starts CUDA: so set where this is imported."""

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)


class UnfitNode(Failure):
    """A rank's node cannot take part in the run. Exit status 72, as of a crash: the launcher may leave the node out."""

    exit_status = 72


def init_distributed(
    layout: Layout,
    guard: GuardSettings = GuardSettings(),  # noqa: B008  (frozen)
    device: Literal["auto", "cpu"] = "auto",
) -> torch.device:
    """Initialize torch.distributed and DeepSpeed from the environment; returns this rank's device (`rank_device`)."""
    chosen = rank_device(layout, device)
    os.environ["DS_ACCELERATOR"] = chosen.type
    # DeepSpeed calls collectives by names that torch has deprecated.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    with suppress_output():
        import deepspeed.ops  # noqa: PLC0415  (reads DS_ACCELERATOR when imported)

        from mtnlg_parallel.model import slicing  # noqa: PLC0415  (slow to import, and prints)

        # Else DeepSpeed compiles C++ for half a minute, for inference collectives that we never call.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        slicing.init_process_group(chosen, collective_timeout(guard))
        deepspeed.init_distributed(dist_backend=distributed.get_backend(), verbose=False)
    return chosen


def rank_device(layout: Layout, device: Literal["auto", "cpu"]) -> torch.device:
    """The GPU with this rank's LOCAL_RANK; the CPU if ``device`` asks for it, or on a single machine without GPUs.

    Raises `UnfitNode` where a rank's GPU is missing: under Slurm, on several nodes, or beside ranks that have theirs.
    """
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    is_cluster = "SLURM_JOB_ID" in os.environ or int(os.environ.get("LOCAL_WORLD_SIZE", layout.world)) < layout.world
    if device == "cpu" or not (gpus or is_cluster):
        return torch.device("cpu")
    if local_rank >= gpus:
        place = f"rank {rank} ({layout.coordinates(rank)}) on {node_name()}"
        reason = f"it needs GPU {local_rank} and torch sees {gpus}" if gpus else "torch sees no GPU"
        way_out = "check nvidia-smi and CUDA_VISIBLE_DEVICES there, leave that node out, or train with --device cpu"
        raise UnfitNode(f"{place}: {reason}; {way_out}")
    return torch.device("cuda", local_rank)


def node_name() -> str:
    """The name of this node: Slurm's, or the host's."""
    return os.environ.get("SLURMD_NODENAME", socket.gethostname())


def collective_timeout(guard: GuardSettings) -> timedelta:
    """The timeout of every collective: longer than anything that the watchdog waits for."""
    return timedelta(seconds=max(guard.patience, guard.disk_patience)) + MARGIN


def build_engine(recipe: Recipe, device: torch.device, ops: ParallelOps = EAGER) -> Any:  # noqa: ANN401  (DeepSpeed has no annotations)
    """Build this rank's engine with uninitialised parameters; `zero.restore` fills them.

    ``ops`` are the operations of its layers. From here on every process group has the timeout of `collective_timeout`.
    """
    import deepspeed  # noqa: PLC0415  (as in init_distributed)

    from mtnlg_parallel.model import slicing  # noqa: PLC0415
    from mtnlg_parallel.model.pipeline import Pipeline  # noqa: PLC0415

    with suppress_output():
        with torch.no_grad():  # it broadcasts tied weights, which autograd would record
            module = Pipeline(recipe, device, ops)
        optimizer = build_optimizer(module, recipe.train, fused=device.type == "cuda")
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=deepspeed_config(recipe))
    slicing.set_timeouts(collective_timeout(recipe.guard))
    # A full garbage collection would stop this rank for 0.14 s at a time of its own, and the others wait; now 0.3 ms.
    gc.collect()
    gc.freeze()
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
    before_update: Callable[[], None] = staticmethod(lambda: None)

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401  (torch's signature)
        """Update one step, if permitted, after ``before_update``. DeepSpeed calls this once per parameter group."""
        if not self.permits_update():
            return None
        self.before_update()
        return super().step(closure)


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
