"""A target for each reader of SECURITY.md's table, as `test_openers.CASES` calls it."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path

from harness import scratch

sys.path.append(str(Path(__file__).parents[2]))

from test_openers import CASES, place, read


def reader(name: str, data: bytes) -> None:
    """Read these bytes as the reader's file: a result, or one line that names the file."""
    folder = scratch("reader")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = place(CASES[name], folder)
    path.write_bytes(data)
    read(CASES[name], path)


TARGETS = {name: partial(reader, name) for name in CASES}
SEEDS = {name: case.content for name, case in CASES.items()}
