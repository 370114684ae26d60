"""Excerpts of texts for a report, with marked parts: pairs of near duplicates, cuts, sample documents."""

from __future__ import annotations

import re
from collections import defaultdict
from difflib import SequenceMatcher
from itertools import chain, groupby, takewhile, zip_longest
from typing import TYPE_CHECKING

from mtnlg_data.summary import KEPT
from mtnlg_data.tally import EXCERPT_CHARACTERS as SAMPLE_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_data.summary import Cut, DuplicatePair, Example, Stage

    Text = list[tuple[str, bool]]  # its parts, and whether each is marked

PAIRS_SHOWN = 4
DOCUMENTS_SHOWN = 6  # of each fate in each stage
MIN_SIMILARITY = 0.7  # of the two texts of a pair that is shown
EXCERPT_CHARACTERS = 420
LEAD_CHARACTERS = 100  # before the first difference
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def similar_pairs(pairs: Sequence[DuplicatePair]) -> Sequence[DuplicatePair]:
    """The pairs to show: those with similar excerpts, since the summary has only the beginnings of long documents."""

    def similarity(pair: DuplicatePair) -> float:
        kept, dropped = pair.text_kept.split(), pair.text_dropped.split()
        return SequenceMatcher(None, kept, dropped, autojunk=False).ratio()

    similar = [pair for pair in pairs if similarity(pair) >= MIN_SIMILARITY]
    return (similar or pairs)[:PAIRS_SHOWN]


def side_by_side(pair: DuplicatePair) -> tuple[Text, Text]:
    """The two texts from shortly before their first difference, differing words marked."""
    texts = (pair.text_kept, pair.text_dropped)
    common = sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*texts, strict=False)))
    start = max(0, common - LEAD_CHARACTERS) if common < min(map(len, texts)) else 0
    kept, dropped = (_excerpt(whole, start) for whole in texts)
    bare_kept, bare_dropped = ([word.strip() for word in words] for words in (kept, dropped))
    changes = SequenceMatcher(None, bare_kept, bare_dropped, autojunk=False).get_opcodes()
    if changes and start + EXCERPT_CHARACTERS < max(map(len, texts)):
        changes[-1] = ("equal", *changes[-1][1:])  # the ends of the excerpts differ by the cut alone
    left = [part for tag, a, b, _, _ in changes for part in _marked(kept[a:b], tag)]
    return left, [part for tag, _, _, a, b in changes for part in _marked(dropped[a:b], tag)]


def _excerpt(whole: str, start: int) -> list[str]:
    """The words of an excerpt, each with the whitespace after it."""
    excerpt = whole[start : start + EXCERPT_CHARACTERS]
    if start:
        excerpt = f"{ELLIPSIS}{excerpt.partition(' ')[2]}"
    if start + EXCERPT_CHARACTERS < len(whole):
        excerpt = f"{excerpt.rpartition(' ')[0]}{ELLIPSIS}"
    return re.findall(r"\S+\s*", excerpt)


def _marked(words: Sequence[str], tag: str) -> Text:
    whole = "".join(words)
    marked = whole.rstrip()
    return [(whole, False)] if tag == "equal" else [(marked, True), (whole[len(marked) :], False)]


def around_ngram(cut: Cut) -> Text:
    """The text of a cut, its n-gram marked."""
    match = re.search(r"\W+".join(map(re.escape, cut.ngram.split())), cut.text, re.IGNORECASE)
    begin, end = match.span() if match else (0, 0)
    return [(cut.text[:begin], False), (cut.text[begin:end], True), (cut.text[end:], False)]


def by_fate(stage: Stage) -> Iterator[tuple[str, list[Example]]]:
    """Sample documents of each fate, kept ones first, from as many sources as there are."""
    ordered = sorted(stage.shown, key=lambda document: (document.fate != KEPT, document.fate))
    for fate, group in groupby(ordered, key=lambda document: document.fate):
        by_source = defaultdict(list)
        for document in group:
            by_source[document.source].append(document)
        in_turn = [document for document in chain.from_iterable(zip_longest(*by_source.values())) if document]
        yield fate, sorted(in_turn[:DOCUMENTS_SHOWN], key=lambda one: (-(one.score or 0.0), one.source, one.id))


def beginning(document: Example) -> Text:
    """The text of a sample document; an ellipsis where there is more of it."""
    return [(document.text + (ELLIPSIS if len(document.text) == SAMPLE_CHARACTERS else ""), False)]
