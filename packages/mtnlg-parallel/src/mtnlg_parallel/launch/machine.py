"""What this machine has for a process: cores and memory within its cgroups' quotas, GPUs, and the ranks that fit."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from mtnlg_parallel.layout import Layout

RANKS_ON_CPU: Final = 64
"""Ranks that a machine takes on its CPU, or one for each of more cores; each is a process of some 250 MB."""

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


def cores() -> int:
    """Cores that this process may use: those it is bound to, or fewer by a quota of a container; at least one."""
    bound = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min([bound, *(int(quota) // int(period) for quota, period in _limits("cpu.max"))]))


def memory_bytes() -> float:
    """Bytes of memory that this process may use: the machine's, or fewer by a limit of a container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(min([machine, *(int(limit) for (limit,) in _limits("memory.max"))]))


def _limits(name: str) -> list[list[str]]:
    """The words of a limit in the cgroup (version 2) of this process and in those around it, where there is one."""
    found: list[list[str]] = []
    with suppress(OSError):  # not Linux
        own = CGROUPS / OWN_CGROUP.read_text(encoding="ascii").rpartition("0::/")[2].strip()
        for folder in {CGROUPS, own, *own.parents}:
            with suppress(OSError):
                found.append((folder / name).read_text(encoding="ascii").split())
    return [words for words in found if words[0] != "max"]


def check_ranks(layout: Layout, device: Literal["auto", "cpu"] = "auto") -> None:
    """Raise ``UsageFailure`` where the layout has more ranks than this machine has GPUs, or than its CPU takes."""
    import torch  # noqa: PLC0415  (slow to import; the commands that need no torch share this module)

    gpus = torch.cuda.device_count() if device == "auto" and torch.cuda.is_available() else 0
    if layout.world <= (gpus or max(RANKS_ON_CPU, cores())):
        return
    if gpus:
        lacks, more = f"GPUs and this machine has {gpus}", ", or, to train, --device cpu"
    else:
        lacks, more = f"ranks and this machine's CPU takes {max(RANKS_ON_CPU, cores())}", ""
    hint = f"use a smaller layout, or torchrun over several machines{more}"
    raise UsageFailure(f"layout {layout} needs {layout.world:,} {lacks}; {hint}")
