"""The nine tasks' prompts, byte for byte, as lm-eval sends them.

The goldens were read by a person; ``UPDATE_GOLDENS=1 pytest test_prompts.py`` writes them anew, to be read again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_eval.tasks.rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_eval.tasks.paper_task import PaperTask

    Load = Callable[..., PaperTask]

GOLDENS = Path(__file__).parent / "goldens"
SHOTS = {"paper": ("0", "1", "few"), "gpt3": ("0", "1")}


def rendered(load_task: Load, name: str, shots: str, style: str = "paper") -> str:
    task = load_task(name, TASKS_BY_NAME[name].few if shots == "few" else int(shots), style=style)
    task.build_all_requests()
    return "".join(f"--- {request.doc['id']}\n{request.args[0]}⟪{request.args[1]}⟫\n" for request in task.instances)


@pytest.mark.parametrize(("style", "shots"), [(style, n) for style, numbers in SHOTS.items() for n in numbers])
@pytest.mark.parametrize("name", ROWS)
def test_prompts_equal_their_goldens_to_the_byte(name: str, style: str, shots: str, load_task: Load) -> None:
    golden = GOLDENS / style / f"{name}_{shots}.txt"
    prompts = rendered(load_task, name, shots, style).encode()
    if os.environ.get("UPDATE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_bytes(prompts)
    assert prompts == golden.read_bytes()
