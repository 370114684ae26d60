"""The nine tasks' prompts, byte for byte, as lm-eval sends them.

The goldens were read by a person; ``UPDATE_GOLDENS=1 pytest test_prompts.py`` writes them anew, to be read again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mtnlg_eval.tasks.paper_task import task_manager
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


def test_every_task_has_its_yaml_and_the_split_that_the_paper_scores() -> None:
    index = task_manager(None).task_index
    assert set(index) == set(ROWS) == set(TASKS_BY_NAME)
    for name, entry in index.items():
        assert ("test_split" in entry.cfg) == (TASKS_BY_NAME[name].split == "test")


def test_lambada_is_plain_at_0_shots_and_cloze_from_one_on(load_task: Load) -> None:
    rows = len(load_task("lambada").eval_docs)
    assert "____" not in rendered(load_task, "lambada", "0")
    assert rendered(load_task, "lambada", "1").count(" ____. ->") == 2 * rows


def test_race_scores_every_question_and_fills_in_the_earlier_answers(load_task: Load) -> None:
    task = load_task("race_h")
    assert [doc["id"] for doc in task.eval_docs] == ["high1.txt-1", "high1.txt-2", "high1.txt-3", "high2.txt-1"]
    second = str(task.doc_to_text(task.eval_docs[1]))
    assert "Question: What does the school sell?\nAnswer: Honey.\nQuestion:" in second
    assert second.endswith("\nAnswer:")
