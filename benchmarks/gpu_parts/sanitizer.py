"""A norm's backward at tiny sizes under compute-sanitizer: races in shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Final

from .clock import GPU

if TYPE_CHECKING:
    from .results import Results

SECONDS: Final = 55


def main(tiny: bool, results: Results) -> None:
    """Run `waiting`, or say why not."""
    program = shutil.which("compute-sanitizer")
    if tiny or not GPU or program is None:
        reason = "a trial" if tiny or not GPU else "no compute-sanitizer here"
        results.add("racecheck", f"not run: {reason}", {"why_not": reason})
    elif not results.has("racecheck"):
        with results.attempt("racecheck"), tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-m", "gpu_parts", "waiting", "--tiny", "--out", folder]
            command = [program, "--tool", "racecheck", "--error-exitcode", "9", *words]
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
            last = (ended.stdout + ended.stderr).strip().splitlines()[-1:] or [""]
            line = f"exit status {ended.returncode}: {last[0]}"
            results.add("racecheck", line, {"status": ended.returncode} | ({"error": line} if ended.returncode else {}))
