"""The report of a run: documents kept and dropped, training, and the scores beside the published ones.

``write_report`` reads the JSON files of a run folder and writes two files into it: ``report.html``, a page that loads
no other file, and ``results.json``, the same numbers for programs. The same run folder gives the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_model.console import Failure
from mtnlg_model.files import write_json, write_text

from .page import page
from .results import build_results, print_summary
from .run_files import read_run
from .samples import write_samples

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_report"]


def write_report(folder: Path, *, show: bool = True) -> Path:
    """Write ``report.html`` and ``results.json`` into a run folder, or an evaluation's; returns the path of the page.

    Parts that have not been run are named on the page. ``show`` prints a summary and the table of scores. Raises
    ``Failure`` if the folder does not exist or a file in it is malformed; for the file of a study, only after the page
    has been written without it.
    """
    run = read_run(folder)
    if run.evaluation is None or run.evaluation.folder != folder:  # an evaluation's own is there
        write_json(folder / "results.json", build_results(run))
    if run.evaluation:
        write_samples(folder, run.evaluation.samples)
    path = folder / "report.html"
    write_text(path, page(run))
    if show:
        print_summary(run)
    if run.studies.errors:
        raise Failure(f"{'; '.join(run.studies.errors)}; {path} was written without it")
    return path
