"""Writes a plan as one self-contained HTML page (template ``plan.html``).

It shows the breakdown of a step's time, the pipeline, memory by stage, and the best layouts on the same number of GPUs.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mtnlg_data.report.numbers import count, percent, short
from mtnlg_model.files import write_text

from .memory import memory, memory_error
from .report import days_at_full_batch, gpus_of, three_digits
from .search import FittingRun, search
from .simulation import Event, simulate
from .step import predict

if TYPE_CHECKING:
    from pathlib import Path

    from .run import Run

BEST: Final = 10
FILTERS: Final = (count, days_at_full_batch, gpus_of, percent, short, three_digits)
STYLES: Final = ("style.css", "bars.css")
KINDS: Final = {
    "weights": ("weights", "gathered"),
    "optimizer": ("master", "moments"),
    "gradients": ("gradients",),
    "activations": ("activations", "waiting", "recomputed", "embedding", "logits", "messages"),
    "buffers": ("buffers", "slack"),
}
"""Kinds of memory on the page, and the fields of `memory.Memory` that each sums."""


def write_page(path: Path, planned: dict[str, Any], run: Run) -> None:
    """Write the page for a run, its ``planned`` figures (`report.plan`) and the best layouts of its program."""
    prediction, events = predict(run), list[Event]()
    simulate(prediction.pipeline, run.orders(), events)
    this = FittingRun(run, prediction, planned["memory_bytes"])
    environment = Environment(
        loader=PackageLoader("mtnlg_parallel", "planner"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {each.__name__: each for each in FILTERS}
    styles = "\n".join(files("mtnlg_data.report").joinpath(name).read_text("utf-8") for name in STYLES)
    page = environment.get_template("plan.html").render(
        planned=planned,
        run=run,
        gpu=run.cluster.gpu.name,
        style=Markup(styles),  # noqa: S704  (ours)
        events=events,
        memory=_memory(run),
        best=_best(this),
        version=version("mtnlg-parallel"),
    )
    write_text(path, page)


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


def _best(this: FittingRun) -> dict[str, Any]:
    """The fastest layouts and this one, by step time."""
    best = search(this.run, this.run.gpus, BEST).best
    others = [fitting for fitting in best if fitting.run != this.run]
    rows = sorted([*others, this], key=lambda fitting: fitting.prediction.seconds)
    return {"found": bool(best), "rows": rows, "this": this}
