"""The page's counts: what each stage kept and dropped of each source, lengths of documents, languages, the blend."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .charts import Bar, Layer, bars, histogram
from .markup import MINUS, brief, count, duration, figure, percent, row, short, table, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .summary_schema import Flow, Stage, Told

LANGUAGES_SHOWN = 8
OCTAVES_A_TICK = 3


def through(stages: Sequence[Stage], source: str | None) -> list[tuple[str, Stage | Flow]]:
    """The stages by name, each with what it did to this source, or to all where it is None."""
    if source is None:
        return [(stage.name, stage) for stage in stages]
    return [(stage.name, stage.sources[source]) for stage in stages if source in stage.sources]


def funnel(told: Told) -> str:
    """A picture a source, and the ledger."""
    shown = [None, *told.sources] if len(told.sources) > 1 else [None]
    drawn = "\n".join(figure(text(source or "All sources"), _funnel(told.stages, source)) for source in shown)
    return (
        "<p>Documents after each stage: strong is kept, faint is dropped.</p>\n"
        f'<div class="row grid">\n{drawn}\n</div>\n'
        f"<h3>Documents kept and dropped, and why</h3>\n{_ledger(told)}"
    )


def _funnel(stages: Sequence[Stage], source: str | None) -> str:
    flows = through(stages, source)
    return bars(
        Bar(
            text(name),
            ((max(flow.documents_in, flow.documents_out), "soft"), (flow.documents_out, "strong")),
            brief(flow.documents_out),
        )
        for name, flow in flows
    )


def _ledger(told: Told) -> str:
    """Stage by stage what is taken away for which reason, and what remains: columns are sources."""
    sources = told.sources
    entered = told.stages[0].documents_in
    rows: list[str] = []
    for number, stage in enumerate(told.stages):
        flows = [stage.sources.get(source) for source in sources]
        if number == 0:
            first = [count(flow.documents_in) if flow else "" for flow in flows]
            rows.append(row(["documents in", count(stage.documents_in), *first, "", "", ""], "total"))
        rows += _reasons(stage, sources)
        left = [count(flow.documents_out) if flow else "" for flow in flows]
        share = percent(stage.documents_out, entered)
        after = f"after {text(stage.name)}"
        volume, time = short(stage.characters_out), duration(stage.seconds)
        rows.append(row([after, count(stage.documents_out), *left, share, volume, time], "total"))
    return table(["", "all", *map(text, sources), "of all in", "characters", "time"], rows)


def _reasons(stage: Stage, sources: Sequence[str]) -> Iterator[str]:
    total: Counter[str] = Counter()
    for flow in stage.sources.values():
        total.update(flow.dropped)
    columns = [stage.sources.get(source) for source in sources]
    for reason, n in sorted(total.items(), key=lambda item: (-item[1], item[0])):
        cells = [_less(flow.dropped.get(reason, 0)) if flow else "" for flow in columns]
        yield row([text(reason.replace("_", " ")), _less(n), *cells, "", "", ""], "less")
    extra = {name: f.documents_out - f.documents_in + sum(f.dropped.values()) for name, f in stage.sources.items()}
    if any(extra.values()):
        cells = [f"{extra[s]:+,}".replace("-", MINUS) if extra.get(s) else "" for s in sources]
        all_ = f"{sum(extra.values()):+,}".replace("-", MINUS)
        yield row(["pieces of documents cut apart", all_, *cells, "", "", ""], "less")


def _less(n: int) -> str:
    return f"{MINUS}{count(n)}" if n else ""


def lengths(told: Told) -> str:
    """Histograms of the documents' lengths after the first and after the last stage, a picture a source."""
    of = {source: _flows(told, source) for source in told.sources}
    known = [(source, flows) for source, flows in of.items() if any(flow.lengths for flow in flows)]
    every = {octave for _, flows in known for flow in flows for octave in flow.lengths}
    if not every:
        return ""
    low, high = min(every).bit_length(), max(every).bit_length()
    octaves = [1 << bits >> 1 for bits in range(low, high + 1)]
    ticks = [(place / len(octaves), count(octaves[place])) for place in range(0, len(octaves), OCTAVES_A_TICK)]
    first, last = told.stages[0].name, told.stages[-1].name
    beside = "" if first == last else f"; faint: after {text(first)}, strong: after {text(last)}"
    drawn = "\n".join(
        figure(
            text(source),
            histogram(
                [Layer([f.lengths.get(o, 0) for o in octaves], kind) for f, kind in _layers(flows)],
                ticks,
                f"Lengths of the documents of {source}",
            ),
            f"{brief(flows[-1].documents_out)} documents",
        )
        for source, flows in known
    )
    return f'<p>Characters a document, in octaves{beside}.</p>\n<div class="row grid">\n{drawn}\n</div>'


def _flows(told: Told, source: str) -> list[Flow]:
    return [stage.sources[source] for stage in told.stages if source in stage.sources]


def _layers(flows: Sequence[Flow]) -> list[tuple[Flow, str]]:
    return [(flows[0], "soft"), (flows[-1], "strong")] if len(flows) > 1 else [(flows[0], "strong")]


def languages(told: Told) -> str:
    """What was found on the pages, most frequent first; "un" is what has no language that could be told."""
    if not told.languages:
        return ""
    ranked = sorted(told.languages.items(), key=lambda item: (-item[1], item[0]))
    named = [(text("unknown" if name == "un" else name), n) for name, n in ranked[:LANGUAGES_SHOWN]]
    if others := sum(n for _, n in ranked[LANGUAGES_SHOWN:]):
        named.append((f"{len(ranked) - LANGUAGES_SHOWN} others", others))
    whole = sum(told.languages.values())
    return bars(Bar(name, ((n, "strong"),), f"{brief(n)}, {percent(n, whole)}") for name, n in named)


def blend(told: Told) -> str:
    """Tokens and weights of the sources."""
    if not told.tokens:
        return ""
    whole = sum(source.tokens for source in told.tokens.values())
    weights = sum(source.weight for source in told.tokens.values()) or 1.0
    rows = [
        row([text(name), count(s.documents), count(s.tokens), percent(s.tokens, whole), percent(s.weight, weights)])
        for name, s in told.tokens.items()
    ]
    documents = sum(source.documents for source in told.tokens.values())
    rows.append(row(["all", count(documents), count(whole), "", ""], "total"))
    vocabulary = f"A vocabulary of {count(told.vocabulary)} tokens. " if told.vocabulary else ""
    nats = told.unigram_entropy_nats
    entropy = "" if nats is None else f" Token frequencies alone give {nats:.2f} nats a token."
    weight = "The weight is a source's share of the training samples."
    head = ["source", "documents", "tokens", "of tokens", "weight"]
    return f"<p>{vocabulary}{weight}{entropy}</p>\n{table(head, rows)}"


def unreadable(told: Told) -> str:
    """Records that could not be read, the first of each stage."""
    lost = [(stage.name, error) for stage in told.stages for error in stage.errors]
    cells = (f"<td><code>{text(error.where)}</code></td><td>{text(error.what)}</td>" for _, error in lost)
    heads = (f'<th scope="row">{text(name)}</th>' for name, _ in lost)
    body = "\n".join(f"<tr>{head}{cell}</tr>" for head, cell in zip(heads, cells, strict=True))
    return f'<div class="scroll"><table><tbody>\n{body}\n</tbody></table></div>' if lost else ""
