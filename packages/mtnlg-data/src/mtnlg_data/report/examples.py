"""The page's part for a person's eye: scores, pairs of near duplicates, cuts, documents that were kept and dropped."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

from mtnlg_data.tally import EXCERPT as SHOWN_CHARACTERS

from .charts import Bar, Layer, bars, histogram
from .markup import brief, count, figure, percent, row, table, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .summary_schema import Cut, Decontamination, Duplicates, Pair, Quality, Shown, Told

PAIRS_SHOWN = 4
CUTS_SHOWN = 6
DOCUMENTS_SHOWN = 6  # of each fate in each stage
ALIKE = 0.7
EXCERPT = 420
LEAD = 100
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
SIZES = ((2, 2), (3, 3), (4, 4), (5, 5), (6, 10), (11, 20), (21, 50), (51, 100), (101, None))


def quality(found: Quality) -> str:
    """How good the classifier is, and whom it keeps."""
    told = ""
    if found.accuracy is not None:
        area = f", area under the curve {found.auc:.3f}" if found.auc is not None else ""
        learnt = f"Learnt from {count(found.trained_on)} documents; on " if found.trained_on else "On "
        held = f"{count(found.held_out)} held-out ones" if found.held_out else "held-out documents"
        told = f"<p>{learnt}{held} the classifier is right in {percent(found.accuracy, 1)}{area}.</p>"
    if not found.edges:
        return told
    low, high = found.edges[0], found.edges[-1]
    ticks = [(0.0, f"{low:g}"), (0.5, f"{(low + high) / 2:g}"), (1.0, f"{high:g}")]
    judged = histogram(
        [Layer(found.candidates, "soft"), Layer(found.kept, "strong")], ticks, "Scores of the candidates and the kept"
    )
    positives = histogram([Layer(found.positives, "second")], ticks, "Scores of held-out positives")
    return (
        f'{told}\n<div class="row grid">{figure("Candidates by score", judged, "strong is kept")}'
        f"{figure('Held-out positives by score', positives)}</div>"
    )


def duplicates(found: Duplicates) -> str:
    """How many clusters there are of each size, what each source lost, and pairs."""
    alarms = "".join(f'<p class="absent">{text(alarm)}</p>' for alarm in found.alarms)
    told = f"<p>{count(found.components)} clusters of near duplicates; one document of each was kept.</p>"
    drawn = []
    if found.cluster_sizes:
        drawn.append(figure("Clusters", _clusters(found.cluster_sizes), "by the number of their documents"))
    if found.removed_share:
        shares = found.removed_share.items()
        lost = bars((Bar(text(name), ((share, "strong"),), percent(share, 1)) for name, share in shares), 1.0)
        drawn.append(figure("Removed", lost, "share of each source's documents"))
    pairs = "\n".join(_pair(pair) for pair in _telling(found.samples))
    return f'{told}{alarms}\n<div class="row halves">{"".join(drawn)}</div>\n{pairs}'


def _clusters(sizes: dict[int, int]) -> str:
    """Sizes above five in classes."""

    def within(low: int, high: int | None) -> int:
        return sum(n for size, n in sizes.items() if low <= size and (high is None or size <= high))

    classes = [(_class_name(low, high), within(low, high)) for low, high in SIZES]
    last = max(place for place, (_, n) in enumerate(classes) if n or place == 0)
    return bars(Bar(name, ((n, "strong"),), brief(n)) for name, n in classes[: last + 1])


def _class_name(low: int, high: int | None) -> str:
    return f"{low}+" if high is None else str(low) if low == high else f"{low}\N{EN DASH}{high}"


def _telling(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The pairs to show: the file holds the beginnings of long documents, and not all of those look alike."""

    def alike(pair: Pair) -> float:
        kept, dropped = pair.text_kept.split(), pair.text_dropped.split()
        return SequenceMatcher(None, kept, dropped, autojunk=False).ratio()

    telling = [pair for pair in pairs if alike(pair) >= ALIKE]
    return (telling or pairs)[:PAIRS_SHOWN]


def _pair(pair: Pair) -> str:
    """The two texts side by side from shortly before they part, the words that differ marked."""
    shorter = min(len(pair.text_kept), len(pair.text_dropped))
    alike = takewhile(lambda both: both[0] == both[1], zip(pair.text_kept, pair.text_dropped, strict=False))
    parting = sum(1 for _ in alike)
    start = max(0, parting - LEAD) if parting < shorter else 0
    kept, dropped = (_excerpt(whole, start) for whole in (pair.text_kept, pair.text_dropped))
    bare, other = ([word.strip() for word in words] for words in (kept, dropped))
    changes = SequenceMatcher(None, bare, other, autojunk=False).get_opcodes()
    if changes and start + EXCERPT < max(len(pair.text_kept), len(pair.text_dropped)):
        changes[-1] = ("equal", *changes[-1][1:])  # where the excerpts are cut they differ by the cut alone
    left = "".join(_words(kept[a:b], tag) for tag, a, b, _, _ in changes)
    right = "".join(_words(dropped[a:b], tag) for tag, _, _, a, b in changes)
    jaccard = f"Jaccard {pair.jaccard:.3f}"
    return (
        f'<div class="pair">{_card("kept", pair.kept, "", left)}{_card("dropped", pair.dropped, jaccard, right)}</div>'
    )


def _excerpt(whole: str, start: int) -> list[str]:
    """Words of the excerpt, each with the blanks behind it."""
    cut = whole[start : start + EXCERPT]
    if start:
        cut = f"{ELLIPSIS}{cut.partition(' ')[2]}"
    if start + EXCERPT < len(whole):
        cut = f"{cut.rpartition(' ')[0]}{ELLIPSIS}"
    return re.findall(r"\S+\s*", cut)


def _words(words: Sequence[str], tag: str) -> str:
    whole = "".join(words)
    marked = whole.rstrip()
    return text(whole) if tag == "equal" or not marked else f"<mark>{text(marked)}</mark>{whole[len(marked) :]}"


def _card(what: str, name: str, beside: str, body: str) -> str:
    """A text under its name. ``body`` is markup, the rest is text."""
    quiet = f' <span class="quiet">{text(beside)}</span>' if beside else ""
    return f'<div><span class="quiet">{text(what)}</span> <code>{text(name)}</code>{quiet}<p>{body}</p></div>'


def decontamination(found: Decontamination) -> str:
    """What was cut and for which task, with some of the cuts."""
    parts = f"<p>Documents cut around a text of a task: {count(found.documents_cut)}"
    parts += f"; given up: {count(found.documents_dropped)}"
    common = f"; n-grams left alone, since many documents hold them: {count(found.ngrams_common)}"
    parts += f"{common if found.ngrams_common else ''}.</p>"
    hit = sorted(((n, task) for task, n in found.cuts_by_task.items() if n), key=lambda item: (-item[0], item[1]))
    if hit:
        parts += table(["task", "cuts"], [row([text(task), count(n)]) for n, task in hit])
    cuts = "".join(_cut(cut) for cut in found.samples[:CUTS_SHOWN])
    return f'{parts}<div class="pair">{cuts}</div>' if cuts else parts


def _cut(cut: Cut) -> str:
    words = r"\W+".join(map(re.escape, cut.ngram.split()))
    found = re.search(words, cut.text, re.IGNORECASE)
    begin, end = found.span() if found else (0, 0)
    body = f"{text(cut.text[:begin])}<mark>{text(cut.text[begin:end])}</mark>{text(cut.text[end:])}"
    return _card(", ".join(cut.tasks), cut.document, "", body)


def documents(told: Told) -> str:
    """Documents of each fate, stage by stage, from as many sources as there are."""
    parts = []
    for stage in told.stages:
        by_fate = sorted(stage.shown, key=lambda shown: (shown.fate != "kept", shown.fate))
        for fate, group in groupby(by_fate, key=lambda shown: shown.fate):
            chosen = _spread(list(group))[:DOCUMENTS_SHOWN]
            cards = "".join(_document(shown) for shown in sorted(chosen, key=_order))
            name = "kept" if fate == "kept" else f"dropped as {fate.replace('_', ' ')}"
            parts.append(f'<h3>{text(stage.name)}: {text(name)}</h3>\n<div class="pair">{cards}</div>')
    return "\n".join(parts)


def _spread(shown: Sequence[Shown]) -> list[Shown]:
    """The first of every source, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    turns = []
    for document in shown:
        turns.append((seen[document.source], document))
        seen[document.source] += 1
    return [document for _, document in sorted(turns, key=lambda turn: turn[0])]


def _order(shown: Shown) -> tuple[float, str, str]:
    return (-(shown.score or 0.0), shown.source, shown.id)


def _document(shown: Shown) -> str:
    score = "" if shown.score is None else f"score {shown.score:.2f}"
    more = ELLIPSIS if len(shown.text) == SHOWN_CHARACTERS else ""
    return _card(shown.source, shown.id.removeprefix(f"{shown.source}/"), score, f"{text(shown.text)}{more}")
