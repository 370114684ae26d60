"""Cores and memory that this process may use: the machine's, within the quotas of its cgroups."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN_CGROUP: Final = Path("/proc/self/cgroup")


def cores() -> int:
    """Cores that this process may use: those it is bound to, or fewer by a quota of a container; at least one."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([bound, *(int(quota) // int(period) for quota, period in _limits("cpu.max"))]))


def memory_bytes() -> float:
    """Bytes of memory that this process may use: the machine's, or fewer by a limit of a container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(min([machine, *(int(limit) for (limit,) in _limits("memory.max"))]))


def _limits(name: str) -> list[list[str]]:
    """The words of a limit file in this process's cgroup (version 2) and in its ancestors, for those that set it."""
    found: list[list[str]] = []
    with suppress(OSError):  # not Linux
        own = CGROUPS / OWN_CGROUP.read_text(encoding="ascii").rpartition("0::/")[2].strip()
        for folder in {CGROUPS, own, *own.parents}:
            with suppress(OSError):
                found.append((folder / name).read_text(encoding="ascii").split())
    return [words for words in found if words[0] != "max"]
