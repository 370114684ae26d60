"""Draws the simulated pipeline of one step as a Chrome trace (chrome://tracing, ui.perfetto.dev) or an HTML page.

One lane per stage: forward and backward passes of every chunk and micro-batch, then gradient reduction and update.
"""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.files import write_text

from .simulation import Event, simulate

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
    "One lane a stage, the first on top: forward blue, backward orange, weight gradients apart green, "
    "gradient reduction and optimizer grey, waiting empty."
)


def write_timeline(path: Path, run: Run, prediction: Prediction) -> None:
    """Write an HTML page if ``path`` ends in .html, else a Chrome trace and an HTML page next to it."""
    events: list[Event] = []
    simulate(prediction.pipeline, run.orders(), events)
    page = _page(run, prediction, events)
    if path.suffix != ".html":
        write_text(path, json.dumps({"traceEvents": _trace(run, prediction, events), "displayTimeUnit": "ms"}))
    write_text(path.with_suffix(".html"), page)


def _trace(run: Run, prediction: Prediction, events: list[Event]) -> list[dict[str, Any]]:
    """Chrome trace events: complete ("X") events in microseconds, one thread per stage."""
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
    return names + boxes + after


def _box(stage: int, name: str, category: str, begin: float, end: float) -> dict[str, Any]:
    times = {"ts": begin * MICROSECONDS, "dur": (end - begin) * MICROSECONDS}
    return {"ph": "X", "pid": 0, "tid": stage, "name": name, "cat": category, **times}


def _name(event: Event) -> str:
    return f"{event.kind[0].upper()}{event.micro_batch} chunk {event.chunk}"


def pipeline_svg(run: Run, prediction: Prediction, events: list[Event]) -> str:
    """The simulated pipeline as an SVG: one lane per stage, the first on top, and the work after the schedule."""
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


def _page(run: Run, prediction: Prediction, events: list[Event]) -> str:
    """One HTML file without scripts or links: the breakdown, then the pipeline as SVG."""
    parts = ", ".join(f"{name.replace('_', ' ')} {part:.3f} s" for name, part in prediction.breakdown._asdict().items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(str(run))}</title>
<style>body{{font:14px sans-serif;margin:4vw}}svg{{background:#f4f4f4;min-width:600px}}.wide{{overflow-x:auto}}</style>
</head><body>
<h1>A step of {prediction.seconds:.3f} s</h1>
<p>{escape(str(run))}; {run.micro_batches} micro-batches. {LEGEND}</p><p>{escape(parts)}</p>
<div class="wide">{pipeline_svg(run, prediction, events)}</div>
</body></html>
"""
