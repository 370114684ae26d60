"""What every result says of where and when it was measured, and how it is kept."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def today() -> str:
    """The date that a result is kept under."""
    return datetime.now(UTC).date().isoformat()


def conditions(*packages: str) -> dict[str, Any]:
    """Date, Python, cores, the load before measuring (so call it first), and the versions of what is compared."""
    return {
        "date": today(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 1),
        **{package: version(package) for package in packages},
    }


CLOCKS = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")


def gpu() -> dict[str, Any]:
    """The GPU that torch uses, with driver and clocks as they are now, and versions of what compiles for it.

    Packages that are not installed, as where the sources themselves are on the path, are None.
    """
    import torch  # noqa: PLC0415  (most benchmarks are without)

    about: dict[str, Any] = {name: _version(name) for name in ("torch", "triton", "liger-kernel", "mtnlg-parallel")}
    if not torch.cuda.is_available():
        return {"device": "cpu"} | about
    device = torch.cuda.get_device_properties(0)
    about |= {
        "device": device.name,
        "capability": f"{device.major}.{device.minor}",
        "memory_bytes": device.total_memory,
        "multiprocessors": device.multi_processor_count,
        "cuda": torch.version.cuda,
    }
    if shutil.which("nvidia-smi"):
        asked = [f"--query-gpu={','.join(CLOCKS)}", f"--id=GPU-{device.uuid}", "--format=csv,noheader"]
        answer = subprocess.run(["nvidia-smi", *asked], capture_output=True, text=True, check=False)  # noqa: S607  (where it lies differs)
        about |= dict(zip(CLOCKS, answer.stdout.strip().split(", "), strict=False))
    return about


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def keep(result: dict[str, Any], out: Path | None) -> None:
    """Print a result, and write it where a file is given."""
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if out:
        out.write_text(text, encoding="utf-8")
