"""Sections of counts: alarms, documents kept and dropped by stage and source, lengths, languages, the blend."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .charts import Bar, Layer, bars, histogram
from .markup import MINUS, brief, count, duration, escape, figure, percent, row, short, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .summary_schema import FilterRule, ReadError, SourceCounts, Stage, Summary

LANGUAGES_SHOWN = 8
OCTAVES_PER_TICK = 3


def alarms(summary: Summary) -> str:
    """A paragraph for each alarm, in the order of the stages."""
    messages = [alarm.message for stage in summary.stages for alarm in stage.alarms]
    return "\n".join(f'<p class="absent">{escape(message)}</p>' for message in messages)


def funnel(summary: Summary) -> str:
    """A bar chart for all sources and for each, and the table of documents kept and dropped."""
    charts = [figure("All sources", _funnel((stage.name, stage) for stage in summary.stages))]
    if len(summary.sources) > 1:
        charts += [figure(escape(source), _funnel(_stages_of(summary, source))) for source in summary.sources]
    drawn = "\n".join(charts)
    return (
        "<p>Documents after each stage: strong is kept, faint is dropped.</p>\n"
        f'<div class="row grid">\n{drawn}\n</div>\n'
        f"<h3>Documents kept and dropped, and why</h3>\n{_ledger(summary)}"
    )


def _stages_of(summary: Summary, source: str) -> list[tuple[str, SourceCounts]]:
    """Names of the stages that have this source, with its counts."""
    return [(stage.name, stage.sources[source]) for stage in summary.stages if source in stage.sources]


def _funnel(stages: Iterable[tuple[str, Stage | SourceCounts]]) -> str:
    return bars(
        Bar(
            escape(name),
            ((max(counts.documents_in, counts.documents_out), "soft"), (counts.documents_out, "strong")),
            brief(counts.documents_out),
        )
        for name, counts in stages
    )


def _ledger(summary: Summary) -> str:
    """A table of documents: for each stage a row per reason and one of what is left; columns are sources."""
    sources = summary.sources
    total_in = summary.stages[0].documents_in
    rows: list[str] = []
    for number, stage in enumerate(summary.stages):
        columns = [stage.sources.get(source) for source in sources]
        if number == 0:
            cells = [count(counts.documents_in) if counts else "" for counts in columns]
            rows.append(row(["documents in", count(stage.documents_in), *cells, "", "", ""], "total"))
        rows += _dropped_rows(stage, sources)
        cells = [count(counts.documents_out) if counts else "" for counts in columns]
        share = percent(stage.documents_out, total_in)
        characters, time = short(stage.characters_out), duration(stage.seconds)
        left = count(stage.documents_out)
        rows.append(row([f"after {escape(stage.name)}", left, *cells, share, characters, time], "total"))
    return table(["", "all", *map(escape, sources), "of all in", "characters", "time"], rows)


def _dropped_rows(stage: Stage, sources: Sequence[str]) -> Iterator[str]:
    """A row for each reason, the most frequent first; documents kept without metadata, and those that cuts added."""
    total: Counter[str] = Counter()
    for counts in stage.sources.values():
        total.update(counts.dropped)
    columns = [stage.sources.get(source) for source in sources]
    for reason, n in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        cells = [_minus(counts.dropped.get(reason, 0)) if counts else "" for counts in columns]
        yield row([escape(reason.replace("_", " ")), _minus(n), *cells, "", "", ""], "less")
    lost: Counter[str] = Counter()
    for counts in stage.sources.values():
        lost.update(counts.metadata_lost)
    for reason, n in sorted(lost.items(), key=lambda item: (-item[1], item[0])):
        cells = [count(counts.metadata_lost.get(reason, 0)) if counts else "" for counts in columns]
        yield row([f"kept without metadata: {escape(reason.replace('_', ' '))}", count(n), *cells, "", "", ""])
    added = {name: c.documents_out - c.documents_in + sum(c.dropped.values()) for name, c in stage.sources.items()}
    if any(added.values()):
        cells = [_signed(added[source]) if added.get(source) else "" for source in sources]
        yield row(["pieces of documents cut apart", _signed(sum(added.values())), *cells, "", "", ""], "less")


def _minus(n: int) -> str:
    return f"{MINUS}{count(n)}" if n else ""


def _signed(n: int) -> str:
    return f"{n:+,}".replace("-", MINUS)


def lengths(summary: Summary) -> str:
    """A histogram per source of the documents' lengths after the first and after the last stage."""
    stages = {source: [counts for _, counts in _stages_of(summary, source)] for source in summary.sources}
    known = {source: counts for source, counts in stages.items() if any(c.lengths for c in counts)}
    present = {octave for counts in known.values() for c in counts for octave in c.lengths}
    if not present:
        return ""
    low, high = min(present).bit_length(), max(present).bit_length()
    octaves = [1 << bits >> 1 for bits in range(low, high + 1)]
    ticks = [(place / len(octaves), count(octaves[place])) for place in range(0, len(octaves), OCTAVES_PER_TICK)]
    first, last = summary.stages[0].name, summary.stages[-1].name
    legend = "" if first == last else f"; faint: after {escape(first)}, strong: after {escape(last)}"
    charts = "\n".join(
        figure(
            escape(source),
            histogram(
                [Layer([c.lengths.get(octave, 0) for octave in octaves], kind) for c, kind in _layers(counts)],
                ticks,
                f"Lengths of the documents of {source}",
            ),
            f"{brief(counts[-1].documents_out)} documents",
        )
        for source, counts in known.items()
    )
    return f'<p>Characters per document, in octaves{legend}.</p>\n<div class="row grid">\n{charts}\n</div>'


def _layers(stages: Sequence[SourceCounts]) -> list[tuple[SourceCounts, str]]:
    return [(stages[0], "soft"), (stages[-1], "strong")] if len(stages) > 1 else [(stages[0], "strong")]


def languages(summary: Summary) -> str:
    """A bar chart of the records' languages, those with most documents extracted first; "un": none was detected."""
    if not summary.languages:
        return ""
    kept = summary.languages_kept
    ranked = sorted(summary.languages.items(), key=lambda item: (-kept.get(item[0], 0), -item[1], item[0]))
    rows = [(escape("unknown" if name == "un" else name), n, kept.get(name, 0)) for name, n in ranked[:LANGUAGES_SHOWN]]
    if others := ranked[LANGUAGES_SHOWN:]:
        rows.append((f"{len(others)} others", sum(n for _, n in others), sum(kept.get(name, 0) for name, _ in others)))
    total = sum(summary.languages.values())
    drawn = bars(
        Bar(name, ((n, "soft"), (k, "strong")), f"{brief(k)} of {brief(n)}, {percent(n, total)}") for name, n, k in rows
    )
    return f"<p>Records by language: strong is extracted, faint is dropped.</p>\n{drawn}"


def rules(applied: Sequence[FilterRule]) -> str:
    """A table of rules: where each was published, its threshold, and what it took."""
    rows = [
        row(
            [
                escape(rule.rule.replace("_", " ")),
                escape(rule.published),
                "" if rule.threshold is None else f"{rule.threshold:,g}",
                count(rule.count),
                escape(rule.effect),
            ]
        )
        for rule in applied
    ]
    return table(["rule", "published by", "threshold", "count", "of"], rows) if rows else ""


def blend(summary: Summary) -> str:
    """A table of the sources' documents, tokens and weights."""
    if not summary.tokens:
        return ""
    tokens = sum(source.tokens for source in summary.tokens.values())
    weights = sum(source.weight for source in summary.tokens.values()) or 1.0
    rows = [
        row([escape(name), count(s.documents), count(s.tokens), percent(s.tokens, tokens), percent(s.weight, weights)])
        for name, s in summary.tokens.items()
    ]
    documents = sum(source.documents for source in summary.tokens.values())
    rows.append(row(["all", count(documents), count(tokens), "", ""], "total"))
    vocabulary = f"Vocabulary: {count(summary.vocabulary)} tokens. " if summary.vocabulary else ""
    nats = summary.unigram_entropy_nats
    entropy = "" if nats is None else f" Unigram entropy: {nats:.2f} nats per token."
    weight = "The weight is a source's share of the training samples."
    head = ["source", "documents", "tokens", "of tokens", "weight"]
    return f"<p>{vocabulary}{weight}{entropy}</p>\n{table(head, rows)}"


def lost_files(summary: Summary) -> str:
    """A table of files that ended early or held nothing, the first of each stage."""
    return _places((stage.name, file) for stage in summary.stages for file in stage.lost)


def unreadable(summary: Summary) -> str:
    """A table of records that could not be read, the first of each stage."""
    return _places((stage.name, error) for stage in summary.stages for error in stage.errors)


def _places(errors: Iterable[tuple[str, ReadError]]) -> str:
    rows = "\n".join(
        f'<tr><th scope="row">{escape(stage)}</th>'
        f"<td><code>{escape(error.where)}</code></td><td>{escape(error.what)}</td></tr>"
        for stage, error in errors
    )
    return f'<div class="scroll"><table><tbody>\n{rows}\n</tbody></table></div>' if rows else ""
