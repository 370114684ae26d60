"""The page of a curation: what was kept and why, in counts, pictures, and documents to judge by eye.

``report`` reads ``summary.json`` and writes ``report.html`` beside it, which needs nothing but itself. The same summary
gives the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mtnlg_data.files import write_text

from .page import page
from .summary_schema import read

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["report"]

SUMMARY, PAGE = "summary.json", "report.html"


def report(folder: Path) -> Path:
    """Write the page into a folder that a curation, or a stage by itself, has left; returns where it lies.

    Raises ``Failure`` where there is no summary, or one that no curation wrote.
    """
    told = read(folder / SUMMARY)
    target = folder / PAGE
    write_text(target, page(told, _name(folder)))
    return target


def _name(folder: Path) -> str:
    """What the run is called: the name of its folder, or of the run that the folder ``data`` belongs to."""
    whole = folder.resolve()
    return whole.parent.name if whole.name == "data" and whole.parent.name else whole.name
