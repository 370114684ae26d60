"""The page: its template, the headline figures, and the sections of the other modules."""

from __future__ import annotations

from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from . import curation, studies, training
from .attachments import browser
from .markup import NARROW, brief, count, decimal, duration, escape, short
from .results import count_documents, software_versions, total_seconds
from .scores import score_table

if TYPE_CHECKING:
    from .run_files import Run

ARROW = "\N{RIGHTWARDS ARROW}"
TIMES = " \N{MULTIPLICATION SIGN} "


def page(run: Run) -> str:
    """The report as one HTML page, which loads no file but the answers in report/. Equal runs give equal pages."""
    folder = files(__package__)
    template = Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        style=folder.joinpath("style.css").read_text(encoding="utf-8"),
        title=escape(run.name),
        lede=_lede(run),
        headline=_headline(run),
        data=curation.section(run),
        training=training.section(run),
        layout=training.layout_section(run),
        scores=score_table.section(run),
        policy=escape(browser.policy()),
        answers=browser.section(run.evaluation),
        script=browser.script(),
        studies=studies.sections(run),
        studied="".join(f'<a href="#{c.anchor}">{c.title}</a> ' for c in studies.chapters_shown(run.studies)),
        versions=_versions(run),
    )


def _lede(run: Run) -> str:
    parts = {"data": run.curation, "training": run.training, "evaluation": run.evaluation}
    if missing := [name for name, part in parts.items() if part is None]:
        return f"This run is incomplete. Still to be run: {', '.join(missing)}."
    return "From raw pages to a decoder and its scores on the nine tasks of the MT-NLG paper."


def _headline(run: Run) -> str:
    figures = "\n".join(f"<div><dt>{caption}</dt><dd>{figure}</dd></div>" for figure, caption in _figures(run))
    return f'<dl class="headline">\n{figures}\n</dl>' if figures else ""


def _figures(run: Run) -> list[tuple[str, str]]:
    """The headline figures with their captions, for the parts that have been run."""
    figures: list[tuple[str, str]] = []
    if run.curation:
        documents_in, documents_out = count_documents(run.curation.stages)
        figures.append((f"{brief(documents_in)} {ARROW} {brief(documents_out)}", "documents in and kept"))
    if run.blend:
        tokens = sum(source.tokens for source in run.blend.sources)
        figures.append((short(tokens), f"tokens from {len(run.blend.sources)} sources"))
    if run.training:
        entropy = run.curation.unigram_entropy_nats if run.curation else None
        unigram = f"; token frequencies alone give {entropy:.2f}" if entropy is not None else ""
        caption = f"nats per token, training loss after {count(run.training.steps)} steps{unigram}"
        figures.append((decimal(run.training.loss, 2), caption))
        figures.append((count(run.training.tokens_per_second), "tokens per second in training"))
        degrees = run.training.layout
        layout = TIMES.join(f"{axis}{NARROW}{getattr(degrees, axis)}" for axis in ("tp", "pp", "dp"))
        figures.append((layout, f"{count(len(run.training.ranks))} ranks, {short(run.training.parameters)} parameters"))
    parts = (("data", run.curation), ("training", run.training), ("evaluation", run.evaluation))
    times = ", ".join(f"{name} {duration(part.seconds)}" for name, part in parts if part)
    if times:
        figures.append((duration(total_seconds(run)), times))
    return figures


def _versions(run: Run) -> str:
    lines = [", ".join(f"{escape(name)} {escape(number)}" for name, number in software_versions(run).items())]
    if run.evaluation:
        model, result = run.evaluation.main.model, run.evaluation.main.results[0]
        lines.append(f"checkpoint {escape(model.name)}, digest {escape(model.digest[:16])}, {escape(model.precision)}")
        lines.append(f"scored on {escape(result.provenance.hardware)}, {escape(result.provenance.date)}")
    if run.training and run.training.stream:
        lines.append(f"token stream {escape(run.training.stream[:16])}")
    return "<br>\n".join(lines)
