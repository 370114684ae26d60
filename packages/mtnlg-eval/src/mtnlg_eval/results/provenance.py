"""Where a result comes from: command, date, hardware, layout and package versions."""

from __future__ import annotations

import platform
import shlex
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from .result import Provenance

PACKAGES = ("mtnlg-eval", "mtnlg-model", "mtnlg-parallel", "lm-eval", "torch", "datasets", "tokenizers")


def provenance(layout: str | None, seconds: float, rows_revision: str | None = None) -> Provenance:
    """Provenance of a result that this process has just computed, in ``seconds``, with rows of this hub commit."""
    program = Path(sys.argv[0]).name
    return Provenance(
        command=shlex.join((program, *sys.argv[1:])) if program == "mtnlg-eval" else "mtnlg_eval.evaluate",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        hardware=_hardware(),
        layout=layout or "one process",
        packages=_versions(),
        seconds=round(seconds, 3),
        rows_revision=rows_revision,
    )


@cache
def _hardware() -> str:
    """Name of the first GPU and number of GPUs, else threads and name of the processor."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{torch.get_num_threads()} threads, {next(names, platform.machine())}"


@cache
def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # an extra
    return found
