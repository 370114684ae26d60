"""Sets up a rank before its engine is built: chooses its device and joins the job's process group."""

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
"""Collectives time out this long after the watchdog's patience: only the watchdog can say which rank is missing."""

ENVIRONMENT: Final = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # orders kernels as megatron-core's overlap needs
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # else stages whose tensors vary in size lose memory in gaps
}
"""Environment variables that CUDA reads when it starts. Set on import, because rank 0's forecast starts CUDA."""

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)


MALLOC: Final = {-1: (1 << 31) - 1, -3: 1 << 25}
"""Bytes for glibc's M_TRIM_THRESHOLD, its maximum, and M_MMAP_THRESHOLD, the maximum in every release (mallopt(3))."""


class UnfitNode(Failure):
    """A rank's node cannot take part in the run. The launcher may exclude the node."""

    exit_status = Exit.CRASHED


def init_distributed(
    layout: Layout,
    guard: GuardSettings = GuardSettings(),  # noqa: B008  (frozen)
    device: Literal["auto", "cpu"] = "auto",
) -> torch.device:
    """Initialize torch.distributed as `environment.this_rank`; returns this rank's device (`rank_device`)."""
    # Our code and DeepSpeed call collectives by their names from before torch 2.13.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    chosen = rank_device(layout, device)
    with suppress_output():
        from mtnlg_parallel.model import slicing  # noqa: PLC0415  (slow to import, and prints)

        slicing.init_process_group(chosen, collective_timeout(guard))
    if chosen.type == "cpu":
        keep_freed_memory()
    return chosen


def keep_freed_memory() -> None:
    """Make malloc keep freed memory for later tensors: memory from the kernel is zeroed page by page, in each step.

    That would cost 13 % of a small decoder's step. In exchange, resident memory stays at its peak.
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
    """The timeout of every collective, longer than any patience of the watchdog."""
    return timedelta(seconds=max(guard.patience, guard.disk_patience)) + MARGIN


@contextlib.contextmanager
def suppress_output() -> Iterator[None]:
    """Silence prints and warnings of DeepSpeed and megatron-core; errors still pass."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    with warnings.catch_warnings(), open(os.devnull, "w", encoding="utf-8") as sink:  # noqa: PTH123
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(sink):
            yield
