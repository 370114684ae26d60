"""What a watchdog tells the others: its heartbeat, and the phase that a stack is in."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from mtnlg_parallel.training.flight_recorder import GroupTrace, Trace
from mtnlg_parallel.training.watchdog import PHASES, Heartbeat, phase_of


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        b"[" * 60000,
        b'[1, 2, "", 1e999, "data", [[["a", 3, 1, 1, 1]], []]]',
        b"1" * 5000,
        b'[1, 2, "\\u001b[2J", 1.0, "data", null]',
        b'[1, 2, "", 1.0, "a stranger\'s words", null]',
        b'[1, 2, "", NaN, "data", null]',
        b'[1, 2, "", 1.0, ["data"], null]',
        b'[1, 2, "", 1.0, "data", [[["nccl/0", "tp", 5, 4, "all reduce"]], []]]',
        b'[1, 2, "", 1.0, "data", [[["nccl/0", "words", 5, 4, "all_reduce"]], []]]',
    ],
)
def test_what_is_not_a_heartbeat_is_none(text: bytes) -> None:
    assert Heartbeat.parse(text) is None


def test_a_heartbeat_comes_back_as_it_was_written() -> None:
    trace = Trace((GroupTrace("nccl/0", "tp", 5, 4, "all_reduce"), GroupTrace("nccl/1", (0, 9), 2, 0, "")), (3,))
    heartbeat = Heartbeat(1, 2, "validation", 3.5, "data", trace)
    assert Heartbeat.parse(json.dumps(heartbeat).encode()) == heartbeat


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
def test_every_file_of_a_phase_exists_so_that_a_moved_module_is_noticed(file: str) -> None:
    package, _, path = file.partition("/")
    spec = find_spec(package)
    assert spec
    assert [*Path(next(iter(spec.submodule_search_locations or ()))).glob(f"{path}*")] or not path
