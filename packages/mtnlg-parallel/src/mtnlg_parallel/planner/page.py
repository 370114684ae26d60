"""Writes a plan as one self-contained HTML page (template ``plan.html``), and its pipeline as a Chrome trace.

It shows the breakdown of a step's time, the pipeline, memory by stage, step time over nodes with its interval, the best
layouts on the same number of GPUs.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mtnlg_data.report.numbers import count, percent, short
from mtnlg_model.files import write_text

from .memory import memory, memory_error
from .report import days_at_full_batch, gpus_of, three_digits
from .run import run_error
from .search import FittingRun, search
from .simulation import Event, simulate
from .step import predict

if TYPE_CHECKING:
    from pathlib import Path

    from .run import Run
    from .step import Prediction

COLOURS: Final = {"forward": "#2b6cb0", "backward": "#d9822b", "weights": "#2f855a"}
MICROSECONDS: Final = 1e6
LANE: Final = 18
WIDE: Final = 1600
MOST_NAMED: Final = 4000  # more passes than this get no tooltips, and are one path a colour
LEGEND: Final = (
    "One lane per stage, the first on top: forward blue, backward orange, separate weight gradients green, "
    "gradient reduction and optimizer grey, waiting empty."
)
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


def write_page(path: Path, planned: dict[str, Any], run: Run) -> None:
    """Write the page for a run, its ``planned`` figures (`report.plan`) and the best layouts of its program."""
    prediction = predict(run)
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
        legend=LEGEND,
        pipeline=Markup(pipeline_svg(run, prediction)),  # noqa: S704  (numbers)
        memory=_memory(run),
        scaling=_scaling(run),
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


def _scaling(run: Run) -> list[tuple[int, float, float, bool]]:
    """GPUs, seconds of a step, rate of a GPU relative to this plan, and whether it fits; by replicas."""
    tried = (run._replace(layout=run.layout.model_copy(update={"dp": int(run.layout.dp * n)})) for n in SCALES)
    runs = [scaled for scaled in tried if scaled.layout.dp and not run_error(scaled)]
    work = run.gpus * predict(run).seconds
    times = [(scaled, predict(scaled).seconds) for scaled in runs]
    return [
        (scaled.gpus, seconds, work / scaled.gpus / seconds, not memory_error(memory(scaled), run.cluster))
        for scaled, seconds in times
    ]


def _best(this: FittingRun) -> dict[str, Any]:
    """The fastest layouts and this one, by step time."""
    best = search(this.run, this.run.gpus, BEST).best
    others = [fitting for fitting in best if fitting.run != this.run]
    rows = sorted([*others, this], key=lambda fitting: fitting.prediction.seconds)
    return {"found": bool(best), "rows": rows, "this": this}


def write_timeline(path: Path, run: Run) -> None:
    """Write Chrome trace events: complete ("X") events in microseconds, one thread per stage."""
    prediction = predict(run)
    events = pipeline_events(run, prediction)
    names: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": stage, "name": "thread_name", "args": {"name": f"stage {stage}"}}
        for stage in range(run.layout.pp)
    ]
    boxes = [_box(event.stage, _name(event), event.kind, event.begin, event.end) for event in events]
    begin = max(event.end for event in events)
    after = []
    for name, seconds in (
        ("data comms", prediction.breakdown.data_comms),
        ("optimizer", prediction.breakdown.optimizer),
    ):
        after += [_box(stage, name, name, begin, begin + seconds) for stage in range(run.layout.pp) if seconds]
        begin += seconds
    write_text(path, json.dumps({"traceEvents": names + boxes + after, "displayTimeUnit": "ms"}))


def pipeline_events(run: Run, prediction: Prediction) -> list[Event]:
    """The passes of the simulated step."""
    events: list[Event] = []
    simulate(prediction.pipeline, run.orders(), events)
    return events


def _box(stage: int, name: str, category: str, begin: float, end: float) -> dict[str, Any]:
    times = {"ts": begin * MICROSECONDS, "dur": (end - begin) * MICROSECONDS}
    return {"ph": "X", "pid": 0, "tid": stage, "name": name, "cat": category, **times}


def _name(event: Event) -> str:
    return f"{event.kind[0].upper()}{event.micro_batch} chunk {event.chunk}"


def pipeline_svg(run: Run, prediction: Prediction) -> str:
    """The simulated pipeline as an SVG: one lane per stage, the first on top, and the work after the schedule."""
    events = pipeline_events(run, prediction)
    scale = WIDE / prediction.seconds
    boxes = []
    paths: dict[str, list[str]] = {colour: [] for colour in COLOURS.values()}
    for event in events:
        colour = COLOURS[event.kind]
        x, y, width = event.begin * scale, event.stage * LANE, max((event.end - event.begin) * scale, 0.05)
        if len(events) < MOST_NAMED:
            title = f"<title>{_name(event)}: {event.end - event.begin:.4f} s</title>"
            shape = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{LANE - 2}"'
            boxes.append(f'<rect {shape} fill="{colour}">{title}</rect>')
        else:
            paths[colour].append(f"M{x:.2f} {y}h{width:.2f}v{LANE - 2}h-{width:.2f}z")
    boxes += [f'<path fill="{colour}" d="{"".join(parts)}"/>' for colour, parts in paths.items() if parts]
    end = max(event.end for event in events)
    rest = f'x="{end * scale:.2f}" y="0" width="{(prediction.seconds - end) * scale:.2f}"'
    boxes.append(f'<rect {rest} height="{run.layout.pp * LANE}" fill="#999"><title>after the schedule</title></rect>')
    pp = run.layout.pp
    height = f"height:{max(min(pp, 16) * LANE, pp * LANE // 2)}px"  # lanes that can be seen on any screen
    box = f'viewBox="0 0 {WIDE} {pp * LANE}" width="100%" style="{height}"'
    return f'<svg {box} preserveAspectRatio="none" shape-rendering="crispEdges">{"".join(boxes)}</svg>'
