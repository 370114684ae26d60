"""What every result says of where and when it was measured, and how it is kept."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
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


def keep(result: dict[str, Any], out: Path | None) -> None:
    """Print a result, and write it where a file is given."""
    text = json.dumps(result, indent=2) + "\n"
    print(text, end="")
    if out:
        out.write_text(text, encoding="utf-8")
