"""Boilerplate removal: jusText's paragraph classes, the same as the package's on every page without custom elements.

Pomikálek, "Removing Boilerplate and Duplicate Content from Web Corpora" (2011). Each paragraph is first classified by
itself:

    bad        more than a fifth in links, a copyright sign, inside a <select>; or long with few stop words
    short      under ``length_low`` characters, none of them in a link
    good       over ``length_high`` characters, with a share of stop words of at least ``stop_high``
    neargood   in between

With ``layout``, a <pre> with few stop words, as code has, is short instead of bad. Every paragraph is then classified
by its neighbours: a short paragraph takes the class that both neighbours have, or good beside near-good; near-good
becomes bad only between bad ones; a heading shortly before a good paragraph becomes good.

The package restarts its search for neighbours at each paragraph and joins its text at every access, which takes
quadratic time on pages of many short paragraphs. Here one sweep in each direction finds all neighbours.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pycld2

from mtnlg_data.quantities import characters, share
from mtnlg_data.settings import Settings, setting
from mtnlg_data.text.characters import SPACE, code_at, code_points, fold_case
from mtnlg_data.text.compiled import jit

from .html_tags import HASH_FACTOR, IN_SELECT, IS_HEADING, Lookup, find, lookup_of
from .language import ENGLISH, text_length
from .markup import matches, space_table
from .paragraphs import CHARACTERS, END, LINKED, MARKED, PREFORMATTED

if TYPE_CHECKING:
    from mtnlg_data.array_types import Bools, Int64s, UInt8s, UInt32s

    from .paragraphs import Page

    Classes = UInt8s

BAD, SHORT, NEAR_GOOD, GOOD = range(4)  # classes of paragraphs
#: CLD2's language code → jusText's name of the language, where CLD2 names it differently.
STOP_LISTS = {
    "no": "Norwegian_Bokmal",
    "nn": "Norwegian_Nynorsk",
    "ht": "Haitian",
    "fy": "West_Frisian",
    "war": "Waray_Waray",
}
COPYRIGHT_SIGN, DOTTED_I, COMBINING_DOT = map(ord, "\N{COPYRIGHT SIGN}İ\u0307")
COPYRIGHT_NAME = np.frombuffer(b"&copy", np.uint8)
AMPERSAND, LINE_FEED = b"&\n"
CASED = 0x20000  # code points from here on have no lower case
LENGTH_LOW = 70  # of English, as the next
LENGTH_HIGH = 200


class BoilerplateSettings(Settings):
    """jusText's thresholds; the defaults for English are the package's, which the paper uses (paper.md 4.2)."""

    length_low: int | None = characters(
        None,
        "A shorter paragraph is short or bad; default 70, less in languages of short texts.",
        paper="70",
    )
    length_high: int | None = characters(
        None,
        "A longer one with enough stop words is good; default 200, or 70 in languages without a stop list, and "
        "less in languages of short texts.",
        paper="200",
    )
    stop_low: float = share(0.30, "Stop words of a nearly good paragraph.", paper="0.3")
    stop_high: float = share(0.32, "Stop words of a good paragraph.", paper="0.32")
    most_linked: float = share(0.2, "Most text inside links.", paper="0.2")
    heading_distance: int = characters(200, "Maximum text between a heading and its good paragraph.", paper="200")
    layout: bool = setting(
        False, "Keep spaces between inline tags and lines of <pre>, and write formulas once; jusText does not."
    )


def main_text(page: Page, settings: BoilerplateSettings, language: str = ENGLISH) -> str:
    """The good paragraphs of a page, separated by blank lines; ``language`` is a CLD2 code."""
    return join(page, revise_classes(page, classify(page, settings, language), settings) == GOOD)


def join(page: Page, kept: Bools) -> str:
    """The paragraphs for which ``kept`` is true, separated by blank lines."""
    return str(_join(page.text, page.columns[END], kept).tobytes(), "utf-8")


@cache
def stop_words(language: str = ENGLISH) -> frozenset[str]:
    """The jusText stop list for a language; empty if it has none.

    It is read from the installed package because it is data under its own licence.
    """
    names = {code: name.title() for name, code in pycld2.LANGUAGES} | STOP_LISTS
    spec = find_spec("justext")  # which is not imported
    path = Path(spec.origin or "").parent / "stoplists" / f"{names.get(language)}.txt" if spec else Path()
    return frozenset(path.read_text("utf-8").lower().splitlines()) if path.is_file() else frozenset()


@cache
def _stop_table(language: str) -> Lookup:
    return lookup_of({tuple(map(ord, fold_case(word))): 1 for word in stop_words(language)})


@cache
def _lower_case() -> UInt32s:
    """Lower case of the code points below ``CASED``; words that differ only in case have the same hash."""
    return code_points(fold_case("".join(map(chr, range(CASED)))))


def classify(page: Page, settings: BoilerplateSettings, language: str = ENGLISH) -> Classes:
    """Classify each paragraph by itself (jusText's context-free step).

    Without a stop list only length and links count (the package's mode for any language); a paragraph that is not short
    is then good, unless ``length_high`` is given.
    """
    stops = _stop_table(language)
    has_stops = bool(stops.keys.any())
    low = text_length(settings.length_low, LENGTH_LOW, language)
    high = text_length(settings.length_high, LENGTH_HIGH if has_stops else LENGTH_LOW, language)
    shares = settings.most_linked, settings.stop_low * has_stops, settings.stop_high * has_stops
    return _classify(page.text, page.columns, (low, high), shares, (space_table(), _lower_case(), stops))


def revise_classes(page: Page, context_free: Classes, settings: BoilerplateSettings) -> Classes:
    """The final class of each paragraph, good or bad, by its neighbours (jusText's context-sensitive step)."""
    return _revise(page.columns, context_free, settings.heading_distance)


@jit
def _classify(
    text: UInt8s,
    columns: Int64s,
    lengths: tuple[int, int],
    shares: tuple[float, float, float],
    tables: tuple[UInt8s, UInt32s, Lookup],
) -> Classes:
    (low, high), (most_linked, stop_low, stop_high), (table, lower, stops) = lengths, shares, tables
    classes, place = np.empty(columns.shape[1], np.uint8), 0
    for i in range(len(classes)):
        end = columns[END, i]
        words = stopped = 0
        in_word, has_sign = False, False
        hashed = np.uint64(0)
        while place < end:
            code, size = code_at(text, place)
            if table[code] & SPACE:
                stopped += in_word and find(stops, hashed) == 1
                in_word, hashed = False, np.uint64(0)
            else:
                words += not in_word
                in_word = True
                has_sign = has_sign or code == COPYRIGHT_SIGN
                has_sign = has_sign or (code == AMPERSAND and matches(text[:end], place, COPYRIGHT_NAME))
                hashed = (hashed + np.uint64(lower[code] if code < CASED else code)) * HASH_FACTOR
                if code == DOTTED_I:
                    hashed = (hashed + np.uint64(COMBINING_DOT)) * HASH_FACTOR
            place += size
        stopped += in_word and find(stops, hashed) == 1
        characters, linked = columns[CHARACTERS, i], columns[LINKED, i]
        density = stopped / max(words, 1)
        if has_sign or columns[MARKED, i] & IN_SELECT or linked / characters > most_linked:
            classes[i] = BAD
        elif characters < low:
            classes[i] = BAD if linked else SHORT
        elif density >= stop_high:
            classes[i] = GOOD if characters > high else NEAR_GOOD
        elif density >= stop_low:
            classes[i] = NEAR_GOOD
        else:
            classes[i] = SHORT if columns[PREFORMATTED, i] else BAD
    return classes


@jit
def _revise(columns: Int64s, context_free: Classes, distance: int) -> Classes:
    classes, count = context_free.copy(), len(context_free)
    before, after = _neighbours(classes, GOOD)
    near_before, near_after = _neighbours(classes, NEAR_GOOD)
    for i in range(count):
        if classes[i] == SHORT:
            nearest = near_before[i] if before[i] == BAD else near_after[i]
            classes[i] = before[i] if before[i] == after[i] else GOOD if nearest == NEAR_GOOD else BAD
    _, after = _neighbours(classes, GOOD)
    for i in range(count):
        if classes[i] == NEAR_GOOD:
            classes[i] = BAD if (not i or classes[i - 1] == BAD) and after[i] == BAD else GOOD
    is_heading = _headings(columns, classes, distance)
    for i in range(count):
        if is_heading[i]:
            classes[i] = GOOD if context_free[i] != BAD else BAD
    return classes


@jit
def _neighbours(classes: Classes, least: int) -> tuple[Classes, Classes]:
    """Class of the nearest paragraph before and after each that is bad or at least ``least``; bad if there is none."""
    count = len(classes)
    before, after = np.zeros(count, np.uint8), np.zeros(count, np.uint8)
    for i in range(1, count):
        k = count - i
        before[i] = classes[i - 1] if classes[i - 1] == BAD or classes[i - 1] >= least else before[i - 1]
        after[k - 1] = classes[k] if classes[k] == BAD or classes[k] >= least else after[k]
    return before, after


@jit
def _headings(columns: Int64s, classes: Classes, distance: int) -> Bools:
    """Whether each paragraph is a heading, not good, at most ``distance`` characters before a good paragraph."""
    is_heading, away = np.zeros(len(classes), np.bool_), distance + 1
    for i in range(len(classes) - 1, -1, -1):
        if classes[i] == GOOD:
            away = 0
        else:
            is_heading[i] = columns[MARKED, i] & IS_HEADING and away <= distance
            away += columns[CHARACTERS, i]
    return is_heading


@jit
def _join(text: UInt8s, ends: Int64s, kept: Bools) -> UInt8s:
    joined, size, begin = np.empty(len(text) + 2 * len(ends), np.uint8), 0, 0
    for i in range(len(ends)):
        if kept[i]:
            if size:
                joined[size : size + 2] = LINE_FEED
                size += 2
            joined[size : size + ends[i] - begin] = text[begin : ends[i]]
            size += ends[i] - begin
        begin = ends[i]
    return joined[:size]
