"""The page of a whole run: what was kept and why, how training went, what the model scores beside the paper's.

``report`` reads the JSON files of a run folder and writes two files into it: ``report.html``, which needs nothing but
itself, and ``results.json``, the same for a machine. The same run folder gives the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from mtnlg_model.console import Failure
from mtnlg_model.files import write_json, write_text

from .page import page
from .results import results, summary
from .run_files import read_run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["report"]


def report(run: Path, *, show: bool = True) -> Path:
    """Write ``report.html`` and ``results.json`` into the run folder, print a table of the scores, return the page.

    A part that has not been run is named on the page. Raises ``Failure`` where the folder does not exist or one of its
    files is not what the package that wrote it promises; where it is a study's, the page is drawn without it first.
    """
    told = read_run(run)
    write_json(run / "results.json", results(told))
    target = run / "report.html"
    write_text(target, page(told))
    if show:
        console = Console(highlight=False)
        for line in summary(told):
            console.print(line)
    if told.studies.broken:
        raise Failure(f"{'; '.join(told.studies.broken)}; {target} is drawn without")
    return target
