"""Writes a plan as one self-contained HTML page: no scripts, no links, pictures as SVG. ``plan.html`` is its template.

It shows the breakdown of a step's time, the pipeline, memory by stage, step time over nodes with its interval, the best
layouts on the same number of GPUs, and what each switch of the program is worth.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from math import log
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mtnlg_data.report.numbers import count, percent, short
from mtnlg_model.files import write_text

from .interval import interval_of
from .memory import memory, memory_error
from .programs import CAPABILITIES, SWITCHES, Software
from .report import days_at_full_batch, gpus_of, three_digits
from .run import run_error
from .search import FittingRun, search
from .simulation import Event, simulate
from .step import predict
from .timeline import LEGEND, pipeline_svg

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .cluster import Cluster
    from .run import Run

BEST: Final = 10
SCALES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
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


def write_page(path: Path, planned: dict[str, Any], run: Run, cluster: Cluster, software: Software) -> None:
    """Write the page for a run, its ``planned`` figures (`report.plan`) and the best layouts of its program."""
    prediction = predict(run, cluster, software)
    events: list[Event] = []
    simulate(prediction.pipeline, run.orders(), events)
    this = FittingRun(run, prediction, planned["memory_bytes"], software)
    environment = Environment(
        loader=PackageLoader("mtnlg_parallel", "planner"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {each.__name__: each for each in FILTERS}
    styles = "\n".join(files("mtnlg_data.report").joinpath(name).read_text("utf-8") for name in STYLES)
    page = environment.get_template("plan.html").render(
        planned=planned,
        run=run,
        gpu=cluster.gpu.name,
        style=Markup(styles),  # noqa: S704  (ours)
        legend=LEGEND,
        pipeline=Markup(pipeline_svg(run, prediction, events)),  # noqa: S704  (numbers)
        memory=_memory(run, cluster, software),
        scaling=_scaling(run, cluster, software),
        best=_best(cluster, software, this),
        switches=_switches(run, cluster, software),
        version=version("mtnlg-parallel"),
    )
    write_text(path, page)


def _memory(run: Run, cluster: Cluster, software: Software) -> dict[str, Any]:
    """One stacked bar of kinds per stage; the full width is a GPU's memory, or the largest stage if that needs more."""
    stages, available = memory(run, software), cluster.gpu.memory_bytes
    width = max(available, *(stage.total for stage in stages))
    rows = []
    for stage in stages:
        layers, end = [], 0.0
        for kind, fields in KINDS.items():
            end += sum(getattr(stage, name) for name in fields)
            layers.append((end / width, kind))
        rows.append((stage.total, layers[::-1]))
    error = memory_error(stages, cluster)
    return {"error": error, "width": width, "more": width > available, "kinds": KINDS, "rows": rows}


def _axis(values: Sequence[float], start: float, stop: float) -> Callable[[float], float]:
    """A logarithmic scale that maps the smallest value to ``start`` and the largest to ``stop``."""
    low, span = log(min(values)), log(max(values) / min(values)) or 1.0
    return lambda value: start + (log(value) - low) / span * (stop - start)


def _scaling(run: Run, cluster: Cluster, software: Software) -> dict[str, Any]:
    """Step time with its interval, for replicas that divide the batch, in the template's picture of 800 by 300."""
    tried = (run._replace(layout=run.layout.model_copy(update={"dp": int(run.layout.dp * n)})) for n in SCALES)
    runs = [scaled for scaled in tried if scaled.layout.dp and not run_error(scaled, software, cluster)]
    points = [(scaled.gpus, predict(scaled, cluster, software).seconds) for scaled in runs]
    fits = [memory_error(memory(scaled, software), cluster) is None for scaled in runs]
    low, high, _ = interval_of(run, cluster, software)
    work = run.gpus * predict(run, cluster, software).seconds
    x = _axis([gpus for gpus, _ in points], 60, 740)
    y = _axis([s for gpus, own in points for s in (own * low, own * high, work / gpus)], 240, 40)

    def line(factor: float) -> list[str]:
        return [f"{x(gpus):.1f},{y(factor * seconds):.1f}" for gpus, seconds in points]

    return {
        "all_fit": all(fits),
        "band": " ".join([*line(high), *reversed(line(low))]),
        "ideal": " ".join(f"{x(gpus):.1f},{y(work / gpus):.1f}" for gpus, _ in points),
        "line": " ".join(line(1.0)),
        "points": [
            (fit, x(gpus), y(seconds), y(seconds * high), seconds, gpus, work / gpus / seconds)
            for (gpus, seconds), fit in zip(points, fits, strict=True)
        ],
    }


def _best(cluster: Cluster, software: Software, this: FittingRun) -> dict[str, Any]:
    """The fastest layouts and this one, by step time."""
    best = search(this.run, cluster, software, this.run.gpus, BEST).best
    others = [fitting for fitting in best if (fitting.run, fitting.software) != (this.run, this.software)]
    rows = sorted([*others, this], key=lambda fitting: fitting.prediction.seconds)
    return {"found": bool(best), "rows": rows, "this": this}


def _switches(run: Run, cluster: Cluster, software: Software) -> list[tuple[float, str, bool, str]]:
    """Effect of toggling each switch: relative change of step time, name, current state, description; largest first."""
    seconds, rows = predict(run, cluster, software).seconds, []
    for name in set(SWITCHES) - CAPABILITIES:
        now = getattr(software, name)
        change = predict(run, cluster, software.model_copy(update={name: not now})).seconds / seconds - 1
        rows.append((change, name, now, Software.model_fields[name].description or ""))
    return sorted((row for row in rows if abs(row[0]) > 1e-4), key=lambda row: (-abs(row[0]), row[1]))
