"""The report of a curation: what was kept and dropped, and why, in counts, charts and sample documents.

``write_report`` reads ``summary.json`` and writes ``report.html`` beside it, a page that loads no other file. The same
summary gives the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_data.files import write_text
from mtnlg_data.summary import read_summary

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_report"]


def write_report(folder: Path) -> Path:
    """Write the report of a curation, or of a single stage, into its output folder; returns the page's path.

    Raises ``Failure`` where there is no summary, or one that no curation wrote.
    """
    from .page import page  # noqa: PLC0415  (jinja2)

    summary = read_summary(folder / "summary.json")
    path = folder / "report.html"
    write_text(path, page(summary, _run_name(folder)))
    return path


def _run_name(folder: Path) -> str:
    """The name of the folder, or of its parent where it is a run's ``data``."""
    path = folder.resolve()
    return path.parent.name if path.name == "data" and path.parent.name else path.name
