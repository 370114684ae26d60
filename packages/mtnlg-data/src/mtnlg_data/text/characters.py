"""Properties of characters, and where lines and white space end, in UTF-8 texts or in arrays of code points.

The loops over texts are compiled by numba and read arrays of bytes: no text becomes a Python string.
"""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .compiled import jit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mtnlg_data.array_types import UInt8s, UInt32s

#: Kinds of characters. Those that EXTEND the character before them are Unicode's Extend, Format and ZWJ of the property
#: Word_Break (UAX #29): vowel signs, accents, joiners, soft hyphens. Characters of scripts without spaces are words by
#: themselves: those of Han, kana, bopomofo, Yi, Tangut and Nushu; and those of Thai, Lao, Tibetan, Burmese, Khmer and
#: Tai, including vowel signs and tone marks.
NO_WORD, EXTEND, LETTER, EAST_ASIAN, SOUTHEAST_ASIAN = range(5)
SIGNS = {"Mn", "Mc", "Me"}  # general categories
INSIDE_WORDS = "\u055b\u055c\u055e\U0001f3fb-\U0001f3ff"  # Armenian stress and question marks; emoji modifiers
PARTING = "\u200b\u0f0b\u1361"  # parts words as a space does: zero width space, Tibetan tsheg, Ethiopic wordspace
EAST_ASIAN_RANGES = (
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua000-\ua48c\uf900-\ufaff\uff66-\uff9f"
    "\U00016fe0-\U00018dff\U0001aff0-\U0001b2ff\U00020000-\U0003ffff"
)
SOUTHEAST_ASIAN_RANGES = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf\U00011700-\U0001174f"
)
#: Code points that include all letters, digits and white space of Unicode; beyond them are tags and variation
#: selectors.
LETTERED, TAGS = range(0x40000), range(0xE0000, 0xE1000)
#: Average size of a character of a script without spaces, in quarters of a word.
QUARTER, HALF = 1, 2
QUARTERS = {EAST_ASIAN: HALF, SOUTHEAST_ASIAN: QUARTER}
HANGUL = range(0xAC00, 0xD7A4)  # syllables, of two letters or three each
#: Properties of characters, as bits; those from ``SCRIPT_BIT`` on are one number: the ``QUARTERS``, or ``SYLLABLE``.
SPACE, IS_LETTER, MARK, TERMINAL, LINE_END, DIGIT = (np.uint8(1 << bit) for bit in range(6))
SCRIPT_BIT, SYLLABLE = 6, 3
#: Code points and ranges of them, in hexadecimal. Marks are ASCII punctuation, control characters, the ends of
#: sentences, and these, which CCNet normalises (Wenzek et al. 2020).
MARKS = (
    "AB B4 BB 2013 2014 2019 201C 201D 201E 2026 2236 2501 25BA 3001 3002 3008 3009 300A 300B 300C 300D 3010 3011 "
    "FF01 FF05 FF08 FF09 FF0C FF0E FF11 FF1A FF1B FF1F FF5E"
)
#: Characters of Unicode 15.0's property Sentence_Terminal, three Khmer signs and the Tibetan shad.
TERMINALS = (
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 F0D-F0E 104A-104B 1362 1367-1368 166E 1735-1736 "
    "17D4-17D6 17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D "
    "2047-2049 2E2E 2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F "
    "AAF0-AAF1 ABEB FE52 FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 "
    "11141-11143 111C5-111C6 111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 "
    "11641-11642 1173C-1173E 11944 11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F "
    "16AF5 16B37-16B38 16B44 16E98 1BC9F 1DA88"
)
#: Characters that join two letters, two digits or both if they are between them: MidLetter, MidNum, and MidNumLet with
#: the apostrophe, of UAX #29.
LETTER_JOINERS = ":\xb7\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a"
DIGIT_JOINERS = ",;\u037e\u0589\u060c\u060d\u066b\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
HEBREW_LETTERS = (slice(0x5D0, 0x5F3), slice(0xFB1D, 0xFB50))  # and marks between them
GERESH = 0x5F3  # punctuation of Hebrew that is a letter of words
JOINERS = "'.\u2018\u2019\u2024\ufe52\uff07\uff0e"
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # of ``str.splitlines``


@cache
def character_kinds() -> UInt8s:
    r"""Table over all code points: the kind of each; ``LETTER`` is what ``\w`` matches."""
    lettered, kinds = "".join(map(chr, LETTERED)), np.full(sys.maxunicode + 1, NO_WORD, np.uint8)
    for match in re.finditer(r"\w+", lettered):
        kinds[match.start() : match.end()] = LETTER
    others = [*np.flatnonzero(kinds[: len(lettered)] != LETTER).tolist(), *TAGS]
    kinds[[code for code in others if unicodedata.category(chr(code)) in {*SIGNS, "Cf"}]] = EXTEND
    kinds[[*map(ord, PARTING)]] = NO_WORD
    for lowest, kind, ranges in (
        (NO_WORD, EXTEND, INSIDE_WORDS),
        (LETTER, EAST_ASIAN, EAST_ASIAN_RANGES),
        (EXTEND, SOUTHEAST_ASIAN, SOUTHEAST_ASIAN_RANGES),
    ):
        for match in re.finditer(f"[{ranges}]+", lettered):
            part = kinds[match.start() : match.end()]
            part[part >= lowest] = kind
    return kinds


@cache
def character_table() -> UInt8s:
    """Properties of every code point, as bits: ``SPACE`` to ``DIGIT``, and its script's number."""
    every, table = "".join(map(chr, LETTERED)), np.zeros(sys.maxunicode + 1, np.uint8)
    for pattern, bit in ((r"\s+", SPACE), (r"\d+", DIGIT)):
        for match in re.finditer(pattern, every):
            table[match.start() : match.end()] |= bit
    table[[code for code in np.flatnonzero(character_kinds() >= LETTER).tolist() if chr(code).isalpha()]] |= IS_LETTER
    for kind, quarters in QUARTERS.items():
        table[character_kinds() == kind] |= np.uint8(quarters << SCRIPT_BIT)
    table[HANGUL] |= SYLLABLE << SCRIPT_BIT
    terminals = [*_listed(TERMINALS)]
    table[terminals] |= TERMINAL
    table[[*map(ord, string.punctuation), *range(32), *range(127, 160), *terminals, *_listed(MARKS)]] |= MARK
    table[[*map(ord, LINE_ENDS)]] |= LINE_END
    return table


def _listed(codes: str) -> Iterator[int]:
    for entry in codes.split():
        first, _, last = entry.partition("-")
        yield from range(int(first, 16), int(last or first, 16) + 1)


@jit
def code_at(data: NDArray[np.unsignedinteger[Any]], place: int) -> tuple[int, int]:
    """Code point that begins at this byte, and its length in bytes; in an array of code points, the one here, and 1."""
    if data.itemsize > 1:
        return int(data[place]), 1
    first = int(data[place])
    if first < 0x80:
        return first, 1
    if first < 0xE0:
        return (first & 0x1F) << 6 | int(data[place + 1]) & 0x3F, 2
    second = (int(data[place + 1]) & 0x3F) << 6 | int(data[place + 2]) & 0x3F
    if first < 0xF0:
        return (first & 0x0F) << 12 | second, 3
    return (first & 0x07) << 18 | second << 6 | int(data[place + 3]) & 0x3F, 4


@jit
def code_before(data: UInt8s, place: int) -> tuple[int, int]:
    """Code point that ends before this byte, and its length in bytes."""
    begin = place - 1
    while data[begin] & 0xC0 == 0x80:
        begin -= 1
    return code_at(data, begin)


@jit
def ends_sentence(bits: np.uint8) -> bool:
    """Whether a last character with these properties ends a sentence; Thai and related scripts need no mark."""
    return bool(bits & TERMINAL or bits >> SCRIPT_BIT == QUARTER)


@jit
def strip(data: UInt8s, begin: int, end: int, table: UInt8s) -> tuple[int, int]:
    """Bounds of a text without the white space around it; equal bounds if there is nothing else."""
    begin = space_end(data, begin, end, table)
    return begin, space_begin(data, begin, end, table)


@jit
def space_end(data: UInt8s, begin: int, end: int, table: UInt8s) -> int:
    """Where the white space that begins here ends, at ``end`` at the latest."""
    while begin < end:
        code, size = code_at(data, begin)
        if not table[code] & SPACE:
            break
        begin += size
    return begin


@jit
def space_begin(data: UInt8s, begin: int, end: int, table: UInt8s) -> int:
    """Where the white space that ends here begins, at ``begin`` at the earliest."""
    while begin < end:
        code, size = code_before(data, end)
        if not table[code] & SPACE:
            break
        end -= size
    return end


@jit
def is_ascii(data: UInt8s, begin: int, end: int) -> bool:
    """Whether these bytes are ASCII: characters of one byte each."""
    part, bits = data[begin:end], np.uint8(0)  # indices from 0 on are looked up many at a time
    for place in range(len(part)):
        bits = np.uint8(bits | part[place])
    return bool(bits < 0x80)


@jit
def line_end(data: UInt8s, begin: int, end: int, table: UInt8s) -> tuple[int, int]:
    """End of the line that begins here, and where the next one begins, as in ``str.splitlines``."""
    place = begin
    while place < end:
        if 32 <= data[place] < 0x80:  # no line ends here, as almost everywhere
            place += 1
            continue
        code, size = code_at(data, place)
        if table[code] & LINE_END:
            is_pair = code == 13 and place + 1 < end and data[place + 1] == 10
            return place, place + (2 if is_pair else size)
        place += size
    return end, end


@jit
def count_characters(data: UInt8s, begin: int, end: int) -> int:
    """Number of code points in these bytes."""
    part, count = data[begin:end], np.uint32(0)  # narrow: more of them in a vector
    for place in range(len(part)):
        count = np.uint32(count + np.uint32(part[place] & 0xC0 != 0x80))
    return int(count)


def code_points(text: str) -> UInt32s:
    """The code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def fold_case(text: str) -> str:
    """Lower-case a text and keep its length, so that offsets into the folded text hold for the original.

    ``str.lower`` alone turns "İ" into two characters and lower-cases "Σ" by its neighbours.
    """
    return text.replace("İ", "i").lower().replace("ς", "\N{GREEK SMALL LETTER SIGMA}")
