"""DeepSpeed's pipeline engine around this rank's stage: 1F1B, ZeRO-1 over the data-parallel ranks, AdamW, clipping.

Under bf16 gradients are accumulated and reduced in fp32, and master weights and moments are fp32 (paper.md section 2).
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
from mtnlg_parallel.training.guard import AdamW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mtnlg_parallel.layout import Layout
    from mtnlg_parallel.model.head import ParallelOps
    from mtnlg_parallel.model.pipeline import Pipeline
    from mtnlg_parallel.recipe import Recipe, Train

MARGIN = timedelta(minutes=1)
"""How much longer than the watchdog's patience a collective waits: the watchdog says who is missing, it does not."""


def join(layout: Layout, patience: float = 600.0) -> torch.device:
    """Join the job whose rank this process is by its environment (RANK, WORLD_SIZE, MASTER_ADDR …); the rank's device.

    Ranks are processes of one GPU each where there are GPUs, else of CPU threads over gloo.
    """
    cuda = torch.cuda.is_available()
    os.environ["DS_ACCELERATOR"] = "cuda" if cuda else "cpu"
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # megatron-core orders its overlap by it
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # megatron-core decorates with torch.compile what we never call
    # DeepSpeed still calls collectives by names that torch is about to drop.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend, timeout = "nccl" if cuda else "gloo", timedelta(seconds=patience) + MARGIN
    with hushed():
        import deepspeed.ops  # noqa: PLC0415  (after DS_ACCELERATOR is set: it looks for a device when imported)

        from mtnlg_parallel.model.slicing import initialize  # noqa: PLC0415  (as above)

        # DeepSpeed would compile C++ now, for half a minute, for collectives of inference that we never call.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        distributed.init_process_group(backend, timeout=timeout, device_id=device if cuda else None)
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
        initialize(layout)
    return device


def parallelize(recipe: Recipe, device: torch.device, permits: Callable[[], bool], ops: ParallelOps = EAGER) -> Any:  # noqa: ANN401  (DeepSpeed has no annotations)
    """The engine for this rank, parameters still uninitialised: `sharding.restore` fills them.

    Its optimizer updates only where ``permits`` says so; ``ops`` are the operations it computes by.
    """
    import deepspeed  # noqa: PLC0415  (as in join)

    from mtnlg_parallel.model.pipeline import Pipeline  # noqa: PLC0415

    with hushed():
        with torch.no_grad():  # it broadcasts tied weights, which autograd would otherwise remember
            module = Pipeline(recipe, device, ops)
        optimizer = adamw(module, recipe.train, fused=device.type == "cuda")
        optimizer.permits = permits
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=settings(recipe))
    return engine


def settings(recipe: Recipe) -> dict[str, Any]:
    """DeepSpeed's configuration."""
    train = recipe.train
    chosen: dict[str, Any] = {
        "train_batch_size": train.batch,
        "train_micro_batch_size_per_gpu": train.micro_batch,
        "gradient_clipping": train.clip,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,  # torch's AdamW, told by the guard when to do nothing
        "steps_per_print": sys.maxsize,
    }
    if train.sequence_parallel:
        # DeepSpeed would send each slice's part of what it takes for copies; here each sends its part of the sequence.
        chosen["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    if train.precision == "bf16":
        chosen |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return chosen


def adamw(module: Pipeline, train: Train, fused: bool) -> AdamW:
    """AdamW, decay on matrices only: none on biases and norms (paper.md section 2); ``fused`` into one pass."""
    matrices = [part.parameter for part in module.held() if part.parameter.ndim > 1]
    vectors = [part.parameter for part in module.held() if part.parameter.ndim == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": train.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    held = [group for group in groups if group["params"]]
    return AdamW(held, lr=train.lr, betas=train.betas, eps=train.eps, fused=fused)


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Send what DeepSpeed and megatron-core print and warn of to nobody, except errors."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    with warnings.catch_warnings(), open(os.devnull, "w", encoding="utf-8") as nobody:  # noqa: PTH123
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(nobody):
            yield
