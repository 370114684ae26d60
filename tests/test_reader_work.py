"""Readers below a library that counts or fails: work is at most linear in the file's size, and EIO names the file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import counted_work
from test_openers import CASES

if sys.platform != "linux" or shutil.which("cc") is None:
    pytest.skip("counts bytes by a library that it compiles for Linux with cc", allow_module_level=True)

MAX_RATIO = 4.8
"""Of the work that four times the size adds; buffers that double add up to a fifth. Quadratic work has 16."""

NOISE = (500, 1 << 20)
"""Calls and bytes by which work differs for other reasons, such as buffers of a fixed size."""

Counts = dict[str, list[list[list[int]]]]


@pytest.fixture(scope="module")
def counts() -> Counts:
    found: Counts = printed("counted_work.py")
    return found


def printed(script: str) -> Any:  # noqa: ANN401  (JSON)
    words = [sys.executable, str(Path(__file__).with_name(script))]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return json.loads(ended.stdout)


def test_every_reader_is_counted() -> None:
    assert CASES.keys() == counted_work.SHAPES.keys()


@pytest.mark.parametrize("name", CASES)
def test_work_is_at_most_linear(counts: Counts, name: str) -> None:
    for shape, (small, middle, large) in enumerate(counts[name]):
        for a, b, c, noise in zip(small, middle, large, NOISE, strict=True):
            assert c - b <= MAX_RATIO * max(b - a, noise), (shape, small, middle, large)


def test_error_of_a_read_names_its_file() -> None:
    assert printed("failing_reads.py") == {}
