"""The report of a run: documents kept and dropped, training, and the scores beside the published ones.

``write_report`` reads the JSON files of a run folder and writes two files into it: ``report.html``, a page that loads
no other file, and ``results.json``, the same numbers for programs. The same run folder gives the same bytes.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from mtnlg_eval.markup import NARROW, render
from mtnlg_eval.results.compare import group_means
from mtnlg_eval.results.folder import collected
from mtnlg_eval.table import print_scores
from mtnlg_eval.tasks.published import TASKS
from mtnlg_model.console import output
from mtnlg_model.files import write_json, write_text

from .page import page
from .run_files import read_run
from .samples import write_samples

if TYPE_CHECKING:
    from pathlib import Path

    from .run_files import Run

__all__ = ["write_report"]

VERSION = 3


def write_report(folder: Path, *, show: bool = True) -> Path:
    """Write ``report.html`` and ``results.json`` into the folder of a run or evaluation; returns the page's path.

    The page names the parts that have not been run. ``show`` prints a summary and the table of scores. Raises
    ``Failure`` if the folder does not exist or a file in it is malformed.
    """
    run = read_run(folder)
    versions = software_versions(run)
    if run.evaluation is None or run.evaluation.folder != folder:  # else it would replace the evaluation's
        write_json(folder / "results.json", build_results(run) | {"versions": versions})
    if run.evaluation:
        write_samples(folder, run.evaluation.samples)
    path = folder / "report.html"
    write_text(path, page(run, versions))
    if show:
        print_summary(run)
    return path


def software_versions(run: Run) -> dict[str, str]:
    """Versions of the packages that made the run, according to its files."""
    versions = {name: value for name, value in (run.training.versions if run.training else {}).items() if value}
    if run.evaluation:
        versions |= run.evaluation.main.results[0].provenance.packages
    return dict(sorted({"mtnlg-eval": version("mtnlg-eval"), **versions}.items()))


def build_results(run: Run) -> dict[str, Any]:
    """The content of results.json: every part that has been run; ``not_run`` lists the others."""
    content: dict[str, Any] = {
        "version": VERSION,
        "run": run.name,
        "not_run": list(run.not_run),
        "seconds": sum(run.seconds.values()),
        "data": None,
        "training": run.training and json.loads(run.training.model_dump_json(exclude={"versions"})),
        "evaluation": None,
        "studies": [
            {"file": file, "model": each.name} for files in run.studies.values() for file, each in files.items()
        ],
    }
    if run.curation:
        documents_in, documents_out = run.curation.documents
        blend = run.blend.sources if run.blend else []
        content["data"] = run.curation.model_dump() | {
            "documents_in": documents_in,
            "documents_out": documents_out,
            "tokens": sum(source.tokens for source in blend),
            "blend": [source.model_dump() | {"epochs": run.epochs.get(source.name)} for source in blend],
        }
    if run.evaluation:
        published = {task.name: task.figures for task in TASKS}
        scores = collected(run.evaluation.results, run.evaluation.not_run)
        content["evaluation"] = scores | {"published": published, "seconds": run.evaluation.seconds}
    return content


def print_summary(run: Run) -> None:
    """Print a line per part, and the table of scores."""
    text = render("summary.txt", run=run).unescape().removesuffix("\n")
    output().print(text.replace(NARROW, " "))  # on a terminal a narrow space is not printable
    if run.evaluation is not None:
        main = run.evaluation.main
        print_scores(
            {"name": main.model.name, "tasks": main.summary, "groups": group_means(main.results), "not_run": []}
        )
