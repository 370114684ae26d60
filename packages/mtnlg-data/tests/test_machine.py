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
        ({".": ("max 100000", "max"), "pod": ("max 100000", "max")}, 8, PAGES),
        ({"pod/job": ("50000 100000", "1048576")}, 1, 1 << 20),
        ({"pod": ("250000 100000", "4096"), "pod/job": ("400000 100000", "8192")}, 2, 4096),
        ({".": ("300000 100000", "4096")}, 3, 4096),  # as a container sees its own
        ({"pod/job": ("1600000 100000", str(4 * PAGES))}, 8, PAGES),
    ],
)
def test_quotas_of_cgroups_bound_cores_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, tuple[str, str]], cores: int, memory: int
) -> None:
    (tmp_path / "own").write_text("0::/pod/job\n")
    for folder, (cpu, most) in limits.items():
        (tmp_path / "cgroup" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / folder / "cpu.max").write_text(f"{cpu}\n")
        (tmp_path / "cgroup" / folder / "memory.max").write_text(f"{most}\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "OWN_CGROUP", tmp_path / "own")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    assert (machine.cores(), machine.memory_bytes()) == (cores, memory)
