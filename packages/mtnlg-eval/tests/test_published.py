"""Published figures of the nine tasks, as printed in the paper's tables."""

from __future__ import annotations

import pytest

from mtnlg_eval.tasks.published import SHOTS, TASKS, TASKS_BY_NAME, Model, Shots


@pytest.mark.parametrize(
    ("task", "model", "shots", "figure"),
    [
        ("lambada", "MT-NLG", "few", 87.15),
        ("lambada", "Gopher", "1", None),
        ("race_h", "GPT-3", "1", 45.90),
        ("boolq", "MT-NLG", "0", 78.20),
        ("winogrande", "GPT-3", "few", 77.70),
        ("hellaswag", "MT-NLG", "1", 80.20),
        ("piqa", "Gopher", "0", 81.80),
        ("anli_r2", "MT-NLG", "1", 39.70),
        ("hans", "GPT-2", "0", 54.79),
        ("hans", "GPT-3", "0", None),
        ("wic", "GPT-3", "0", 0.00),
    ],
)
def test_figures_are_those_of_the_tables(task: str, model: Model, shots: Shots, figure: float | None) -> None:
    figures = TASKS_BY_NAME[task].figures
    assert (figures[model].at(shots) if model in figures else None) == figure


def test_nine_tasks_have_all_figures_of_mt_nlg() -> None:
    assert len({task.name for task in TASKS}) == len(TASKS) == 9
    for task in TASKS:
        assert all(task.figures["MT-NLG"].at(shots) is not None for shots in SHOTS)
        percents = [p for figures in task.figures.values() for p in figures if p is not None]
        assert all(0 <= percent <= 100 for percent in percents)


def test_no_figure_is_mixed_up() -> None:
    """MT-NLG leads GPT-3 in every column: a figure in the wrong row or column would most likely break that."""
    for task in TASKS:
        if theirs := task.figures.get("GPT-3"):
            assert all(
                ours > other for ours, other in zip(task.figures["MT-NLG"], theirs, strict=True) if ours and other
            )
