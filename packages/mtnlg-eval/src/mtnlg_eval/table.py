"""Console tables of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import rich.table
from rich.box import SIMPLE_HEAD

from mtnlg_eval.markup import DASH, value
from mtnlg_eval.tasks.published import title_of
from mtnlg_model.console import output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_WIDE_COLUMNS = 3
"""Columns with standard error and shots that fit a terminal of 80 characters."""

MOST_DIGITS = 5
"""Of the number of a task's rows, HANS' 30,000."""


GROUP = {"is_share": True, "between_draws": None, "metric": "acc"}


def print_scores(summary: Mapping[str, Any]) -> None:
    """Print the scores with their intervals, and below them what differs from the paper's setting."""
    shots = list(dict.fromkeys(count for scores in summary["tasks"].values() for count in scores))
    brief = len(shots) > MAX_WIDE_COLUMNS
    table = rich.table.Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("task", no_wrap=True)
    for count in shots:
        table.add_column(count if brief else f"{count}-shot", justify="right", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True, min_width=MOST_DIGITS)
    lines = {title_of(task): scores for task, scores in summary["tasks"].items()}
    lines |= {
        f"mean of {group}": {count: score | GROUP for count, score in scores.items()}
        for group, scores in summary.get("groups", {}).items()
    }
    for title, scores in lines.items():
        cells = (_cell(scores[count], brief) if count in scores else "" for count in shots)
        metric = next(iter(scores.values()))["metric"]
        table.add_row(
            title + ("" if metric == "acc" else f", {metric}"),
            *cells,
            str(max(score["rows"] for score in scores.values())),
        )
    for gap in summary["not_run"]:
        if gap["task"] not in summary["tasks"]:
            table.add_row(title_of(gap["task"]), *("not run" for _ in shots), "")
    console = output()
    console.print(table)
    legend = f"{summary.get('name', 'scores')}, shares in percent" + (
        "" if brief else " (95 % interval; ± error between draws of shots)"
    )
    console.print(f"  {legend}", style="dim")
    differs = {
        task: {shots: score["differs"] for shots, score in scores.items()} for task, scores in summary["tasks"].items()
    }
    for task, texts in differences_by_task(differs).items():
        for words in texts:
            console.print(f"  {title_of(task)}: {words}", style="dim")


def differences_by_task(differs: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Lines on what differs from the paper's setting, by task; what all tasks share is under "Not the paper's setting".

    ``differs`` has the words of each task and number of shots. A task's first line is what its numbers of shots share.
    """
    shared = _shared([words for by_shots in differs.values() for words in by_shots.values()])
    lines = {"Not the paper's setting": ["; ".join(shared)]} if shared else {}
    for task, by_shots in differs.items():
        common = [word for word in _shared(list(by_shots.values())) if word not in shared]
        lines[task] = ["; ".join(common)] if common else []
        for shots, words in by_shots.items():
            if own := [word for word in words if word not in shared and word not in common]:
                lines[task].append(f"{shots}-shot: {'; '.join(own)}")
    return lines


def _shared(lists: Sequence[Sequence[str]]) -> list[str]:
    """The words that all of these lists have, in the order of the first."""
    return [word for word in lists[0] if all(word in words for words in lists)] if lists else []


def _cell(score: Mapping[str, Any], brief: bool) -> str:
    text, share = value(score["value"], score["is_share"]), score["is_share"]
    if brief:
        return text
    low, high = (f"{100 * bound:.0f}" if share else value(bound, share) for bound in score["interval_95"])
    draws = "" if score["between_draws"] is None else f" ± {value(score['between_draws'], share)}"
    return f"{text} ({low}{DASH}{high}){draws}"


class Table(NamedTuple):
    """A table of texts for the console and the page; ``words`` wraps and left-aligns what is beside the heads."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False


def print_table(table: Table, title: str = "") -> None:
    """Print a table below its title."""
    made = rich.table.Table(box=SIMPLE_HEAD, padding=(0, 1), title=title or None, title_justify="left")
    first, *others = table.head
    made.add_column(first, no_wrap=True)
    for column in others:
        made.add_column(column, justify="left" if table.words else "right", no_wrap=not table.words)
    for row in table.rows:
        made.add_row(*row)
    output().print(made)
