"""Which paragraphs of a page are its text: jusText's classes, the same as the package's on every page.

Pomikálek, "Removing Boilerplate and Duplicate Content from Web Corpora" (2011). Each paragraph gets a class by itself:

    bad        more than a fifth in links, a copyright sign, a list to choose from; or long with few stop words
    short      under ``length_low`` characters, none of them in a link
    good       over ``length_high`` characters, of its words a share from ``stop_high`` on stop words
    neargood   what lies between

and then a final one by its neighbours: a short one becomes what stands on both sides of it, or good beside near-good; a
near-good one bad only between bad ones; a heading a little before a good one good.

The package looks for neighbours from every paragraph anew and joins a paragraph's text for every question asked of it,
quadratic in pages of many short paragraphs. Here one sweep each way finds them all.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import justext
from pydantic import Field

from mtnlg_data.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .paragraphs import Paragraph

Class = Literal["good", "neargood", "short", "bad"]
FINAL: frozenset[Class] = frozenset({"good", "bad"})
FINAL_OR_NEAR: frozenset[Class] = frozenset({"good", "bad", "neargood"})
COPYRIGHT = re.compile("\N{COPYRIGHT SIGN}|&copy")


class BoilerplateSettings(Settings):
    """Where jusText draws its lines: the package's defaults, with which the paper used it (paper.md 4.2)."""

    length_low: int = Field(70, ge=0)  # characters
    length_high: int = Field(200, ge=0)  # characters
    stop_low: float = Field(0.30, ge=0, le=1)
    stop_high: float = Field(0.32, ge=0, le=1)
    most_linked: float = Field(0.2, ge=0, le=1)  # share of a paragraph's characters that stand in links
    heading_distance: int = Field(200, ge=0)  # characters between a heading and the good paragraph that it heads
    headings_first: bool = False  # raise short headings before all else, as the package means to but never does


def main_text(paragraphs: Sequence[Paragraph], settings: BoilerplateSettings) -> str:
    """The good ones of a page's paragraphs, parted by blank lines."""
    classes = revised(paragraphs, classes_of(paragraphs, settings), settings)
    kept = (paragraph.text for paragraph, found in zip(paragraphs, classes, strict=True) if found == "good")
    return "\n\n".join(kept)


@cache
def stop_words() -> frozenset[str]:
    """The frequent words of English, out of the package's list: data under its own licence, read from where it is."""
    return frozenset(justext.get_stoplist("English"))


def classes_of(paragraphs: Sequence[Paragraph], settings: BoilerplateSettings) -> list[Class]:
    """The class of each paragraph by itself."""
    stop = stop_words()
    return [_class_of(paragraph, stop, settings) for paragraph in paragraphs]


def _class_of(paragraph: Paragraph, stop: frozenset[str], settings: BoilerplateSettings) -> Class:
    text, linked = paragraph.text, paragraph.linked
    length = len(text)
    if linked / length > settings.most_linked or paragraph.choice or COPYRIGHT.search(text):
        return "bad"
    if length < settings.length_low:
        return "bad" if linked else "short"
    words = text.lower().split()
    density = sum(map(stop.__contains__, words)) / len(words)
    if density >= settings.stop_high:
        return "good" if length > settings.length_high else "neargood"
    return "neargood" if density >= settings.stop_low else "bad"


def revised(paragraphs: Sequence[Paragraph], alone: Sequence[Class], settings: BoilerplateSettings) -> list[Class]:
    """The final class of each paragraph, good or bad, given the class of each by itself."""
    classes = list(alone)
    if settings.headings_first:
        for place in _headings(paragraphs, classes, settings.heading_distance):
            classes[place] = "neargood" if classes[place] == "short" else classes[place]
    classes = _without_short(classes)
    after = _behind(classes, FINAL)
    for place, found in enumerate(classes):
        if found == "neargood":
            before = classes[place - 1] if place else "bad"
            classes[place] = "bad" if before == after[place] == "bad" else "good"
    for place in _headings(paragraphs, classes, settings.heading_distance):
        classes[place] = "good" if alone[place] != "bad" else "bad"
    return classes


def _headings(paragraphs: Sequence[Paragraph], classes: Sequence[Class], distance: int) -> list[int]:
    """Where headings stand that are not good, so many characters before a good paragraph."""
    starts = [0, *accumulate(len(paragraph.text) for paragraph in paragraphs)]
    good, found = None, []
    for place in reversed(range(len(classes))):
        if classes[place] == "good":
            good = place
        elif good is not None and paragraphs[place].heading and starts[good] - starts[place + 1] <= distance:
            found.append(place)
    return found


def _without_short(alone: Sequence[Class]) -> list[Class]:
    before, after = _ahead(alone, FINAL), _behind(alone, FINAL)
    near_before, near_after = _ahead(alone, FINAL_OR_NEAR), _behind(alone, FINAL_OR_NEAR)
    classes = list(alone)
    for place, found in enumerate(alone):
        if found != "short":
            continue
        if before[place] == after[place]:
            classes[place] = before[place]
        else:
            near = near_before if before[place] == "bad" else near_after
            classes[place] = "good" if near[place] == "neargood" else "bad"
    return classes


def _ahead(classes: Iterable[Class], counted: frozenset[Class]) -> list[Class]:
    """For each place, the last class before it that counts; bad where there is none."""
    last: Class = "bad"
    found = []
    for each in classes:
        found.append(last)
        if each in counted:
            last = each
    return found


def _behind(classes: Sequence[Class], counted: frozenset[Class]) -> list[Class]:
    """For each place, the next class after it that counts; bad where there is none."""
    return _ahead(reversed(classes), counted)[::-1]
