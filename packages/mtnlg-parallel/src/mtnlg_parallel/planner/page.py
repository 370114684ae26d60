"""A plan as one HTML page to hand on: no scripts, no links, pictures as SVG.

Where a step's time goes, its pipeline, memory by stage, step time over nodes with its interval, the best layouts on as
many GPUs, and what each switch of the program is worth.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.files import write_text
from mtnlg_parallel.layout import Layout

from .interval import interval_of
from .programs import Software
from .report import plan, three_digits
from .run import run_error
from .search import search
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
WIDTH, HEIGHT, BAR = 720, 220, 20
STYLE: Final = (
    "body{font:14px sans-serif;margin:4vw auto;padding:0 1em;max-width:60em}svg{background:#f6f6f6;min-width:600px}"
    ".wide{overflow-x:auto}td,th{padding:2px 10px;text-align:right;vertical-align:top}"
    "td:first-child,th:first-child,.text{text-align:left}h2{margin-top:1.6em}"
)
CAPABILITIES: Final = {
    "balanced_stages",
    "interleaves",
    "splits_backward",
    "slices_sequence",
    "slices_context",
    "shards_weights",
    "multiplies_fp8",
    "whole_groups",
    "pads_vocabulary",
}
"""Switches that allow layouts, or change the model; what they are worth shows in the best layouts."""


def write_page(path: Path, run: Run, cluster: Cluster, programs: Sequence[Software], software: Software) -> None:
    """Write the page of this run; ``programs`` are those whose layouts are ranked."""
    planned, prediction = plan(run, cluster, software), predict(run, cluster, software)
    events: list[Event] = []
    simulate(prediction.pipeline, run.micro_batches, events)
    low, high = planned["low_step_seconds"], planned["high_step_seconds"]
    facts = (
        f"{run.model.parameters / 1e9:,.1f} billion parameters, sequence {run.model.sequence:,}, batch {run.batch:,}, "
        f"on {run.gpus:,} GPUs of {cluster.name} ({cluster.gpu.name}); program {software.name}; {run}"
    )
    fits = "fits" if planned["fits"] else "does NOT fit"
    between = f"{three_digits(low, high)} to {three_digits(high)} s, by the errors on {planned['interval']}"
    verdict = (
        f"{three_digits(planned['step_seconds'])} s a step (90 % of such steps: {between}); "
        f"{planned['tokens_per_second']:,.0f} tokens/s; MFU {planned['mfu']:.1%}; "
        f"{planned['memory_bytes'] / 1e9:.1f} GB on the fullest GPU, which {fits}"
    )
    parts = planned["step_seconds_by"]
    sections = [
        ("Where the time goes", _bars([(name.replace("_", " "), seconds) for name, seconds in parts.items()], "s")),
        ("The pipeline of a step", f"{pipeline_svg(run, prediction, events)}<p>{LEGEND}</p>"),
        ("Memory by stage", _memory_bars(planned)),
        ("Step time over nodes", _scaling(run, cluster, software)),
        ("Best layouts", _best(run, cluster, programs)),
        ("What each switch is worth", _switches(run, cluster, software)),
    ]
    body = "".join(f'<h2>{escape(title)}</h2><div class="wide">{content}</div>' for title, content in sections)
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(f'{run.gpus:,} GPUs of {cluster.name}')}</title><style>{STYLE}</style>"
    )
    heading = f"{three_digits(planned['step_seconds'])} s a step"
    text = f"<h1>{heading}</h1><p>{escape(facts)}</p><p>{escape(verdict)}</p>{body}"
    write_text(path, f'<!doctype html><html lang="en"><head>{head}</head><body>{text}</body></html>\n')


def _bars(values: Sequence[tuple[str, float]], unit: str, most: float | None = None) -> str:
    """Named horizontal bars; ``most`` is what the width stands for, with a line there."""
    full = max(most or 0.0, *(value for _, value in values)) or 1.0
    rows = []
    for number, (name, value) in enumerate(values):
        y, width = number * BAR, max(value, 0.0) / full * (WIDTH - 330)
        rows.append(f'<text x="4" y="{y + 15}">{escape(name)}</text>')
        rows.append(f'<rect x="150" y="{y + 3}" width="{width:.1f}" height="{BAR - 6}" fill="#2b6cb0"/>')
        rows.append(f'<text x="{156 + width:.1f}" y="{y + 15}">{three_digits(value, full)} {unit}</text>')
    height = len(values) * BAR
    if most:
        x = round(150 + most / full * (WIDTH - 330))
        rows.append(f'<line x1="{x}" x2="{x}" y1="0" y2="{height}" stroke="#c00"/>')
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" font-size="13">{"".join(rows)}</svg>'


def _memory_bars(planned: dict[str, Any]) -> str:
    shown = [(f"stage {number}", size / 1e9) for number, size in enumerate(planned["memory_bytes_of_stages"])]
    return _bars(shown, "GB", planned["gpu_memory_bytes"] / 1e9) + "<p>The red line is what a GPU has.</p>"


def _scaling(run: Run, cluster: Cluster, software: Software) -> str:
    """Step time with its interval where the replicas divide the batch."""
    points = []
    for scale in SCALES:
        dp = int(run.layout.dp * scale)
        scaled = run._replace(layout=Layout(tp=run.layout.tp, pp=run.layout.pp, dp=max(dp, 1)))
        if dp and not run_error(scaled, software, cluster):
            points.append((scaled.gpus, predict(scaled, cluster, software).seconds))
    interval = interval_of(run, cluster, software)
    most_x, most_y = max(x for x, _ in points), max(y for _, y in points) * interval.high
    floor = HEIGHT - 20
    shapes = [f'<line x1="40" x2="{WIDTH}" y1="{floor}" y2="{floor}" stroke="#999"/>']
    for gpus, seconds in points:
        x = 40 + gpus / most_x * (WIDTH - 160)
        low, middle, high = (
            floor - seconds * factor / most_y * (HEIGHT - 40) for factor in (interval.low, 1.0, interval.high)
        )
        shapes.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="#999" stroke-width="3"/>'
        )
        shapes.append(f'<circle cx="{x:.1f}" cy="{middle:.1f}" r="4" fill="#2b6cb0"/>')
        shapes.append(f'<text x="{x + 7:.1f}" y="{middle + 4:.1f}">{gpus:,} GPUs: {three_digits(seconds)} s</text>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" font-size="12">{"".join(shapes)}</svg>'


def _best(run: Run, cluster: Cluster, programs: Sequence[Software]) -> str:
    result = search(run, cluster, programs, run.gpus, BEST)
    if not result.best:
        return "<p>No layout fits.</p>"
    rows = [
        (str(best.run), best.software.name, three_digits(best.prediction.seconds), f"{best.bytes / 1e9:.1f}")
        for best in result.best
    ]
    return _table(("layout", "program", "seconds", "GB"), rows)


def _switches(run: Run, cluster: Cluster, software: Software) -> str:
    """Seconds that each switch saves as it is, or would save."""
    seconds, rows = predict(run, cluster, software).seconds, []
    for name, field in Software.model_fields.items():
        if field.annotation is not bool or name in CAPABILITIES:
            continue
        turned = software.model_copy(update={name: not getattr(software, name)})
        change = predict(run, cluster, turned).seconds - seconds
        if abs(change) > 1e-4 * seconds:
            state = "on" if getattr(software, name) else "off"
            rows.append((f"{name}: {field.description}", state, f"{change / seconds:+.1%}", abs(change)))
    ranked = sorted(rows, key=lambda row: -row[3])
    return _table(("switch", "now", "step if turned"), [row[:3] for row in ranked])


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th{_align(cell)}>{escape(name)}</th>" for name, cell in zip(header, rows[0], strict=True))
    lines = ("".join(f"<td{_align(cell)}>{escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _align(cell: object) -> str:
    """Numbers stand right, words left."""
    return "" if str(cell)[:1] in "+-0123456789" else ' class="text"'
