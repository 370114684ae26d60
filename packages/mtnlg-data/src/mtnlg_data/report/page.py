"""The report's page: the template, its headline figures, and its sections."""

from __future__ import annotations

from importlib.metadata import version
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from . import charts, counts, examples
from .markup import brief, duration, escape, short

if TYPE_CHECKING:
    from .summary_schema import Summary

ARROW = "\N{RIGHTWARDS ARROW}"


def page(summary: Summary, name: str) -> str:
    """The report as one HTML page that loads nothing else. Equal summaries give equal pages."""
    folder = files(__package__)
    template = Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    sections = [(title, title.split()[0].lower(), body) for title, body in _sections(summary) if body]
    return template.substitute(
        style=folder.joinpath("style.css").read_text(encoding="utf-8"),
        charts_style=charts.STYLE,
        title=escape(name),
        lede=_lede(summary),
        nav=" ".join(f'<a href="#{anchor}">{title}</a>' for title, anchor, _ in sections),
        headline=_headline(summary),
        sections="\n".join(
            f'<section id="{anchor}">\n<h2>{title}</h2>\n{body}\n</section>' for title, anchor, body in sections
        ),
        versions=f"mtnlg-data {version('mtnlg-data')}",
    )


def _sections(summary: Summary) -> list[tuple[str, str]]:
    """Title and body of every section, in the order in which data flows; a section without data is empty."""
    return [
        ("Alarms", counts.alarms(summary)),
        ("Funnel", counts.funnel(summary)),
        ("Lengths", counts.lengths(summary)),
        ("Languages", counts.languages(summary)),
        ("Quality", examples.quality(summary.quality) if summary.quality else ""),
        ("Filters", counts.rules(summary.filters)),
        ("Duplicates", examples.duplicates(summary.duplicates) if summary.duplicates else ""),
        ("Exact duplicates", examples.exact(summary.exact) if summary.exact else ""),
        ("Decontamination", examples.decontamination(summary.decontamination) if summary.decontamination else ""),
        ("Blend", counts.blend(summary)),
        ("Sample documents", examples.documents(summary)),
        ("Files not read to their end", counts.lost_files(summary)),
        ("Unreadable records", counts.unreadable(summary)),
    ]


def _lede(summary: Summary) -> str:
    names = [escape(stage.name) for stage in summary.stages]
    stages = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    sources = f"{len(summary.sources)} sources" if len(summary.sources) > 1 else "one source"
    return f"The documents of {sources}, {stages}: what was kept, what was dropped, and why."


def _headline(summary: Summary) -> str:
    first, last = summary.stages[0], summary.stages[-1]
    figures = [
        (f"{brief(first.documents_in)} {ARROW} {brief(last.documents_out)}", "documents in and kept"),
        (f"{short(first.characters_in)} {ARROW} {short(last.characters_out)}", "characters in and kept"),
    ]
    if summary.tokens:
        tokens = sum(source.tokens for source in summary.tokens.values())
        figures.append((short(tokens), f"tokens from {len(summary.tokens)} sources"))
    slowest = max(summary.stages, key=lambda stage: stage.seconds)
    longest = f", of which {escape(slowest.name)} {duration(slowest.seconds)}" if len(summary.stages) > 1 else ""
    figures.append((duration(summary.seconds), f"run time{longest}"))
    terms = "\n".join(f"<div><dt>{caption}</dt><dd>{figure}</dd></div>" for figure, caption in figures)
    return f'<dl class="headline">\n{terms}\n</dl>'
