"""The page of a report: ``sections.html`` has a macro per section, this module the functions that they call."""

from __future__ import annotations

import json
import math
from functools import cache
from importlib.metadata import version
from inspect import isfunction
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from mtnlg_data.summary import LEAST_VALUE

from . import excerpts, numbers
from .numbers import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mtnlg_data.summary import Counts, FilterRule, RunSummary

#: Titles in the order in which data flows. The first word names the macro and the anchor; empty sections are left out.
SECTIONS = (
    *("Alarms", "Funnel", "Lengths", "Languages", "Quality", "Filters", "Duplicates", "Exact duplicates"),
    *("Decontamination", "Blend", "Details", "Sample documents", "Files not read to their end", "Unreadable records"),
)
LANGUAGES_SHOWN = 12
OCTAVES_PER_TICK = 3
DETAIL_CHARACTERS = 400  # of a value
CLUSTER_SIZES = ((2, 2), (3, 3), (4, 4), (5, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, None))


def page(summary: RunSummary, name: str) -> str:
    """The report as one HTML page that loads nothing else. Equal summaries give equal pages."""
    macros = _environment().get_template("sections.html").module
    anchors = {title: title.split()[0].lower() for title in SECTIONS}
    bodies = {title: getattr(macros, anchor)(summary) for title, anchor in anchors.items()}
    sections = [(title, anchors[title], body) for title, body in bodies.items() if body.strip()]
    slowest = max(summary.stages, key=lambda stage: stage.seconds)
    return (
        _environment()
        .get_template("page.html")
        .render(summary=summary, title=name, sections=sections, slowest=slowest, version=version("mtnlg-data"))
    )


@cache
def _environment() -> Environment:
    """The Jinja environment, which escapes every value that is not the output of a macro.

    Its filters are the functions of this module, of ``excerpts`` and of ``numbers``.
    """
    environment = Environment(
        loader=PackageLoader("mtnlg_data", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    functions = {**vars(excerpts), **vars(numbers), **globals()}
    environment.filters |= {name: value for name, value in functions.items() if isfunction(value)}
    return environment


def in_words(name: str) -> str:
    """A name from the code as words."""
    return name.replace("_", " ")


def ranked(counts: Mapping[str, int] | None) -> list[tuple[str, int]]:
    """Names and counts above zero, the largest first."""
    return sorted(((name, n) for name, n in (counts or {}).items() if n), key=lambda item: (-item[1], item[0]))


def pieces(counts: Counts) -> int:
    """Number of documents that cuts have added."""
    return counts.documents_out - counts.documents_in + sum(counts.dropped.values())


def flows(summary: RunSummary, source: str | None = None) -> list[tuple[str, Any]]:
    """(stage name, counts) of the stages that have this source; without a source, of all stages and sources."""
    if source is None:
        return [(stage.name, stage) for stage in summary.stages]
    return [(stage.name, stage.sources[source]) for stage in summary.stages if source in stage.sources]


def of_stages(summary: RunSummary, field: str) -> list[tuple[str, Any]]:
    """(stage name, entry) for everything that the stages list under a field."""
    return [(stage.name, one) for stage in summary.stages for one in getattr(stage, field)]


class Lengths(NamedTuple):
    """Histograms over the same octaves: ticks, and for each source its name, layers and number of documents."""

    ticks: list[tuple[float, str]]
    charts: list[tuple[str, list[tuple[list[int], str]], int]]


def lengths(summary: RunSummary) -> Lengths:
    """Lengths of documents after the first and after the last stage of every source that has any."""
    stages = {source: [counts for _, counts in flows(summary, source)] for source in summary.sources}
    present = {octave.bit_length() for each in stages.values() for counts in each for octave in counts.lengths}
    octaves = [1 << bits >> 1 for bits in range(min(present, default=0), max(present, default=0) + 1)]
    ticks = [(place / len(octaves), count(octaves[place])) for place in range(0, len(octaves), OCTAVES_PER_TICK)]
    charts = []
    for source, (first, *others) in stages.items():
        layers = [(first, "soft"), (others[-1], "strong")] if others else [(first, "strong")]
        drawn = [([counts.lengths.get(octave, 0) for octave in octaves], kind) for counts, kind in layers]
        if any(counts.lengths for counts in (first, *others)):
            charts.append((source, drawn, layers[-1][0].documents_out))
    return Lengths(ticks, charts)


class Values(NamedTuple):
    """Distribution of a rule's values over quarter octaves; ticks and threshold at places from 0 to 1."""

    counts: list[int]
    ticks: list[tuple[float, str]]
    cut: float


def rule_values(rule: FilterRule) -> Values:
    """The distribution of the values of a rule, if they are kept."""
    cut = 4 * math.log2(rule.threshold or LEAST_VALUE)
    low = min(*rule.values, math.floor(cut) - 1)
    size = max(*rule.values, math.ceil(cut)) + 1 - low
    octaves = range(-(-low // 4), (low + size) // 4 + 1, size // 16 + 1)
    ticks = [((4 * n - low) / size, count(2**n) if n > 0 else f"{2.0**n:.2g}" if n > -10 else "0") for n in octaves]
    return Values([rule.values.get(low + n, 0) for n in range(size)], ticks, min(max(0, (cut - low) / size), 1))


def languages(summary: RunSummary) -> list[tuple[str, int, int]]:
    """Name, records and documents of the languages with most documents, then of all others; "un" means undetected."""
    kept = summary.languages_kept
    found = sorted(summary.languages.items(), key=lambda item: (-kept.get(item[0], 0), -item[1], item[0]))
    rows = [("unknown" if name == "un" else name, n, kept.get(name, 0)) for name, n in found]
    largest, others = rows[:LANGUAGES_SHOWN], rows[LANGUAGES_SHOWN:]
    rest = (f"{len(others)} others", sum(n for _, n, _ in others), sum(k for *_, k in others))
    return [*largest, *([rest] if others else [])]


def cluster_classes(sizes: Mapping[int, int]) -> list[tuple[str, int]]:
    """Clusters by size, in the classes of ``CLUSTER_SIZES``, up to the last that is not empty."""
    rows = []
    for low, high in CLUSTER_SIZES:
        name = f"{low}+" if high is None else str(low) if low == high else f"{low}\N{EN DASH}{high}"
        rows.append((name, sum(n for size, n in sizes.items() if low <= size and (high is None or size <= high))))
    last = max(place for place, (_, n) in enumerate(rows) if n or place == 0)
    return rows[: last + 1]


def table_rows(details: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """(key, text) of every value that a user's step gave; a nested value has both keys, joined by a dot."""
    for key, value in details.items():
        if isinstance(value, dict) and value:
            yield from ((f"{key}.{inner}", text) for inner, text in table_rows(value))
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield key, text if len(text) <= DETAIL_CHARACTERS else f"{text[:DETAIL_CHARACTERS]}\N{HORIZONTAL ELLIPSIS}"
