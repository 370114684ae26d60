"""Published figures of the nine tasks, as printed in the paper's tables."""

from __future__ import annotations

from mtnlg_eval.tasks.published import SHOTS, TASKS


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
