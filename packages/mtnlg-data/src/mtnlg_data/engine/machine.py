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
    quotas = _limits("cpu", "cpu.max") + _limits("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    return max(1, min([bound, *(int(quota) // int(period) for quota, period in quotas)]))


def memory_bytes() -> float:
    """Bytes of memory that this process may use: the machine's, or fewer by a limit of a container."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = _limits("memory", "memory.max") + _limits("memory", "memory.limit_in_bytes")
    return float(min([machine, *(int(limit) for (limit,) in limits)]))


def _limits(controller: str, *files: str) -> list[list[str]]:
    """The words of limit files in this process's cgroups (version 1 or 2) and in their ancestors that set a limit."""
    found: list[list[str]] = []
    with suppress(OSError):  # not Linux
        for line in OWN_CGROUP.read_text(encoding="ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = CGROUPS / (controllers and controller)  # version 2 has one tree for all
            own = root / path.strip("/")
            for folder in {root, own, *own.parents}:
                with suppress(OSError):
                    found.append(" ".join((folder / file).read_text(encoding="ascii") for file in files).split())
    return [words for words in found if words[0] not in {"max", "-1"}]
