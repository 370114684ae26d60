"""What a rank does before either engine is built: it takes its device and joins the job's process group."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal

import torch

from mtnlg_model.console import Failure
from mtnlg_parallel.environment import this_rank
from mtnlg_parallel.recipe import GuardSettings
from mtnlg_parallel.statuses import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_parallel.layout import Layout

MARGIN = timedelta(minutes=1)
"""Added to the watchdog's patience as the timeout of collectives: only the watchdog can say which rank is missing."""

ENVIRONMENT: Final = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # orders kernels as megatron-core's overlap needs
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # else stages whose tensors vary in size lose memory in gaps
}
"""Read when CUDA starts, and on rank 0 the forecast starts CUDA: so set where this is imported."""

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)


MALLOC: Final = {-1: (1 << 31) - 1, -3: 1 << 25}
"""glibc's M_TRIM_THRESHOLD, its most, and M_MMAP_THRESHOLD, the most that every release takes (mallopt(3))."""


class UnfitNode(Failure):
    """A rank's node cannot take part in the run. The launcher may leave the node out."""

    exit_status = Exit.CRASHED


def init_distributed(
    layout: Layout,
    guard: GuardSettings = GuardSettings(),  # noqa: B008  (frozen)
    device: Literal["auto", "cpu"] = "auto",
) -> torch.device:
    """Initialize torch.distributed as `environment.this_rank`; returns this rank's device (`rank_device`)."""
    # Collectives have their names of before torch 2.13, here and in DeepSpeed.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    chosen = rank_device(layout, device)
    with suppress_output():
        from mtnlg_parallel.model import slicing  # noqa: PLC0415  (slow to import, and prints)

        slicing.init_process_group(chosen, collective_timeout(guard))
    if chosen.type == "cpu":
        keep_freed_memory()
    return chosen


def keep_freed_memory() -> None:
    """Have malloc keep what tensors have freed for the next: returned, it would be zeroed page by page in each step.

    That costs 13 % of a small decoder's step. Resident memory then stays at its peak.
    """
    with contextlib.suppress(AttributeError):  # not glibc
        for option, size in MALLOC.items():
            ctypes.CDLL(None).mallopt(option, size)


def rank_device(layout: Layout, device: Literal["auto", "cpu"]) -> torch.device:
    """The GPU with this rank's local number; the CPU if ``device`` asks for it, or on a single machine without GPUs.

    Raises `UnfitNode` where a rank's GPU is missing: under Slurm, on several nodes, or beside ranks that have theirs.
    """
    place = this_rank()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    is_cluster = place.job or place.nodes > 1
    if device == "cpu" or not (gpus or is_cluster):
        return torch.device("cpu")
    if place.local_rank >= gpus:
        name = f"rank {place.rank} ({layout.coordinates(place.rank)}) on {place.node}"
        reason = f"it needs GPU {place.local_rank} and torch sees {gpus}" if gpus else "torch sees no GPU"
        hint = "check nvidia-smi and CUDA_VISIBLE_DEVICES there, leave that node out, or train with --device cpu"
        raise UnfitNode(f"{name}: {reason}; {hint}")
    return torch.device("cuda", place.local_rank)


def collective_timeout(guard: GuardSettings) -> timedelta:
    """The timeout of every collective: longer than anything that the watchdog waits for."""
    return timedelta(seconds=max(guard.patience, guard.disk_patience)) + MARGIN


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Silence prints and warnings of DeepSpeed and megatron-core; errors still pass."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    with warnings.catch_warnings(), open(os.devnull, "w", encoding="utf-8") as sink:  # noqa: PTH123
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(sink):
            yield
