"""The page's browser of answers: its controls, the list of what it can show, and the one script that the page runs.

Prompts and answers are texts of strangers. The script puts them on the page as text and never as markup, and the page's
policy admits this script alone, by its hash, and what it adds: the files of samples.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from markupsafe import Markup

from mtnlg_eval.report.blocks import Section, asset
from mtnlg_eval.report.samples import FOLDER, MAX_CHARACTERS
from mtnlg_eval.results.compare import labels
from mtnlg_eval.tasks.published import title_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_eval.report.run_files import Evaluation
    from mtnlg_eval.results.compare import Cell
    from mtnlg_eval.results.result import Result

CONTROLS = (
    ("task", "Task", '<select id="answers-task"></select>'),
    ("of", "Answers of", '<select id="answers-of"></select>'),
    ("with", "Compared with", '<select id="answers-with"></select>'),
    ("find", "Find in the row", '<input type="search" id="answers-find">'),
)


def policy() -> str:
    """The page's Content-Security-Policy: nothing is loaded or run but styles, our script and the scripts it adds."""
    digest = base64.b64encode(hashlib.sha256(asset("answers.js").encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}' 'strict-dynamic'; "
        "base-uri 'none'; form-action 'none'"
    )


def section(evaluation: Evaluation | None) -> Section | None:
    """Controls that the script fills, and the results to choose from as JSON; None if there are no answers."""
    if evaluation is None or not (index := _index(evaluation)):
        return None
    controls = "\n".join(f'<label for="answers-{name}">{title} {control}</label>' for name, title, control in CONTROLS)
    content = (
        "<p>Every row that was scored, with the right answer. A row opens to its prompt and its choices; the one with "
        "the highest score is chosen.</p>\n"
        "<noscript><p>It takes JavaScript to show them; they are also in <code>samples/</code>.</p></noscript>\n"
        f'<div id="answers-browser" hidden>\n<div class="controls">\n{controls}\n</div>\n'
        '<div id="answers-show" class="choices" role="group" aria-label="Rows to show"></div>\n'
        '<p id="answers-state" class="quiet" role="status"></p>\n<div id="answers-rows"></div>\n'
        '<div id="answers-turn" class="choices"></div>\n'
        f'<p class="quiet"><small>Loaded from <code>{FOLDER}/</code> beside this page, a file per result with at most '
        f"{MAX_CHARACTERS // 1_000_000} million characters; all is in <code>samples/</code>.</small></p>\n</div>\n"
        f'<script type="application/json" id="answers-index">{_json(index)}</script>'
    )
    return Section("answers", "Answers", [Markup(content)])


def _json(value: object) -> str:
    """JSON that cannot end its script element: ASCII, without <, > and &."""
    text = json.dumps(value)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _index(evaluation: Evaluation) -> list[dict[str, str]]:
    """The results with samples, by task: what a reader chooses from. Those with equal ``rows`` can be compared."""
    order = {task: number for number, task in enumerate(dict.fromkeys(r.task for r in evaluation.results))}
    index = [
        {
            "name": result.name,
            "task": result.task,
            "title": title_of(result.task),
            "label": _label(result, label),
            "shots": result.shots.asked,
            "rows": result.rows.digest,
        }
        for run, label in zip(evaluation.runs, labels(evaluation.runs), strict=True)
        for result in run.results
        if result.name in evaluation.samples
    ]
    return sorted(index, key=lambda entry: order[entry["task"]])


def _label(result: Result, run: str) -> str:
    """What tells a result from the others of its task."""
    shots = result.shots
    seed = "" if shots.seed is None else f", seed {shots.seed}"
    count = f"{shots.asked} shot{'' if shots.asked == '1' else 's'}"
    score = f"{100 * result.score:.1f} %" if result.is_share else f"{result.metric} {result.score:.4g}"
    return f"{run}, {count}{seed}: {score} of {result.rows.count:,} rows"


def linked(text: str, evaluation: Evaluation, cells: Sequence[Cell], show: str) -> Markup:
    """The text as a link to the rows of this cell's first result, beside another's if there are two; or the text."""
    names = [cell.first.name for cell in cells]
    if not evaluation.samples.keys() >= set(names):
        return Markup("{}").format(text)
    target = f"#task={cells[0].first.task}&of={names[0]}" + (f"&with={names[1]}" if len(names) > 1 else "")
    return Markup('<a href="{}&amp;show={}">{}</a>').format(target, show, text)
