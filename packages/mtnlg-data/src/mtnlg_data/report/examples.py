"""Sections for reading: classifier scores, pairs of near duplicates, cuts, sample documents kept and dropped."""

from __future__ import annotations

import re
from collections import defaultdict
from difflib import SequenceMatcher
from itertools import chain, groupby, takewhile, zip_longest
from typing import TYPE_CHECKING

from mtnlg_data.tally import EXCERPT_CHARACTERS as SAMPLE_CHARACTERS

from .charts import Bar, Layer, bars, histogram
from .counts import rules
from .markup import brief, count, escape, figure, percent, row, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .summary_schema import Cut, Decontamination, DuplicatePair, Duplicates, Exact, Quality, SampleDocument, Summary

PAIRS_SHOWN = 4
CUTS_SHOWN = 6
DOCUMENTS_SHOWN = 6  # of each fate in each stage
MIN_SIMILARITY = 0.7  # of the two texts of a pair that is shown
EXCERPT_CHARACTERS = 420
LEAD_CHARACTERS = 100  # before the first difference
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
SIZES = ((2, 2), (3, 3), (4, 4), (5, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, None))


def quality(scores: Quality) -> str:
    """The classifier's accuracy, and histograms of its scores: candidates, kept, held-out positives."""
    accuracy = ""
    if scores.accuracy is not None:
        auc = f", AUC {scores.auc:.3f}" if scores.auc is not None else ""
        trained = f"Trained on {count(scores.trained_on)} documents; on " if scores.trained_on else "On "
        held_out = f"{count(scores.held_out)} held-out ones" if scores.held_out else "held-out documents"
        accuracy = f"<p>{trained}{held_out}: accuracy {percent(scores.accuracy, 1)}{auc}.</p>"
    if not scores.edges:
        return accuracy
    low, high = scores.edges[0], scores.edges[-1]
    ticks = [(0.0, f"{low:g}"), (0.5, f"{(low + high) / 2:g}"), (1.0, f"{high:g}")]
    layers = [Layer(scores.candidates, "soft"), Layer(scores.kept, "strong")]
    candidates = histogram(layers, ticks, "Scores of the candidates and of those kept")
    positives = histogram([Layer(scores.positives, "second")], ticks, "Scores of held-out positives")
    return (
        f'{accuracy}\n<div class="row grid">{figure("Candidates by score", candidates, "strong is kept")}'
        f"{figure('Held-out positives by score', positives)}</div>"
    )


def duplicates(clusters: Duplicates) -> str:
    """Charts of cluster sizes and of the share removed from each source, and pairs of near duplicates."""
    charts = []
    if clusters.cluster_sizes:
        charts.append(figure("Clusters", _cluster_sizes(clusters.cluster_sizes), "by number of documents"))
    if clusters.removed_share:
        shares = clusters.removed_share.items()
        removed = bars((Bar(escape(name), ((share, "strong"),), percent(share, 1)) for name, share in shares), 1.0)
        charts.append(figure("Removed", removed, "share of each source's documents"))
    pairs = "\n".join(_pair(pair) for pair in _similar_pairs(clusters.samples))
    return (
        f"<p>{count(clusters.components)} clusters of near duplicates; one document of each was kept.</p>\n"
        f'<div class="row halves">{"".join(charts)}</div>\n{pairs}'
    )


def _cluster_sizes(clusters: dict[int, int]) -> str:
    """A bar chart of clusters by size, in the classes of ``SIZES``, up to the last that is not empty."""
    rows = []
    for low, high in SIZES:
        name = f"{low}+" if high is None else str(low) if low == high else f"{low}\N{EN DASH}{high}"
        rows.append((name, sum(n for size, n in clusters.items() if low <= size and (high is None or size <= high))))
    last = max(place for place, (_, n) in enumerate(rows) if n or place == 0)
    return bars(Bar(name, ((n, "strong"),), brief(n)) for name, n in rows[: last + 1])


def _similar_pairs(pairs: Sequence[DuplicatePair]) -> Sequence[DuplicatePair]:
    """The pairs to show: those with similar excerpts, since the summary has only the beginnings of long documents."""

    def similarity(pair: DuplicatePair) -> float:
        kept, dropped = pair.text_kept.split(), pair.text_dropped.split()
        return SequenceMatcher(None, kept, dropped, autojunk=False).ratio()

    similar = [pair for pair in pairs if similarity(pair) >= MIN_SIMILARITY]
    return (similar or pairs)[:PAIRS_SHOWN]


def _pair(pair: DuplicatePair) -> str:
    """The two texts side by side from shortly before their first difference, differing words marked."""
    texts = (pair.text_kept, pair.text_dropped)
    common = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*texts, strict=False)))
    start = max(0, common - LEAD_CHARACTERS) if common < min(map(len, texts)) else 0
    kept, dropped = (_excerpt(whole, start) for whole in texts)
    bare_kept, bare_dropped = ([word.strip() for word in words] for words in (kept, dropped))
    changes = SequenceMatcher(None, bare_kept, bare_dropped, autojunk=False).get_opcodes()
    if changes and start + EXCERPT_CHARACTERS < max(map(len, texts)):
        changes[-1] = ("equal", *changes[-1][1:])  # the ends of the excerpts differ by the cut alone
    left = "".join(_mark(kept[a:b], tag) for tag, a, b, _, _ in changes)
    right = "".join(_mark(dropped[a:b], tag) for tag, _, _, a, b in changes)
    jaccard = f"Jaccard {pair.jaccard:.3f}"
    return (
        f'<div class="pair">{_card("kept", pair.kept, "", left)}{_card("dropped", pair.dropped, jaccard, right)}</div>'
    )


def _excerpt(whole: str, start: int) -> list[str]:
    """The words of an excerpt, each with the whitespace after it."""
    excerpt = whole[start : start + EXCERPT_CHARACTERS]
    if start:
        excerpt = f"{ELLIPSIS}{excerpt.partition(' ')[2]}"
    if start + EXCERPT_CHARACTERS < len(whole):
        excerpt = f"{excerpt.rpartition(' ')[0]}{ELLIPSIS}"
    return re.findall(r"\S+\s*", excerpt)


def _mark(words: Sequence[str], tag: str) -> str:
    whole = "".join(words)
    marked = whole.rstrip()
    return escape(whole) if tag == "equal" or not marked else f"<mark>{escape(marked)}</mark>{whole[len(marked) :]}"


def _card(label: str, name: str, note: str, body: str) -> str:
    """A text under its name. ``body`` is markup, the rest is text."""
    quiet = f' <span class="quiet">{escape(note)}</span>' if note else ""
    return f'<div><span class="quiet">{escape(label)}</span> <code>{escape(name)}</code>{quiet}<p>{body}</p></div>'


def exact(result: Exact) -> str:
    """A table of the rules, and sample cuts."""
    cuts = "".join(
        _card(cut.rule.replace("_", " "), cut.document, "removed", f"<mark>{escape(cut.text)}</mark>")
        for cut in result.cuts
    )
    return f'{rules(result.rules)}<div class="pair">{cuts}</div>' if cuts else rules(result.rules)


def decontamination(result: Decontamination) -> str:
    """Counts of documents cut and dropped, a table of cuts by task, and sample cuts."""
    common = f"; frequent n-grams left alone: {count(result.ngrams_common)}" if result.ngrams_common else ""
    html = (
        f"<p>Documents cut around task texts: {count(result.documents_cut)}; "
        f"dropped: {count(result.documents_dropped)}{common}.</p>"
    )
    by_count = sorted(result.cuts_by_task.items(), key=lambda item: (-item[1], item[0]))
    if rows := [row([escape(task), count(n)]) for task, n in by_count if n]:
        html += table(["task", "cuts"], rows)
    cuts = "".join(_cut(cut) for cut in result.samples[:CUTS_SHOWN])
    return f'{html}<div class="pair">{cuts}</div>' if cuts else html


def _cut(cut: Cut) -> str:
    match = re.search(r"\W+".join(map(re.escape, cut.ngram.split())), cut.text, re.IGNORECASE)
    begin, end = match.span() if match else (0, 0)
    body = f"{escape(cut.text[:begin])}<mark>{escape(cut.text[begin:end])}</mark>{escape(cut.text[end:])}"
    return _card(", ".join(cut.tasks), cut.document, "", body)


def documents(summary: Summary) -> str:
    """Sample documents of each stage and fate, from as many sources as there are."""
    parts = []
    for stage in summary.stages:
        by_fate = sorted(stage.shown, key=lambda document: (document.fate != "kept", document.fate))
        for fate, group in groupby(by_fate, key=lambda document: document.fate):
            chosen = sorted(_interleave_sources(group)[:DOCUMENTS_SHOWN], key=_order)
            name = "kept" if fate == "kept" else f"dropped as {fate.replace('_', ' ')}"
            cards = "".join(map(_document, chosen))
            parts.append(f'<h3>{escape(stage.name)}: {escape(name)}</h3>\n<div class="pair">{cards}</div>')
    return "\n".join(parts)


def _interleave_sources(documents: Iterable[SampleDocument]) -> list[SampleDocument]:
    """The first document of every source, then the second of each, and so on."""
    by_source = defaultdict(list)
    for document in documents:
        by_source[document.source].append(document)
    turns = zip_longest(*by_source.values())
    return [document for document in chain.from_iterable(turns) if document is not None]


def _order(document: SampleDocument) -> tuple[float, str, str]:
    return (-(document.score or 0.0), document.source, document.id)


def _document(document: SampleDocument) -> str:
    score = "" if document.score is None else f"score {document.score:.2f}"
    more = ELLIPSIS if len(document.text) == SAMPLE_CHARACTERS else ""
    name = document.id.removeprefix(f"{document.source}/")
    return _card(document.source, name, score, f"{escape(document.text)}{more}")
