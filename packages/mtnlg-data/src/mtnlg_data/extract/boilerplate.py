"""Boilerplate removal: jusText's paragraph classes, the same as the package's on every page.

Pomikálek, "Removing Boilerplate and Duplicate Content from Web Corpora" (2011). Each paragraph is first classified by
itself:

    bad        more than a fifth in links, a copyright sign, inside a <select>; or long with few stop words
    short      under ``length_low`` characters, none of them in a link
    good       over ``length_high`` characters, with a share of stop words of at least ``stop_high``
    neargood   in between

Of ``layout``'s paragraphs, code in a <pre>, which has few stop words, is short instead of bad. All are then classified
by their neighbours: a short paragraph becomes what both its neighbours are, or good beside near-good; near-good
becomes bad only between bad ones; a heading shortly before a good paragraph becomes good.

The package searches for neighbours from each paragraph anew and joins its text at every access, which is quadratic in
pages of many short paragraphs. Here one sweep in each direction finds all neighbours.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import justext
import pycld2

from mtnlg_data.settings import Settings, setting

from .language import ENGLISH, text_length

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .paragraphs import Paragraph

ParagraphClass = Literal["good", "neargood", "short", "bad"]
FINAL: frozenset[ParagraphClass] = frozenset({"good", "bad"})
FINAL_OR_NEAR: frozenset[ParagraphClass] = frozenset({"good", "bad", "neargood"})
#: JusText's names of languages that CLD2 calls otherwise, by CLD2's code.
STOP_LISTS = {
    "no": "Norwegian_Bokmal",
    "nn": "Norwegian_Nynorsk",
    "ht": "Haitian",
    "fy": "West_Frisian",
    "war": "Waray_Waray",
}
COPYRIGHT_SIGN = "\N{COPYRIGHT SIGN}"
LENGTH_LOW = 70  # of English, as the next
LENGTH_HIGH = 200


class BoilerplateSettings(Settings):
    """jusText's thresholds; the defaults for English are the package's, which the paper uses (paper.md 4.2)."""

    length_low: int | None = setting(
        None,
        "A shorter paragraph is short or bad; if not given 70, and fewer in languages of short texts.",
        unit="characters",
        paper="70",
        ge=0,
    )
    length_high: int | None = setting(
        None,
        "A longer one with enough stop words is good; if not given 200, or 70 in languages without a stop list, and "
        "fewer in languages of short texts.",
        unit="characters",
        paper="200",
        ge=0,
    )
    stop_low: float = setting(0.30, "Stop words of a nearly good paragraph.", unit="share", paper="0.3", ge=0, le=1)
    stop_high: float = setting(0.32, "Stop words of a good paragraph.", unit="share", paper="0.32", ge=0, le=1)
    most_linked: float = setting(0.2, "Most text inside links.", unit="share", paper="0.2", ge=0, le=1)
    heading_distance: int = setting(
        200, "Most text between a heading and its good paragraph.", unit="characters", paper="200", ge=0
    )
    headings_first: bool = setting(False, "Raise short headings first, which jusText intends but never does.")
    layout: bool = setting(
        False, "Keep spaces between inline tags, lines of <pre>, and formulas once, which jusText does not."
    )


def main_text(paragraphs: Sequence[Paragraph], settings: BoilerplateSettings, language: str = ENGLISH) -> str:
    """The good paragraphs of a page, separated by blank lines; ``language`` is a code of CLD2's."""
    classes = revise_classes(paragraphs, classify(paragraphs, settings, language), settings)
    return "\n\n".join(paragraph.text for paragraph, kind in zip(paragraphs, classes, strict=True) if kind == "good")


@cache
def stop_words(language: str = ENGLISH) -> frozenset[str]:
    """JusText's stop list for a language, empty where it has none.

    It is read from the package since it is data under its own licence.
    """
    names = {code: name.title() for name, code in pycld2.LANGUAGES} | STOP_LISTS
    name = names.get(language)
    return frozenset(justext.get_stoplist(name)) if name in justext.get_stoplists() else frozenset()


def classify(
    paragraphs: Sequence[Paragraph], settings: BoilerplateSettings, language: str = ENGLISH
) -> list[ParagraphClass]:
    """Classify each paragraph by itself (jusText's context-free step).

    Without a stop list all that counts is length and links, the package's mode for any language; then a paragraph that
    is not short is good, unless ``length_high`` is given.
    """
    stop = stop_words(language)
    low = text_length(settings.length_low, LENGTH_LOW, language)
    high = text_length(settings.length_high, LENGTH_HIGH if stop else LENGTH_LOW, language)
    if not stop:
        settings = settings.model_copy(update={"stop_low": 0.0, "stop_high": 0.0})
    most_linked = settings.most_linked
    classes: list[ParagraphClass] = []
    for text, link_length, _, in_select, preformatted in paragraphs:
        length = len(text)
        if link_length / length > most_linked or in_select or COPYRIGHT_SIGN in text or "&copy" in text:
            classes.append("bad")
        elif length < low:
            classes.append("bad" if link_length else "short")
        else:
            words = text.lower().split()
            density = sum(map(stop.__contains__, words)) / len(words)
            if density >= settings.stop_high:
                classes.append("good" if length > high else "neargood")
            else:
                classes.append("neargood" if density >= settings.stop_low else "short" if preformatted else "bad")
    return classes


def revise_classes(
    paragraphs: Sequence[Paragraph], context_free: Sequence[ParagraphClass], settings: BoilerplateSettings
) -> list[ParagraphClass]:
    """The final class of each paragraph, good or bad, by its neighbours (jusText's context-sensitive step)."""
    classes = list(context_free)
    if settings.headings_first:
        for i in _headings(paragraphs, classes, settings.heading_distance):
            classes[i] = "neargood" if classes[i] == "short" else classes[i]
    if "short" in classes:
        classes = _resolve_short(classes)
    following = _next_class(classes, FINAL)
    for i, kind in enumerate(classes):
        if kind == "neargood":
            previous = classes[i - 1] if i else "bad"
            classes[i] = "bad" if previous == following[i] == "bad" else "good"
    for i in _headings(paragraphs, classes, settings.heading_distance):
        classes[i] = "good" if context_free[i] != "bad" else "bad"
    return classes


def _headings(paragraphs: Sequence[Paragraph], classes: Sequence[ParagraphClass], distance: int) -> list[int]:
    """Indices of the headings that are not good, at most ``distance`` characters before a good paragraph."""
    if not any(paragraph.is_heading for paragraph in paragraphs):
        return []
    starts = [0, *accumulate(len(paragraph.text) for paragraph in paragraphs)]
    next_good, headings = None, []
    for i in reversed(range(len(classes))):
        if classes[i] == "good":
            next_good = i
        elif next_good is not None and paragraphs[i].is_heading and starts[next_good] - starts[i + 1] <= distance:
            headings.append(i)
    return headings


def _resolve_short(classes: Sequence[ParagraphClass]) -> list[ParagraphClass]:
    previous, following = _previous_class(classes, FINAL), _next_class(classes, FINAL)
    previous_or_near, following_or_near = _previous_class(classes, FINAL_OR_NEAR), _next_class(classes, FINAL_OR_NEAR)
    resolved = list(classes)
    for i, kind in enumerate(classes):
        if kind != "short":
            continue
        if previous[i] == following[i]:
            resolved[i] = previous[i]
        else:
            nearest = previous_or_near if previous[i] == "bad" else following_or_near
            resolved[i] = "good" if nearest[i] == "neargood" else "bad"
    return resolved


def _previous_class(classes: Iterable[ParagraphClass], kinds: frozenset[ParagraphClass]) -> list[ParagraphClass]:
    """For each index, the last class before it that is one of ``kinds``; bad where there is none."""
    last: ParagraphClass = "bad"
    previous = []
    for kind in classes:
        previous.append(last)
        if kind in kinds:
            last = kind
    return previous


def _next_class(classes: Sequence[ParagraphClass], kinds: frozenset[ParagraphClass]) -> list[ParagraphClass]:
    """For each index, the next class after it that is one of ``kinds``; bad where there is none."""
    return _previous_class(reversed(classes), kinds)[::-1]
