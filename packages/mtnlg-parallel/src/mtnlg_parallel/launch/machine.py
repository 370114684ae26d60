"""How many ranks this machine can run on its GPUs or cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from mtnlg_data.engine.machine import cores
from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from mtnlg_parallel.layout import Layout

RANKS_ON_CPU: Final = 64
"""Most ranks on a machine's CPU, or one per core if it has more cores; each is a process of about 250 MB."""


def ranks_here(device: Literal["auto", "cpu"] = "auto") -> tuple[int, bool]:
    """How many ranks this machine can run, and whether on GPUs."""
    import torch  # noqa: PLC0415  (slow to import; the commands that need no torch share this module)

    gpus = torch.cuda.device_count() if device == "auto" and torch.cuda.is_available() else 0
    return gpus or max(RANKS_ON_CPU, cores()), bool(gpus)


def check_ranks(layout: Layout, device: Literal["auto", "cpu"] = "auto") -> None:
    """Raise ``UsageFailure`` if the layout has more ranks than this machine has GPUs, or than its CPU can run."""
    ranks, on_gpus = ranks_here(device)
    if layout.world <= ranks:
        return
    if on_gpus:
        lacks, more = f"GPUs and this machine has {ranks}", ", or, to train, --device cpu"
    else:
        lacks, more = f"ranks and this machine's CPU takes {ranks}", ""
    hint = f"use a smaller layout, or torchrun over several machines{more}"
    raise UsageFailure(f"layout {layout} needs {layout.world:,} {lacks}; {hint}")
