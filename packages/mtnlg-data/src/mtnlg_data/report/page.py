"""The page as a whole: the template, its headline figures, and the parts that the other modules write."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from . import counts, examples
from .markup import brief, duration, short, text

if TYPE_CHECKING:
    from .summary_schema import Told

ARROW = "\N{RIGHTWARDS ARROW}"


def page(told: Told, name: str) -> str:
    """The report as one HTML page that refers to nothing outside itself. Equal summaries give equal pages."""
    folder = files(__package__)
    template = Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    sections = [(title, body) for title, body in _sections(told) if body]
    anchors = {title: title.split()[0].lower() for title, _ in sections}
    return template.substitute(
        style=folder.joinpath("style.css").read_text(encoding="utf-8"),
        title=text(name),
        lede=_lede(told),
        nav=" ".join(f'<a href="#{anchors[title]}">{title}</a>' for title, _ in sections),
        headline=_headline(told),
        sections="\n".join(
            f'<section id="{anchors[title]}">\n<h2>{title}</h2>\n{body}\n</section>' for title, body in sections
        ),
        versions=f"mtnlg-data {version('mtnlg-data')}",
    )


def _sections(told: Told) -> list[tuple[str, str]]:
    """Every section with its title, in the order in which data flows; one with nothing to say is empty."""
    return [
        ("Funnel", counts.funnel(told)),
        ("Lengths", counts.lengths(told)),
        ("Languages", counts.languages(told)),
        ("Quality", examples.quality(told.quality) if told.quality else ""),
        ("Duplicates", examples.duplicates(told.duplicates) if told.duplicates else ""),
        ("Decontamination", examples.decontamination(told.decontamination) if told.decontamination else ""),
        ("Blend", counts.blend(told)),
        ("Documents to judge by eye", examples.documents(told)),
        ("Unreadable records", counts.unreadable(told)),
    ]


def _lede(told: Told) -> str:
    names = [text(stage.name) for stage in told.stages]
    stages = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    sources = f"{len(told.sources)} sources" if len(told.sources) > 1 else "one source"
    return f"What became of the documents of {sources}, {stages}: what was kept, what was dropped, and why."


def _headline(told: Told) -> str:
    first, last = told.stages[0], told.stages[-1]
    figures = [
        (f"{brief(first.documents_in)} {ARROW} {brief(last.documents_out)}", "documents in and kept"),
        (f"{short(first.characters_in)} {ARROW} {short(last.characters_out)}", "characters in and kept"),
    ]
    if told.tokens:
        tokens = sum(source.tokens for source in told.tokens.values())
        figures.append((short(tokens), f"tokens from {len(told.tokens)} sources"))
    slowest = max(told.stages, key=lambda stage: stage.seconds)
    longest = f"of which {text(slowest.name)} {duration(slowest.seconds)}" if len(told.stages) > 1 else "in all"
    figures.append((duration(told.seconds), longest))
    drawn = "\n".join(f"<div><dt>{caption}</dt><dd>{figure}</dd></div>" for figure, caption in figures)
    return f'<dl class="headline">\n{drawn}\n</dl>'
