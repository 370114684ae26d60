"""The page of a run: what its templates need in addition to the contents of the files.

    page.html      the frame, the headline figures, data, training and its curves (charts.py), a chapter for each study
    scores.html    how to read the scores, their table, runs compared, what every result depends on
    answers.html   the browser of answers, which answers.js fills

Prompts and answers are untrusted text. The script puts them on the page as text, never as markup, and the page's
policy admits only this script, by its hash, and the scripts that it adds: the files of samples.py.
"""

from __future__ import annotations

import base64
import hashlib
from functools import partial
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mtnlg_eval.markup import percent, render
from mtnlg_eval.results.compare import compared, group_means
from mtnlg_eval.results.statistics import Z
from mtnlg_eval.table import differences_by_task
from mtnlg_eval.tasks.published import FORMS, TASKS_BY_NAME, title_of

from .charts import curves, trends
from .samples import FOLDER, MAX_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mtnlg_eval.results.result import Result

    from .run_files import Evaluation, Run

MODELS = ("MT-NLG", "GPT-3", "GPT-2", "Gopher")
LIKELIHOODS = {"log_likelihood": "log P(right)", "bits_per_byte": "bits/byte"}
OWN_ROWS = ("quickstart", "rows")
MTNLG_PARAMETERS = 529_600_819_200  # paper.md 1


def page(run: Run, versions: Mapping[str, str]) -> str:
    """The report as one HTML page, which loads no files except answers in report/. Equal runs give equal pages."""
    script = Markup(files(__package__).joinpath("answers.js").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scores = _scores(run.evaluation) if run.evaluation else None
    return render(
        "page.html",
        run=run,
        versions=versions,
        script=script,
        digest=digest,
        curves=curves(run),
        scores=scores,
        percent=percent,
        answers=_answers(run.evaluation) if run.evaluation else [],
        folder=FOLDER,
        most=MAX_CHARACTERS,
    )


def _scores(evaluation: Evaluation) -> dict[str, Any]:
    """What scores.html needs."""
    main, rows = evaluation.main, compared(evaluation.runs)
    cells = rows[0]["tasks"]
    every = [cell for by_shots in cells.values() for cell in by_shots.values()]
    differs = differences_by_task(
        {task: {asked: cell["differs"] for asked, cell in by_shots.items()} for task, by_shots in cells.items()}
    )
    published = [(TASKS_BY_NAME[task], asked) for task, asked in main.cells if task in TASKS_BY_NAME]
    return {
        "rows": _rows(evaluation),
        "times": float(f"{MTNLG_PARAMETERS / max(1, main.model.parameters):.1e}"),
        "cells": cells,
        "differs": differs,
        "general": {head: texts for head, texts in differs.items() if head not in cells},
        "models": [
            model for model in MODELS if any(task.figure(model, asked) is not None for task, asked in published)
        ],
        "likelihoods": {
            name: words for name, words in LIKELIHOODS.items() if any(name in cell["metrics"] for cell in every)
        },
        "fewer": any(cell["shots_shown"] < cell["shots"] for cell in every),
        "cloze": {FORMS.sub("", task): task for task in cells if FORMS.search(task) and FORMS.sub("", task) in cells},
        "published": TASKS_BY_NAME,
        "title": title_of,
        "groups": group_means(main.results),
        "compared": rows,
        "shared": [key for key in main.cells if any(key in run.cells for run in evaluation.runs[1:])],
        "link": partial(_link, evaluation),
        "trends": trends(evaluation),
        "z": Z,
    }


def _rows(evaluation: Evaluation) -> tuple[str, str]:
    """Folder of the paper's tasks' rows, and their origin: "ours", "theirs" (published in full) or "others"."""
    results = [result for result in evaluation.main.results if result.task in TASKS_BY_NAME]
    if not results:
        return "", ""
    path = PurePath(results[0].rows.source)
    place = path.relative_to(path.anchor).parts[-3:]
    whole = all(result.rows.count == TASKS_BY_NAME[result.task].rows for result in results)
    return "/".join(place), "ours" if place[-2:] == OWN_ROWS else "theirs" if whole else "others"


def _answers(evaluation: Evaluation) -> list[dict[str, str]]:
    """The results with samples, by task, for the reader to choose from. Those with equal ``rows`` can be compared."""
    order = list(dict.fromkeys(result.task for result in evaluation.results))
    index = [
        {
            "name": result.name,
            "task": result.task,
            "title": title_of(result.task),
            "label": _label(result, run.label),
            "shots": result.shots.asked,
            "rows": result.rows.digest,
        }
        for run in evaluation.runs
        for result in run.results
        if result.name in evaluation.samples
    ]
    return sorted(index, key=lambda entry: order.index(entry["task"]))


def _label(result: Result, run: str) -> str:
    """A label that distinguishes a result from the others of its task."""
    shots = result.shots
    seed = "" if shots.seed is None else f", seed {shots.seed}"
    count = f"{shots.asked} shot{'' if shots.asked == '1' else 's'}"
    score = f"{100 * result.score:.1f} %" if result.is_share else f"{result.metric} {result.score:.4g}"
    return f"{run}, {count}{seed}: {score} of {result.rows.count:,} rows"


def _link(evaluation: Evaluation, task: str, names: Sequence[str], show: str) -> str:
    """URL fragment that shows the answers to a task, compared with those of a second result; "" without answers."""
    if not evaluation.samples.keys() >= set(names):
        return ""
    return "&".join((f"#task={task}", *map("=".join, zip(("of", "with"), names, strict=False)), f"show={show}"))
