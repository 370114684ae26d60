"""What a watchdog tells the others: its heartbeat, and the phase that a stack is in."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mtnlg_parallel.training.watchdog import PHASES, phase_of


@pytest.mark.parametrize(
    ("files", "phase"),
    [
        (["mtnlg_parallel/training/loop.py", "deepspeed/runtime/pipe/engine.py", "mtnlg_model/decoder.py"], "forward"),
        (["mtnlg_parallel/model/stage_modules.py"], "forward"),
        (["deepspeed/runtime/pipe/engine.py", "torch/autograd/graph.py"], "backward"),
        (
            ["torch/autograd/graph.py", "mtnlg_parallel/model/sequence_parallel.py", "torch/distributed/rpc.py"],
            "communication",
        ),
        (["mtnlg_parallel/engine/pipeline_engine.py", "mtnlg_parallel/waiting.py"], "communication"),
        (["deepspeed/runtime/pipe/engine.py", "mtnlg_parallel/training/samples.py", "queue.py"], "data"),
        (["mtnlg_parallel/training/samples.py", "mtnlg_data/tokens/store.py"], "data"),
        (["mtnlg_parallel/training/checkpointing.py", "torch/distributed/distributed_c10d.py"], "communication"),
    ],
)
def test_the_innermost_known_file_of_a_stack_names_the_phase(files: list[str], phase: str) -> None:
    frames: list[Any] = []

    def reach(rest: list[str]) -> None:
        if not rest:
            frames.append(sys._getframe(1))
            return
        call = compile("reach(rest)", f"/somewhere/{rest[0]}", "eval")
        eval(call, {"reach": reach, "rest": rest[1:]})  # noqa: S307  (a frame of a file of this name)

    reach(files)
    assert phase_of(frames[0]) == phase


@pytest.mark.parametrize("file", [file for _, files in PHASES for file in files])
def test_every_file_of_a_phase_exists(file: str) -> None:
    package, _, path = file.partition("/")
    spec = find_spec(package)
    assert spec
    assert [*Path(next(iter(spec.submodule_search_locations or ()))).glob(f"{path}*")] or not path


def test_only_known_functions_wait_for_communication() -> None:
    spec = find_spec("mtnlg_parallel")
    assert spec
    root = Path(next(iter(spec.submodule_search_locations or ())))
    files = [
        root / "inference.py",
        *(path for room in ("engine", "model", "training") for path in root.glob(f"{room}/**/*.py")),
    ]
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "wait"
        and not node.args
    ]
    assert not found, "call waiting.wait_for"
