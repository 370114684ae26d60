"""A plan as one HTML page to hand on: no scripts, no links, pictures as SVG.

Where a step's time goes, its pipeline, memory by stage, step time over nodes with its interval, the best layouts on as
many GPUs, and what each switch of the program is worth.
"""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from mtnlg_data.report.numbers import NARROW, count, percent, short
from mtnlg_model.files import write_text
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.record.curves import Scale
from mtnlg_parallel.record.markup import Bar, bars, escape, figure, row, table
from mtnlg_parallel.record.page import document, section

from .interval import interval_of
from .memory import memory, memory_error
from .programs import Software
from .report import days_at_full_batch, gpus_of, three_digits
from .run import run_error
from .search import FittingRun, search
from .simulation import Event, simulate
from .step import predict
from .timeline import LEGEND, pipeline_svg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .cluster import Cluster
    from .run import Run

BEST: Final = 10
SCALES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
WIDTH, HEIGHT, SIDE, TOP, FLOOR = 800, 300, 60, 40, 240  # of the picture of step times
STYLE: Final = (
    files("mtnlg_data.report").joinpath("bars.css").read_text(encoding="utf-8")
    + ".bars{max-width:none}.kinds i{display:inline-block;width:.8em;height:.8em;margin:0 .4em 0 1.2em}"
    ".weights{background:var(--accent)}.optimizer{background:var(--soft)}.gradients{background:var(--second)}"
    ".activations{background:#6f9460}.buffers{background:var(--muted)}"
    ".kinds span{white-space:nowrap}.step.less{fill:var(--paper);stroke:var(--accent);stroke-width:1.5}"
    ".ideal{fill:none;stroke:var(--muted);stroke-dasharray:5 4}.step{fill:var(--accent)}"
)
KINDS: Final = {
    "weights": ("weights", "gathered"),
    "optimizer": ("master", "moments"),
    "gradients": ("gradients",),
    "activations": ("activations", "waiting", "recomputed", "embedding", "logits", "messages"),
    "buffers": ("buffers", "slack"),
}
"""Kinds of memory on the page, and the fields of `memory.Memory` that each sums up."""
CAPABILITIES: Final = {
    "balanced_stages",
    "interleaves",
    "any_schedule",
    "slices_sequence",
    "slices_context",
    "shards_weights",
    "multiplies_fp8",
    "whole_groups",
    "pads_vocabulary",
}
"""Switches that allow layouts, or change the model; what they are worth shows in the best layouts."""


def write_page(
    path: Path, planned: dict[str, Any], run: Run, cluster: Cluster, *, software: Software, programs: Sequence[Software]
) -> None:
    """Write the page of this run, ``planned`` by `report.plan`; ``programs`` are those whose layouts are ranked."""
    prediction = predict(run, cluster, software)
    events: list[Event] = []
    simulate(prediction.pipeline, run.orders(), events)
    this = FittingRun(run, prediction, planned["memory_bytes"], software)
    tokens = int(planned["run"]["tokens"]) if "run" in planned else None
    nodes = f"{count(planned['nodes'])} nodes" if planned["nodes"] > 1 else "one node"
    facts = f"Sequences of {count(run.model.sequence)} tokens, {count(run.batch)} a step, on {nodes} of "
    facts += f"{cluster.gpu.name}: {run}. The program is {software.name}."
    sections = [
        section("Where the time goes", _time(planned)),
        section("The pipeline of a step", figure(LEGEND, pipeline_svg(run, prediction, events))),
        section("Memory by stage", _memory(run, cluster, software)),
        section("Step time over nodes", _scaling(run, cluster, software)),
        section("Best layouts", _best(cluster, programs, this, tokens)),
        section("What each switch is worth", _switches(run, cluster, software)),
    ]
    title = f"{short(run.model.parameters)} parameters on {gpus_of(run.gpus, cluster.name)}"
    footer = f"mtnlg-parallel {version('mtnlg-parallel')}"
    write_text(path, document(escape(title), escape(facts), _headline(planned), sections, footer=footer, style=STYLE))


def _headline(planned: dict[str, Any]) -> list[tuple[str, str]]:
    seconds, low, high = (planned[f"{which}step_seconds"] for which in ("", "low_", "high_"))
    interval = f"90{NARROW}% of such steps take {three_digits(low, high)} to {three_digits(high)}{NARROW}s"
    figures = [(f"{three_digits(seconds)}{NARROW}s", f"a step; {interval}, by the errors on {planned['interval']}")]
    if "run" in planned:
        whole = planned["run"]
        least, most = (f"{whole['days'] * bound / seconds:,.1f}" for bound in (low, high))
        length = (
            f"{short(whole['tokens'])} tokens in {count(whole['steps'])} steps; {least} to {most} by the same errors"
        )
        figures.append((f"{whole['days']:,.1f} days", f"{length}; {count(whole['gpu_hours'])} GPU-hours"))
    figures += [
        (short(planned["tokens_per_second"]), "tokens per second"),
        (
            percent(planned["mfu"], 1),
            f"of the GPUs' peak for the model's operations (MFU): {planned['model_tflops_per_gpu']:.0f} TFLOP/s each",
        ),
        (
            f"{planned['memory_bytes'] / 1e9:.1f}{NARROW}GB",
            f"of {planned['gpu_memory_bytes'] / 1e9:.1f} on the fullest GPU, which "
            + ("fits" if planned["fits"] else "does NOT fit"),
        ),
    ]
    return figures


def _time(planned: dict[str, Any]) -> str:
    parts, seconds = planned["step_seconds_by"], planned["step_seconds"]
    most = max(parts.values())
    return bars(
        Bar(
            name.replace("_", " "),
            [(max(part, 0.0), "strong")],
            f"{three_digits(part, most)}{NARROW}s, {percent(part, seconds)}",
        )
        for name, part in parts.items()
    )


def _memory(run: Run, cluster: Cluster, software: Software) -> str:
    """A bar a stage, of kinds one after the other; the whole width is a GPU's memory, or more where more is needed."""
    stages, available = memory(run, software), cluster.gpu.memory_bytes
    rows = []
    for number, stage in enumerate(stages):
        layers, end = [], 0.0
        for kind, fields in KINDS.items():
            end += sum(getattr(stage, name) for name in fields)
            layers.append((end, kind))
        rows.append(Bar(f"stage {number}", layers[::-1], f"{stage.total / 1e9:.1f}{NARROW}GB"))
    width = max(available, *(stage.total for stage in stages))
    error = memory_error(stages, cluster)
    note = f'<p class="absent">{escape(error)}</p>' if error else ""
    of = "; a GPU has less" if width > available else ", a GPU's"
    legend = " ".join(f'<span><i class="{kind}"></i>{kind}</span>' for kind in KINDS)
    caption = f'The whole width is {width / 1e9:.1f}{NARROW}GB{of}. <span class="kinds">{legend}</span>'
    return f"{note}<figure><figcaption>{caption}</figcaption>{bars(rows, width)}</figure>"


def _scaling(run: Run, cluster: Cluster, software: Software) -> str:
    """Step time with its interval where the replicas divide the batch, both axes logarithmic."""
    points: list[tuple[int, float]] = []
    fits: list[bool] = []
    for scale in SCALES:
        dp = int(run.layout.dp * scale)
        scaled = run._replace(layout=Layout(tp=run.layout.tp, pp=run.layout.pp, dp=max(dp, 1)))
        if dp and not run_error(scaled, software, cluster):
            points.append((scaled.gpus, predict(scaled, cluster, software).seconds))
            fits.append(memory_error(memory(scaled, software), cluster) is None)
    interval = interval_of(run, cluster, software)
    work = run.gpus * predict(run, cluster, software).seconds
    ideal = [(gpus, work / gpus) for gpus, _ in points]
    ends = [seconds * factor for _, seconds in points for factor in (interval.low, interval.high)]
    ends += [seconds for _, seconds in ideal]
    x = Scale(points[0][0], points[-1][0], SIDE, WIDTH - SIDE, logarithmic=True)
    y = Scale(min(ends), max(ends), FLOOR, TOP, logarithmic=True)

    def line(values: Sequence[tuple[int, float]], factor: float = 1.0) -> list[str]:
        return [f"{x(gpus):.1f},{y(factor * seconds):.1f}" for gpus, seconds in values]

    band = [*line(points, interval.high), *reversed(line(points, interval.low))]
    shapes = [
        f'<polygon class="band" points="{" ".join(band)}"/>',
        f'<polyline class="ideal" points="{" ".join(line(ideal))}"/>',
        f'<polyline class="line" points="{" ".join(line(points))}"/>',
    ]
    for (gpus, seconds), fit in zip(points, fits, strict=True):
        at = f'x="{x(gpus):.1f}" text-anchor="middle"'
        kind = "step" if fit else "step less"
        shapes.append(f'<circle class="{kind}" r="4" cx="{x(gpus):.1f}" cy="{y(seconds):.1f}"/>')
        shapes.append(f'<text {at} y="{y(seconds * interval.high) - 8:.1f}">{three_digits(seconds)}{NARROW}s</text>')
        shapes.append(f'<text {at} y="{FLOOR + 24}">{count(gpus)}</text>')
        shapes.append(f'<text {at} y="{FLOOR + 46}">{work / gpus / seconds:.0%}</text>')
    note = (
        "over GPUs, both logarithmic, with the 90 % interval. Dashed: if each GPU worked as fast as in this plan; "
        "in percent how fast it does"
    )
    note += "" if all(fits) else "; hollow: does not fit"
    picture = (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>Step time</title>{"".join(shapes)}</svg>'
    )
    return f'<div class="whole">{figure("Seconds a step", picture, note)}</div>'


def _best(cluster: Cluster, programs: Sequence[Software], this: FittingRun, tokens: int | None) -> str:
    """The fastest layouts and this one, by step time."""
    best = search(this.run, cluster, programs, this.run.gpus, BEST).best
    others = [fitting for fitting in best if (fitting.run, fitting.software) != (this.run, this.software)]
    seconds, rows = this.prediction.seconds, []
    for fitting in sorted([*others, this], key=lambda fitting: fitting.prediction.seconds):
        another = fitting.software.name != this.software.name
        cells = [
            escape(fitting.run) + (f"; {escape(fitting.software.name)}" if another else ""),
            three_digits(fitting.prediction.seconds),
            "this plan" if fitting is this else f"{fitting.prediction.seconds / seconds - 1:+.1%}",
            f"{fitting.bytes / 1e9:.1f}",
        ]
        cells += [f"{days_at_full_batch(fitting, tokens):,.1f}"] if tokens else []
        rows.append(row(cells, "total" if fitting is this else ""))
    none = "" if best else '<p class="absent">No layout fits.</p>'
    return none + table(["layout", "seconds", "step", "GB", *(["days"] if tokens else [])], rows)


def _switches(run: Run, cluster: Cluster, software: Software) -> str:
    """What each switch saves as it is, or would save."""
    seconds, rows = predict(run, cluster, software).seconds, []
    for name, field in Software.model_fields.items():
        if field.annotation is not bool or name in CAPABILITIES:
            continue
        turned = software.model_copy(update={name: not getattr(software, name)})
        change = predict(run, cluster, turned).seconds / seconds - 1
        if abs(change) > 1e-4:
            state = "on" if getattr(software, name) else "off"
            words = f"<code>{name}</code> {escape(field.description or '')}"
            rows.append((abs(change), row([words, state, f"{change:+.1%}"])))
    ranked = [line for _, line in sorted(rows, key=lambda pair: -pair[0])]
    return table(["switch", "now", "step if turned"], ranked) if ranked else "<p>None.</p>"
