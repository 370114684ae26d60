"""Shows plans by templates: as text on stdout, or one run as a self-contained HTML page (``plan.html``).

The page has the breakdown of a step's time, the pipeline, memory by stage, and the best layouts on as many GPUs.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from math import floor, log10
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from mtnlg_data.report.numbers import NARROW, count, duration, percent, short
from mtnlg_model.files import write_text
from mtnlg_parallel.text import render

from .interval import interval_of
from .memory import memory, memory_error
from .report import DAY, days_at_full_batch
from .search import FittingRun, search
from .simulation import Event, simulate
from .step import predict

if TYPE_CHECKING:
    from pathlib import Path

    from .run import Run

BEST: Final = 10
CLOSE: Final = 0.03
"""Share of a GPU's memory below which the text says that what remains is less than predictions err."""

STYLES: Final = ("style.css", "bars.css")
KINDS: Final = {
    "weights": ("weights", "gathered"),
    "optimizer": ("master", "moments"),
    "gradients": ("gradients",),
    "activations": ("activations", "deferred_gradients", "recomputed", "embedding", "logits", "messages"),
    "buffers": ("buffers", "slack"),
}
"""Kinds of memory on the page, and the fields of `memory.Memory` that each sums."""


def text_of(template: str, **values: object) -> str:
    """Plans as a text template shows them."""
    return render(f"planner/{template}", {"close": CLOSE, **values}, FILTERS)


def write_page(path: Path, planned: dict[str, Any], run: Run) -> None:
    """Write the page for a run, its ``planned`` figures (`report.plan`) and the best layouts of its program."""
    prediction, events = predict(run), list[Event]()
    simulate(prediction.pipeline, run.orders(), events)
    this = FittingRun(run, prediction, planned["memory_bytes"])
    styles = "\n".join(files("mtnlg_data.report").joinpath(name).read_text("utf-8") for name in STYLES)
    values = {
        "planned": planned,
        "run": run,
        "gpu": run.cluster.gpu.name,
        "style": Markup(styles),  # noqa: S704  (ours)
        "events": events,
        "memory": _memory(run),
        "this": this,
        "best": [fitting for fitting in search(run, run.gpus, BEST).best if fitting.run != run],
        "version": version("mtnlg-parallel"),
    }
    write_text(path, render("planner/plan.html", values, FILTERS))


def _memory(run: Run) -> dict[str, Any]:
    """One stacked bar of kinds per stage; the full width is a GPU's memory, or the largest stage if that needs more."""
    stages, available = memory(run), run.cluster.gpu.memory_bytes
    width = max(available, *(stage.total for stage in stages))
    rows = []
    for stage in stages:
        layers, end = [], 0.0
        for kind, fields in KINDS.items():
            end += sum(getattr(stage, name) for name in fields)
            layers.append((end / width, kind))
        rows.append((stage.total, layers[::-1]))
    error = memory_error(stages, run.cluster)
    return {"error": error, "width": width, "more": width > available, "kinds": KINDS, "rows": rows}


def three_digits(value: float, like: float | None = None) -> str:
    """Format a number to three digits, or to as many decimals as ``like`` gets; no decimals from 100, no exponent."""
    decimals = 2 - floor(log10(like or value)) if value > 0 else 2
    return f"{value:,.{max(decimals, 0)}f}"


def in_words(number: float) -> str:
    """Format a number with one decimal and its magnitude: 529.6 billion, 270 billion, 124.4 million."""
    for size, word in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million"), (1.0, "")):
        if number >= size:
            return f"{number / size:,.1f}".removesuffix(".0") + word
    return f"{number:g}"


def gpus_of(gpus: int, cluster: str) -> str:
    """The number of GPUs and their cluster, in words."""
    return f"{gpus:,} GPUs of {cluster}" if gpus > 1 else f"one GPU of {cluster}"


def heading(run: Run, gpus: int) -> str:
    """What is trained, and where."""
    model = run.model
    size = f"{in_words(model.parameters)} parameters, sequence {model.sequence:,}, batch {run.batch:,}"
    return f"{size}, on {gpus_of(gpus, run.cluster.name)}"


def time(days: float) -> str:
    """Days with one decimal, or a shorter time in its units."""
    return f"{days:.1f} days" if days >= 0.1 else duration(days * DAY).replace(NARROW, " ")


FILTERS: Final = (
    *(count, days_at_full_batch, gpus_of, heading, in_words, interval_of),
    *(percent, short, three_digits, time),
)
