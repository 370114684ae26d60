"""Published accuracies of MT-NLG and its peers on the nine tasks, as printed in the paper's tables 2 to 6.

Smith et al. 2022, arXiv 2201.11990v3, transcribed from images of the tables (paper.md 5.1). All figures are percent.
K, the number of few-shot examples, is GPT-3's; MT-NLG reused it without a search (paper.md 5.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Shots = Literal["0", "1", "few"]
Model = Literal["MT-NLG", "GPT-3", "Gopher", "GPT-2"]

SHOTS: tuple[Shots, ...] = ("0", "1", "few")


class Figures(NamedTuple):
    """Accuracy in percent at 0, 1 and K shots; None where the table prints a dash."""

    zero: float | None
    one: float | None
    few: float | None

    def at(self, shots: Shots) -> float | None:
        """Accuracy at this number of shots."""
        return self[SHOTS.index(shots)]


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
    figures: dict[Model, Figures]
    footnotes: frozenset[tuple[Model, Shots]] = frozenset()
    """Figures that the paper prints with a footnote."""


TASKS: tuple[Task, ...] = (
    Task(
        name="lambada",
        title="LAMBADA",  # table 2
        few=15,
        rows=5153,
        split="test",
        chance=None,
        figures={
            "MT-NLG": Figures(76.56, 73.06, 87.15),
            "GPT-3": Figures(76.20, 72.50, 86.40),
            "Gopher": Figures(74.50, None, None),
        },
    ),
    Task(
        name="race_h",
        title="RACE-h",  # table 3
        few=10,
        rows=3498,
        split="test",
        chance=25.0,
        figures={
            "MT-NLG": Figures(47.94, 48.42, 47.94),
            "GPT-3": Figures(45.50, 45.90, 46.80),
            "Gopher": Figures(None, None, 71.60),
        },
        footnotes=frozenset({("Gopher", "few")}),
    ),
    Task(
        name="boolq",
        title="BoolQ",  # table 3
        few=32,
        rows=3270,
        split="validation",
        chance=50.0,
        figures={"MT-NLG": Figures(78.20, 82.51, 84.83), "GPT-3": Figures(60.50, 76.70, 77.50)},
    ),
    Task(
        name="winogrande",
        title="WinoGrande",  # table 4
        few=50,
        rows=1267,
        split="validation",
        chance=50.0,
        figures={
            "MT-NLG": Figures(73.01, 73.72, 78.85),
            "GPT-3": Figures(70.20, 73.20, 77.70),
            "Gopher": Figures(70.20, None, None),
        },
    ),
    Task(
        name="hellaswag",
        title="HellaSwag",  # table 4
        few=20,
        rows=10042,
        split="validation",
        chance=25.0,
        figures={
            "MT-NLG": Figures(80.24, 80.20, 82.42),
            "GPT-3": Figures(78.90, 78.10, 79.30),
            "Gopher": Figures(79.20, None, None),
        },
    ),
    Task(
        name="piqa",
        title="PiQA",  # table 4
        few=50,
        rows=1838,
        split="validation",
        chance=50.0,
        figures={
            "MT-NLG": Figures(81.99, 80.96, 83.19),
            "GPT-3": Figures(81.00, 80.50, 82.30),
            "Gopher": Figures(81.80, None, None),
        },
    ),
    Task(
        name="anli_r2",
        title="ANLI R2",  # table 5
        few=50,
        rows=1000,
        split="test",
        chance=100 / 3,
        figures={"MT-NLG": Figures(36.60, 39.70, 39.60), "GPT-3": Figures(35.40, 33.90, 34.00)},
    ),
    Task(
        name="hans",
        title="HANS",  # table 5
        few=32,
        rows=30000,
        split="validation",
        chance=50.0,
        figures={"MT-NLG": Figures(51.61, 60.01, 73.16), "GPT-2": Figures(54.79, 49.92, 49.79)},
    ),
    Task(
        name="wic",
        title="WiC",  # table 6
        few=32,
        rows=638,
        split="validation",
        chance=50.0,
        figures={"MT-NLG": Figures(48.59, 51.25, 58.46), "GPT-3": Figures(0.00, 48.60, 55.30)},
        footnotes=frozenset({("GPT-3", "0")}),
    ),
)
"""The paper's nine tasks, in the order of its tables."""

TASKS_BY_NAME = {task.name: task for task in TASKS}


def title_of(task: str) -> str:
    """Name of a task in the paper; of one's own its name."""
    return TASKS_BY_NAME[task].title if task in TASKS_BY_NAME else task
