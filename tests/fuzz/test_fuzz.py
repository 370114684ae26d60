"""Every target holds on the corpus and some thousand inputs made from it; ``nox -s fuzz`` goes on from there."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("harness.py")
CORPUS = Path(__file__).with_name("corpus")
TARGETS = sorted(folder.name for folder in CORPUS.iterdir())
INPUTS = 2000

pytestmark = pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed: Linux only")


def run(target: str, out: Path, inputs: int, *, harness: Path = HARNESS) -> dict[str, object]:
    words = [sys.executable, str(harness), target, "--inputs", str(inputs), "--seed", "1", "--out", str(out)]
    subprocess.run(words, check=False, timeout=300)
    found: dict[str, object] = json.loads((out / "result.json").read_text(encoding="utf-8"))["targets"][target]
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_holds(target: str, tmp_path: Path) -> None:
    found = run(target, tmp_path, INPUTS)
    assert (found["inputs"], found["crashes"]) == (INPUTS, 0), (found, sorted((tmp_path / target).iterdir()))


BROKEN = """
import os, time
def fails(data: bytes) -> None:
    if b"a" in data:
        raise ValueError("a")
    if b"b" in data:
        os.abort()
TARGETS = {
    "fails": fails,
}
"""


def test_harness_keeps_crashing_inputs_and_goes_on(tmp_path: Path) -> None:
    harness = tmp_path / "fuzz" / "harness.py"
    (tmp_path / "fuzz/targets").mkdir(parents=True)
    (tmp_path / "fuzz/corpus/fails").mkdir(parents=True)
    (tmp_path / "fuzz/corpus/fails/seed").write_bytes(b"AB")
    harness.write_text(HARNESS.read_text(encoding="utf-8").replace("MAX_CRASHES = 20", "MAX_CRASHES = 3"))
    (tmp_path / "fuzz/targets/broken.py").write_text(BROKEN)
    found = run("fails", tmp_path / "out", 100_000, harness=harness)
    assert found["crashes"] == 3
    assert "ValueError: a" in str(found["of_kind"])
    kept = [path.read_bytes() for path in (tmp_path / "out/fails").glob("crash-*")]
    assert kept
    assert all(b"a" in data or b"b" in data for data in kept)
