"""The page: the headline figures, and a section for each part of a run that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .blocks import asset, environment
from .markup import NARROW, brief, count, decimal, duration, short
from .results import count_documents, missing_parts, software_versions, total_seconds
from .sections import answers, curation, scores, studies, training

if TYPE_CHECKING:
    from .blocks import Section
    from .run_files import Run

ARROW = "\N{RIGHTWARDS ARROW}"
TIMES = " \N{MULTIPLICATION SIGN} "


def page(run: Run) -> str:
    """The report as one HTML page, which loads no file but the answers in report/. Equal runs give equal pages."""
    parts = (curation.section(run), *training.sections(run), scores.section(run), answers.section(run.evaluation))
    sections: list[Section] = [part for part in parts if part] + studies.sections(run.studies)
    return (
        environment()
        .get_template("page.html")
        .render(
            run=run,
            style=asset("style.css"),
            policy=answers.policy(),
            script=asset("answers.js"),
            sections=sections,
            lede=_lede(run),
            figures=list(_figures(run)),
            versions=list(_versions(run)),
        )
    )


def _lede(run: Run) -> str:
    missing = missing_parts(run)
    if run.evaluation and {"data", "training"} <= missing.keys():
        return f"Scores of {', '.join(dict.fromkeys(each.model.name for each in run.evaluation.runs))}."
    if missing:
        hints = "; ".join(f"{name}: {command}" for name, command in missing.items())
        return f"This run is incomplete. Still to be run: {hints}."
    return "From raw pages to a decoder and its scores."


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
    return [*figures, (duration(total_seconds(run)), times)] if figures else []


def _versions(run: Run) -> list[str]:
    lines = [", ".join(f"{name} {number}" for name, number in software_versions(run).items())]
    for each in run.evaluation.runs if run.evaluation else ():
        model, made = each.model, each.results[0].provenance
        threads = f", {model.threads} threads" if model.threads else ""
        lines.append(
            f"{model.name}, digest {model.digest[:16]}, {model.precision}; on {made.hardware}{threads}, {made.date}"
        )
    if run.training and run.training.stream:
        lines.append(f"token stream {run.training.stream[:16]}")
    return lines
