"""Published accuracies of MT-NLG and its peers on the nine tasks, as printed in the paper's tables 2 to 6.

Smith et al. 2022, arXiv 2201.11990v3, transcribed from images of the tables (paper.md 5.1) into published.json, all in
percent: LAMBADA from table 2, RACE-h and BoolQ from 3, WinoGrande, HellaSwag and PiQA from 4, ANLI and HANS from 5,
WiC from 6.
K, the number of few-shot examples, is GPT-3's; MT-NLG reused it without a search (paper.md 5.2).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files

SHOTS = {"0": "zero", "1": "one", "few": "few"}
"""Numbers of shots in the paper, and their names in published.json."""


@dataclass(frozen=True)
class Task:
    """One of the nine tasks and its published figures."""

    name: str
    """Name on the command line."""
    title: str
    """Name in the paper."""
    few: int
    """K: examples in a few-shot prompt."""
    rows: int
    """Rows in the scored split, as its authors published it; questions for RACE-h."""
    split: str
    """The split that the paper scores."""
    chance: float | None
    """Accuracy of random guessing in percent; None for LAMBADA, which has no choices."""
    figures: dict[str, dict[str, float | None]]
    """Accuracy of each model in percent by the name of the number of shots; None where the table prints a dash."""
    footnotes: list[list[str]]
    """Figures that the paper prints with a footnote."""

    def figure(self, model: str, shots: str) -> float | None:
        """Accuracy of a model in percent at this number of shots; None if the paper prints none."""
        return self.figures.get(model, {}).get(SHOTS.get(shots, ""))


ROWS = json.loads(files(__package__).joinpath("published.json").read_text(encoding="utf-8"))
TASKS = tuple(Task(**row) for row in ROWS)
"""The paper's nine tasks, in the order of its tables."""

TASKS_BY_NAME = {task.name: task for task in TASKS}


FORMS = re.compile("_?(continuation|cloze)(_yaml)?")
"""Part of lm-eval's task names that marks the cloze form, in contrast to the multiple-choice form."""


def task_order(task: str) -> tuple[int, str, str]:
    """Sort key: the paper's order, then by name, with the cloze form of a task after its multiple-choice form."""
    return [*TASKS_BY_NAME, task].index(task), FORMS.sub("", task), task


def title_of(task: str) -> str:
    """Name of a task in the paper; the given name of any other task."""
    return TASKS_BY_NAME[task].title if task in TASKS_BY_NAME else task
