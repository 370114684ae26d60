"""Console tables of scores."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import rich.table
from rich.box import SIMPLE_HEAD

from mtnlg_eval.markup import DASH, value
from mtnlg_eval.tasks.published import title_of
from mtnlg_model.console import output

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


MAX_WIDE_COLUMNS = 3
"""Number of columns with intervals beside the scores that fit a terminal of 80 characters."""


class Table(NamedTuple):
    """A table of texts for the console and the page; ``words`` wraps and left-aligns the columns after the first."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False


def print_table(table: Table, title: str = "", notes: Sequence[str] = (), *, tight: bool = False) -> None:
    """Print a table with a title above and notes below; a ``tight`` table folds its heads to fit a terminal."""
    padding = 0 if tight else (0, int(table.words), 0, 1)
    made = rich.table.Table(
        box=SIMPLE_HEAD, show_edge=not tight, padding=padding, title=title or None, title_justify="left"
    )
    for n, head in enumerate(table.head):
        justify: Literal["left", "right"] = "right" if n and not table.words else "left"
        whole = not n or not (table.words or tight)
        made.add_column(head, justify=justify, no_wrap=whole, overflow="fold", min_width=5 if tight else None)
    for row in table.rows:
        made.add_row(*row)
    console = output()
    console.print(made)
    for note in notes:
        console.print(f"  {note}", style="dim")


def print_scores(summary: Mapping[str, Any]) -> None:
    """Print the scores with their intervals, and below them the differences from the paper's setting."""
    tasks = summary["tasks"]
    shots = list(dict.fromkeys(count for scores in tasks.values() for count in scores))
    brief = len(shots) > MAX_WIDE_COLUMNS
    lines = {title_of(task): scores for task, scores in tasks.items()}
    lines |= {f"mean of {group}": scores for group, scores in summary.get("groups", {}).items()}
    rows = []
    for title, scores in lines.items():
        metric = next(iter(scores.values()))["metric"]
        cells = (_cell(scores[count], brief) if count in scores else "" for count in shots)
        size = str(max(score["rows"] for score in scores.values()))
        rows.append([title + ("" if metric == "acc" else f", {metric}"), *cells, size])
    gaps = [gap["task"] for gap in summary["not_run"] if gap["task"] not in tasks]
    rows += [[title_of(task), *("not run" for _ in shots), ""] for task in gaps]
    differs = {task: {asked: score["differs"] for asked, score in scores.items()} for task, scores in tasks.items()}
    notes = [f"{title_of(task)}: {words}" for task, texts in differences_by_task(differs).items() for words in texts]
    heads = [count if brief else f"{count}-shot" for count in shots]
    legend = f"{summary.get('name', 'scores')}, shares in percent with 95 % interval; ±: error between draws of shots"
    print_table(Table(["task", *heads, "rows"], rows), "", [legend, *notes])


def print_checkpoints(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Print one table of these checkpoints' scores: a row per number of shots and checkpoint, a column per task."""
    scores = {
        (name, task, asked): _cell(score, brief=True)
        for name, summary in summaries.items()
        for task, by_shots in summary["tasks"].items()
        for asked, score in by_shots.items()
    }
    names, tasks, shots = (list(dict.fromkeys(key[n] for key in scores)) for n in range(3))
    rows = [
        [name, asked, *(scores.get((name, task, asked), DASH) for task in tasks)]
        for asked, name in product(shots, names)
    ]
    notes = ["shares in percent with 95 % interval"]
    print_table(Table(["checkpoint", "shots", *map(title_of, tasks)], rows), "", notes, tight=True)


def differences_by_task(differs: Mapping[str, Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Lines on differences from the paper's setting, by task; those of all tasks are under "Not the paper's setting".

    ``differs`` has the texts per task and number of shots. A task's first line has those of all its numbers of shots.
    """
    shared = _shared([words for by_shots in differs.values() for words in by_shots.values()])
    lines = {"Not the paper's setting": ["; ".join(shared)]} if shared else {}
    for task, by_shots in differs.items():
        common = [word for word in _shared(list(by_shots.values())) if word not in shared]
        lines[task] = ["; ".join(common)] if common else []
        for shots, words in by_shots.items():
            if distinct := [word for word in words if word not in shared and word not in common]:
                lines[task].append(f"{shots}-shot: {'; '.join(distinct)}")
    return lines


def _shared(lists: Sequence[Sequence[str]]) -> list[str]:
    """The texts that all of these lists have, in the order of the first list."""
    return [word for word in lists[0] if all(word in words for words in lists)] if lists else []


def _cell(score: Mapping[str, Any], brief: bool) -> str:
    """The score with its interval and its error between draws, below each other if ``brief``."""
    share, draws = score["is_share"], score.get("between_draws")
    bounds = DASH.join(f"{100 * bound:.0f}" if share else value(bound, share) for bound in score["interval_95"])
    parts = [value(score["value"], share), bounds if brief else f"({bounds})"]
    parts += [] if draws is None else [f"± {value(draws, share)}"]
    return ("\n" if brief else " ").join(parts)
