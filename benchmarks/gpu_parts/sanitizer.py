"""The kernels' checks at tiny sizes under compute-sanitizer: accesses out of bounds, and races in shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from typing import Final

from .clock import GPU, begin

SECONDS: Final = 95
"""For each tool: most of it is the compilation of tiny kernels."""


def main() -> None:
    """Run the checks, or say why not."""
    tiny, results = begin(__doc__, "sanitizer")
    program = shutil.which("compute-sanitizer")
    for tool in ("memcheck", "racecheck"):
        if results.has(tool):
            continue
        if tiny or not GPU or program is None:
            reason = "a trial" if tiny or not GPU else "no compute-sanitizer here"
            results.add(tool, f"not run: {reason}", {"why_not": reason})
            continue
        with results.attempt(tool), tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "gpu_parts.checks", "--tiny", "--out", folder]
            command = [program, "--tool", tool, "--error-exitcode", "9", *words]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
            last = (ended.stdout + ended.stderr).strip().splitlines()[-1:] or [""]
            line = f"exit status {ended.returncode}: {last[0]}"
            figures: dict[str, object] = {"error": line} if ended.returncode else {}
            results.add(tool, line, {"status": ended.returncode, **figures})


if __name__ == "__main__":
    main()
