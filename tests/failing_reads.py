"""Fail each operation of every reader with EIO, below Python; prints the errors that name no file, as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from test_openers import CASES, place, read
from trouble import NEVER, begin, preload

OPTIONAL = {"failure", "scores"}
"""Files that a reader does without."""


def wrong(name: str) -> list[str]:
    """What a reader makes of a failed operation, unless it is an error that names the file."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        case, path = CASES[name], place(CASES[name], Path(folder))
        plain = read(case, path)  # which also makes what is beside it
        operation, reached = 0, True
        while reached:
            operation += 1
            library = begin(path, "error", NEVER, operation, 1)
            try:
                result = read(case, path)
            except Exception as error:  # noqa: BLE001  (shown)
                result = f"{type(error).__name__}: {error}"
            reached = library.counted() >= operation
            begin(Path("/none"), "none", NEVER, NEVER, 1)
            if reached and not result.isidentifier() and not (name in OPTIONAL and result == plain):
                found.append(f"operation {operation}: {result[:200]}")
    return found


if __name__ == "__main__":
    if "LD_PRELOAD" in os.environ:
        sys.stdout.write(json.dumps({name: found for name in CASES if (found := wrong(name))}))
    else:
        sys.exit(preload())
