"""The page as a whole: the template, its headline figures, and the parts that the other modules write."""

from __future__ import annotations

from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import TYPE_CHECKING

from . import curation, scores, studies, training
from .markup import NARROW, brief, count, decimal, duration, short, text
from .results import documents, seconds, versions

if TYPE_CHECKING:
    from .run_files import Run

ARROW = "\N{RIGHTWARDS ARROW}"
TIMES = " \N{MULTIPLICATION SIGN} "


def page(run: Run) -> str:
    """The report as one HTML page that refers to nothing outside itself. Equal runs give equal pages."""
    folder = files(__package__)
    template = Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=folder.joinpath("style.css").read_text(encoding="utf-8"),
        title=text(run.name),
        lede=_lede(run),
        headline=_headline(run),
        data=curation.section(run),
        training=training.section(run),
        layout=training.layout_section(run),
        scores=scores.section(run),
        studies=studies.sections(run),
        studied="".join(f'<a href="#{c.anchor}">{c.title}</a> ' for c in studies.present(run.studies)),
        versions=_versions(run),
    )


def _lede(run: Run) -> str:
    done = {"data": run.curation, "training": run.training, "evaluation": run.evaluation}
    missing = [name for name, part in done.items() if part is None]
    if missing:
        return f"A run that is not complete. Still to be run: {', '.join(missing)}."
    return "From raw pages to a decoder and its scores on the nine tasks of the MT-NLG paper."


def _headline(run: Run) -> str:
    figures = "\n".join(f"<div><dt>{caption}</dt><dd>{figure}</dd></div>" for figure, caption in _figures(run))
    return f'<dl class="headline">\n{figures}\n</dl>' if figures else ""


def _figures(run: Run) -> list[tuple[str, str]]:
    """The headline figures and their captions; what has not been run has none."""
    figures: list[tuple[str, str]] = []
    if run.curation:
        entered, left = documents(run.curation.stages)
        figures.append((f"{brief(entered)} {ARROW} {brief(left)}", "documents in and kept"))
    if run.blend:
        tokens = sum(source.tokens for source in run.blend.sources)
        figures.append((short(tokens), f"tokens from {len(run.blend.sources)} sources"))
    if run.training:
        entropy = run.curation.unigram_entropy_nats if run.curation else None
        beside = f"; token frequencies alone give {entropy:.2f}" if entropy is not None else ""
        caption = f"nats a token, training loss after {count(run.training.steps)} steps{beside}"
        figures.append((decimal(run.training.loss, 2), caption))
        figures.append((count(run.training.tokens_per_second), "tokens a second in training"))
        shape = run.training.layout
        layout = TIMES.join(
            f"{axis}{NARROW}{wide}" for axis, wide in (("tp", shape.tp), ("pp", shape.pp), ("dp", shape.dp))
        )
        figures.append((layout, f"{count(len(run.training.ranks))} ranks, {short(run.training.parameters)} parameters"))
    parts = (("data", run.curation), ("training", run.training), ("evaluation", run.evaluation))
    times = ", ".join(f"{name} {duration(part.seconds)}" for name, part in parts if part)
    if times:
        figures.append((duration(seconds(run)), times))
    return figures


def _versions(run: Run) -> str:
    named = ", ".join(f"{text(name)} {text(number)}" for name, number in versions(run).items())
    told = [named]
    if run.evaluation:
        told.append(
            f"checkpoint {text(PurePath(run.evaluation.checkpoint).name)}, digest {text(run.evaluation.digest[:16])}"
        )
    if run.training and run.training.stream:
        told.append(f"token stream {text(run.training.stream[:16])}")
    return "<br>\n".join(told)
