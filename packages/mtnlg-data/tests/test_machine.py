"""Cores and memory of this machine within the quotas of its cgroups."""

import os
from pathlib import Path

import pytest

from mtnlg_data.engine import machine

PAGES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("limits", "cores", "memory"),
    [
        ({}, 8, PAGES),
        ({"cpu.max": "max 100000", "pod/memory.max": "max"}, 8, PAGES),
        ({"pod/job/cpu.max": "50000 100000", "pod/job/memory.max": "1048576"}, 1, 1 << 20),
        ({"pod/cpu.max": "250000 100000", "pod/job/cpu.max": "400000 100000"}, 2, PAGES),
        ({"pod/memory.max": "4096", "pod/job/memory.max": "8192"}, 8, 4096),
        ({"cpu.max": "300000 100000", "memory.max": "4096"}, 3, 4096),  # as a container sees its own
        ({"pod/job/cpu.max": "1600000 100000", "pod/job/memory.max": str(4 * PAGES)}, 8, PAGES),
        ({"cpu/pod/cpu.cfs_quota_us": "250000", "cpu/pod/cpu.cfs_period_us": "100000"}, 2, PAGES),  # version 1
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8, PAGES),
        ({"memory/pod/job/memory.limit_in_bytes": "4096"}, 8, 4096),
    ],
)
def test_quotas_of_cgroups_bound_cores_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], cores: int, memory: int
) -> None:
    (tmp_path / "own").write_text("4:cpu,cpuacct:/pod/job\n3:memory:/pod/job\n0::/pod/job\n")
    for name, limit in limits.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{limit}\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    assert (machine.cores(), machine.memory_bytes()) == (cores, memory)
