"""report.html and loss.svg beside a run: its curves over tokens, where its time went, restarts and skipped steps.

Rank 0 writes them at checkpoints and at the end. Only the steps since the last time are read, and curves are drawn in a
fixed number of columns, so a page costs about the same after an hour and after weeks.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_left
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Final, NamedTuple

from mtnlg_data.report.numbers import brief, count, duration, percent, short
from mtnlg_model.console import say
from mtnlg_model.files import write_text
from mtnlg_model.settings import dump

from .curves import STYLE, Chart, Curve, Marks, standalone
from .history import StepSeconds, account, read_events
from .markup import decimal, escape, figure, row, table
from .metrics import Follower
from .run_dir import LOSS, REPORT, SUMMARY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

    from .history import Goodput, Restart
    from .metrics import Step

SECONDS_BETWEEN: Final = 30.0
"""Least time from one page to the next, except the last."""
CURVES: Final = ("loss", "lr", "grad_norm", "tokens_per_second", "batch_size")
ROWS: Final = 30
"""Most recent restarts, and skipped steps, in a table."""


class Skipped(NamedTuple):
    """A step that the guard skipped."""

    step: int
    tokens: int
    loss: float | None
    grad_norm: float | None
    why: str


class Page:
    """The page of the run in ``out``; ``update`` and ``close`` write it, from the steps recorded meanwhile too."""

    def __init__(self, out: Path, recipe: Recipe) -> None:
        self._out, self._recipe = out, recipe
        self._follower = Follower(out, 0)
        self._seconds = StepSeconds()
        self._tokens = array("d")
        self._curves = {name: array("d") for name in CURVES}
        self._validation = Curve(array("d"), array("d"))
        self._steps = array("q")
        self._skips, self._skipped = array("d"), deque[Skipped](maxlen=ROWS)
        self._last: Step = {"step": 0, "samples": 0, "tokens": 0, "loss": None}
        self._due = -math.inf
        self._thread = ThreadPoolExecutor(1, "page")  # since the first page of a long run takes seconds

    def update(self) -> None:
        """Write the page in the background, unless the last one is younger than `SECONDS_BETWEEN`."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + SECONDS_BETWEEN
            self._thread.submit(self._write)

    def close(self) -> None:
        """Write the page a last time."""
        self._thread.submit(self._write).result()
        self._thread.shutdown()
        self._follower.close()

    def _write(self) -> None:
        """Write the page and the picture of the loss. A disk that is full is told, and no reason to end a run."""
        for step in self._follower.steps():
            self._add(step)
        goodput = account(read_events(self._out), self._seconds)
        marks = Marks([self._tokens_at(restart.step) for restart in goodput.restarts], self._skips)
        try:
            write_text(self._out / LOSS, standalone(self._loss_chart(marks).svg()))
            write_text(self._out / REPORT, self._html(goodput, marks))
        except OSError as error:
            say(f"{error.filename or self._out / REPORT}: {error.strerror}; the page of the run was not written")

    def _add(self, step: Step) -> None:
        self._seconds.add(step)
        self._last = step
        self._steps.append(step["step"])
        self._tokens.append(step["tokens"])
        why = step.get("skipped")
        for name, values in self._curves.items():
            value = step.get(name)
            left_out = value is None or (why is not None and name in {"loss", "grad_norm"})
            values.append(math.nan if left_out else float(value))  # type: ignore[arg-type]  # (numbers, by their names)
        if "validation_loss" in step:
            self._validation.tokens.append(step["tokens"])
            self._validation.values.append(step["validation_loss"])
        if why is not None:
            self._skips.append(step["tokens"])
            self._skipped.append(Skipped(step["step"], step["tokens"], step["loss"], step["grad_norm"], why))

    def _tokens_at(self, step: int) -> float:
        place = bisect_left(self._steps, step)
        return self._tokens[place] if place < len(self._steps) and step else 0.0

    def _curve(self, name: str) -> Curve:
        return Curve(self._tokens, self._curves[name])

    def _loss_chart(self, marks: Marks) -> Chart:
        return Chart(
            title="Training and validation loss over tokens, in nats per token",
            curve=self._curve("loss"),
            second=self._validation,
            end=float(self._last["tokens"]),
            marks=marks,
            logarithmic=True,
            width=800,
            height=300,
        )

    def _html(self, goodput: Goodput, marks: Marks) -> str:
        sections = [self._charts(marks), _time_section(goodput), _restarts_section(goodput), self._skips_section()]
        resolved = f"<details><summary>recipe.toml</summary>\n<pre>{escape(dump(self._recipe))}</pre>\n</details>"
        sections.append(section("Recipe", resolved))
        footer = f"written {_clock(time.time())} at step {count(self._last['step'])}"
        return document(escape(_run_name(self._out)), self._lede(), self._headline(goodput), sections, footer=footer)

    def _lede(self) -> str:
        recipe, last = self._recipe, self._last
        ranks = f"{count(recipe.layout.world)} ranks" if recipe.layout.world > 1 else "one rank"
        steps = last["step"] + recipe.batch_size.number_of_steps(recipe.train.samples, last["samples"])
        done = "complete" if (self._out / SUMMARY).exists() else f"step {count(last['step'])} of {count(steps)}"
        return f"{short(recipe.model.parameters)} parameters over {ranks} ({escape(recipe.layout)}): {done}."

    def _headline(self, goodput: Goodput) -> list[tuple[str, str]]:
        last, total = self._last, self._recipe.train.samples * self._recipe.model.sequence
        validation = self._validation.values
        held_out = f"; {decimal(validation[-1], 3)} on held-out documents" if validation else ""
        speed = self._seconds.total
        figures = [
            (decimal(last["loss"], 3), f"nats per token, training loss{held_out}"),
            (short(last["tokens"]), f"of {short(total)} tokens, {percent(min(last['tokens'], total), total)}"),
            (brief(last["tokens"] / speed if speed else 0.0), "tokens per second, checkpoints and validation included"),
        ]
        if "mfu" in last:
            figures.append((percent(last["mfu"], 1), "model FLOP utilisation of the last step"))
        if goodput.share is not None:
            restarts = f"{len(goodput.restarts)} restarts" if len(goodput.restarts) != 1 else "one restart"
            running = duration(goodput.wall - goodput.waiting)
            figures.append((percent(goodput.share, 1), f"goodput, of {running} in which it ran; {restarts}"))
        return figures

    def _charts(self, marks: Marks) -> str:
        if not self._tokens:
            return section("Training", '<p class="absent">No step has been recorded yet.</p>')
        end = float(self._last["tokens"])
        half = Chart("Loss over the last half", self._curve("loss"), end, end / 2, self._validation)
        small = [
            ("Loss, the last half", "", half),
            ("Learning rate", "", Chart("Learning rate", self._curve("lr"), end, from_zero=True)),
            (
                "Gradient norm",
                "before clipping",
                Chart("Gradient norm", self._curve("grad_norm"), end, logarithmic=True),
            ),
            ("Tokens per second", "", Chart("Speed", self._curve("tokens_per_second"), end, from_zero=True)),
        ]
        if self._recipe.train.ramp:
            small.append(("Batch", "samples a step", Chart("Batch", self._curve("batch_size"), end, from_zero=True)))
        drawn = "\n".join(figure(caption, chart.svg(), note) for caption, note, chart in small)
        notes = ["blue: training"]
        notes += ["orange: held-out documents"] if self._validation.values else []
        notes += ["dashed: restarts"] if marks.restarts else []
        notes += ["ticks above: skipped steps"] if len(marks.skips) else []
        whole = figure("Loss", self._loss_chart(marks).svg(), f"nats per token over tokens; {', '.join(notes)}")
        return section("Training", f'<div class="whole">{whole}</div>\n<div class="row curves">\n{drawn}\n</div>')

    def _skips_section(self) -> str:
        if not self._skipped:
            return ""
        rows = [
            _row([count(s.step), short(s.tokens), decimal(s.loss, 3), decimal(s.grad_norm, 3)], s.why)
            for s in reversed(self._skipped)
        ]
        listed = table(["step", "tokens", "loss", "gradient norm", "why"], rows)
        total = f", the last {ROWS} of {count(len(self._skips))}" if len(self._skips) > ROWS else ""
        note = f"<p>By the guard{total}. Their loss is not in the curves.</p>"
        return section("Skipped steps", f'<div class="events">{note}\n{listed}</div>')


def _time_section(goodput: Goodput) -> str:
    """The table of goodput: what the wall time went into."""
    if goodput.share is None:
        return ""
    running = goodput.wall - goodput.waiting
    parts = [
        ("useful steps", goodput.useful),
        ("checkpoints: training held up", goodput.checkpoint),
        ("validation", goodput.validation),
        (f"lost: {count(goodput.lost_steps)} steps trained again", goodput.lost),
        ("restarts, from the last step before to resumption", goodput.restart),
        ("start-up", goodput.startup),
        ("other, from the last step to the end", goodput.other),
    ]
    rows = [row([name, duration(seconds), percent(seconds, running)]) for name, seconds in parts if seconds >= 0.05]
    rows.append(row(["together", duration(running), percent(1, 1)], "total"))
    if goodput.waiting >= 0.05:
        rows.append(row(["waiting, from a clean stop to the next start", duration(goodput.waiting), ""], "less"))
    note = (
        '<p class="caution">A clock stepped back, so some seconds are missing.</p>'
        if goodput.clock_stepped_back
        else ""
    )
    return section("Time", note + table(["", "time", "share"], rows))


def _restarts_section(goodput: Goodput) -> str:
    if not goodput.restarts:
        return ""
    rows = [
        _row(
            [_clock(restart.time), _from(restart), count(restart.lost_steps), duration(restart.seconds)],
            restart.reason + (f" on {restart.node}" if restart.node else ""),
        )
        for restart in reversed(goodput.restarts[-ROWS:])
    ]
    total = f"<p>The last {ROWS} of {count(len(goodput.restarts))}.</p>\n" if len(goodput.restarts) > ROWS else ""
    listed = table(["when", "from step", "steps lost", "down", "after"], rows)
    return section("Restarts", f'<div class="events">{total}{listed}</div>')


def document(
    title: str, lede: str, figures: Iterable[tuple[str, str]], sections: Iterable[str], *, footer: str, style: str = ""
) -> str:
    """An HTML page that loads nothing: title, a line below it, figures with captions, sections. All are markup."""
    terms = "\n".join(f"<div><dt>{caption}</dt><dd>{value}</dd></div>" for value, caption in figures)
    return Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8")).substitute(
        style=files("mtnlg_data.report").joinpath("style.css").read_text(encoding="utf-8"),
        curves_style=STYLE.replace("text{", ".chart text{") + style,
        title=title,
        lede=lede,
        headline=f'<dl class="headline">\n{terms}\n</dl>',
        sections="\n".join(filter(None, sections)),
        footer=footer,
    )


def section(title: str, body: str) -> str:
    """A section of the page."""
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>"


def _row(figures: Sequence[str], text: str) -> str:
    """A table row that ends with a text."""
    return row(figures).removesuffix("</tr>") + f'<td class="why">{escape(text)}</td></tr>'


def _from(restart: Restart) -> str:
    return f"{count(restart.step)}, {escape(restart.source)}" if restart.source else count(restart.step)


def _clock(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment).astimezone():%Y-%m-%d %H:%M}"


def _run_name(out: Path) -> str:
    """The name of the folder, or of its parent where it is a run's ``train``."""
    path = out.resolve()
    return path.parent.name if path.name == "train" and path.parent.name else path.name
