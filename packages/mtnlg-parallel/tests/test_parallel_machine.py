"""Cores and memory of this machine within the quotas of its cgroups; paths that are none of this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from mtnlg_model.console import run
from mtnlg_parallel.cli import app
from mtnlg_parallel.launch import machine
from mtnlg_parallel.statuses import Exit

if TYPE_CHECKING:
    from pathlib import Path

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
    monkeypatch.setattr(sys, "platform", "linux")
    assert (machine.cores(), machine.memory_bytes()) == (cores, memory)


@pytest.mark.parametrize(
    "words",
    [
        ["train", "recipes/quickstart", "--data", "DIR", "--out", "s3://bucket/run"],
        ["train", "recipes/quickstart", "--data=gs://bucket/data", "--out", "DIR"],
        ["status", "s3://bucket/run"],
        ["restart", "hf://datasets/x/run", "--status", "71"],
        ["plan", "mt-nlg-530b", "--cluster", "selene", "--nodes", "280", "--html", "https://host/plan.html"],
        ["calibrate", "s3://bucket/here.toml"],
    ],
)
def test_a_url_is_refused_by_every_command_in_one_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["mtnlg-parallel", *words])
    with pytest.raises(SystemExit) as stop:
        run(app)
    assert stop.value.code == Exit.USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
