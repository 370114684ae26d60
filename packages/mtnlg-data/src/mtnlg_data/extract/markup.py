"""Split the bytes of an HTML page as libxml2 2.14 does, by the rules of HTML 5: tags, comments, references."""

from __future__ import annotations

import string
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.text.characters import SPACE
from mtnlg_data.text.compiled import jit

from .html_tags import HASH_FACTOR, MISSING, SCRIPT, Lookup, find

if TYPE_CHECKING:
    from mtnlg_data.array_types import UInt8s

    Bytes = UInt8s

#: Kinds of bytes: text; white space; white space that ends a line; "<"; "&"; part of a non-ASCII character.
LETTER, BLANK, LINE, LESS, AMPERSAND, WIDE = range(6)
KINDS = np.array([LETTER] * 128 + [WIDE] * 128, np.uint8)
KINDS[[*b"\t\v\f \x1c\x1d\x1e\x1f"]] = BLANK
KINDS[[*b"\n\r"]] = LINE
KINDS[[*b"<&"]] = LESS, AMPERSAND
BLANKS = b"\t\n\f\r "  # of HTML
IS_BLANK, ENDS_NAME, ENDS_ATTRIBUTE = np.zeros((3, 256), np.bool_)
IS_BLANK[[*BLANKS]] = ENDS_NAME[[*BLANKS, *b"/>"]] = ENDS_ATTRIBUTE[[*BLANKS, *b"/>="]] = True
LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
IS_LETTER, IN_WORD = np.zeros((2, 256), np.bool_)
IS_LETTER[[*string.ascii_letters.encode()]] = IN_WORD[[*f"{string.ascii_letters}{string.digits}_".encode()]] = True
NO_DIGIT = 99
DIGITS = np.full(256, NO_DIGIT, np.uint8)
DIGITS[[*string.hexdigits.encode()]] = [int(digit, 16) for digit in string.hexdigits]
MAX_CODE, REPLACEMENT, LAST_SPACE = 0x110000, 0xFFFD, 0x3000
C1_CODES = np.array([ord(bytes([byte]).decode("cp1252", "ignore") or chr(byte)) for byte in range(128, 160)])
LONGEST_ENTITY, LONGEST_UNENDED = 32, 6
HYPHENS, COMMENT_BEGIN, COMMENT_END, OTHER_COMMENT_END = (
    np.frombuffer(each, np.uint8) for each in (b"--", b"<!--", b"-->", b"--!>")
)
LESS_SIGN, SLASH, GREATER, EXCLAMATION, HYPHEN, EQUALS, SEMICOLON, HASH_SIGN, AMPERSAND_SIGN = b"</>!-=;#&"
LOWER_X, QUOTES, DECLARATIONS = ord("x"), tuple(b"\"'"), tuple(b"!?")


@cache
def space_table() -> UInt8s:
    """Which code points are white space, marked as in `character_table`, but quick to build."""
    table = np.zeros(MAX_CODE, np.uint8)
    table[[code for code in range(LAST_SPACE + 1) if chr(code).isspace()]] = SPACE
    return table


@jit
def name_at(page: Bytes, place: int) -> tuple[np.uint64, int]:
    """Hash of the name that begins here, in lower case, and the position where it ends."""
    hashed = np.uint64(0)
    while place < len(page) and not ENDS_NAME[page[np.uint64(place)]]:
        hashed = (hashed + np.uint64(LOWER[page[np.uint64(place)]])) * HASH_FACTOR
        place += 1
    return hashed, place


@jit
def attribute_at(page: Bytes, place: int) -> tuple[int, int, int, int]:
    """Where the attribute that begins here and its name end, and the bounds of its value."""
    end = len(page)
    place += 1
    while place < end and not ENDS_ATTRIBUTE[page[np.uint64(place)]]:
        place += 1
    name_end = place
    while place < end and IS_BLANK[page[np.uint64(place)]]:
        place += 1
    if place == end or page[np.uint64(place)] != EQUALS:
        return place, name_end, place, place
    place += 1
    while place < end and IS_BLANK[page[np.uint64(place)]]:
        place += 1
    quote, begin = page[np.uint64(place)] if place < end else 0, place
    if quote in QUOTES:
        begin += 1
        place = begin
        while place < end and page[np.uint64(place)] != quote:
            place += 1
        return min(place + 1, end), name_end, begin, place
    while place < end and page[np.uint64(place)] != GREATER and not IS_BLANK[page[np.uint64(place)]]:
        place += 1
    return place, name_end, begin, place


@jit
def next_attribute(page: Bytes, place: int) -> int:
    """Where the next attribute of a tag begins, or where the tag ends with ">" or "/>"."""
    end = len(page)
    while place < end and (
        IS_BLANK[page[np.uint64(place)]]
        or (page[np.uint64(place)] == SLASH and not (place + 1 < end and page[np.uint64(place + 1)] == GREATER))
    ):
        place += 1
    return place


@jit
def ends_tag(page: Bytes, place: int) -> bool:
    """Whether the tag or the page ends here, so that no attribute follows."""
    return place == len(page) or page[np.uint64(place)] == GREATER or page[np.uint64(place)] == SLASH


@jit
def attribute_value(page: Bytes, place: int, wanted: Bytes) -> tuple[int, int]:
    """Bounds of the value of the first attribute of this name; equal bounds if there is none."""
    place = next_attribute(page, place)
    while not ends_tag(page, place):
        name = place
        place, name_end, value, value_end = attribute_at(page, name)
        if name_end - name == len(wanted) and matches(page, name, wanted):
            return value, value_end
        place = next_attribute(page, place)
    return 0, 0


@jit
def end_after(page: Bytes, place: int, byte: int) -> int:
    """Position after the first such byte from here on, or the end of the page."""
    while place < len(page) and page[np.uint64(place)] != byte:
        place += 1
    return min(place + 1, len(page))


@jit
def matches(page: Bytes, place: int, word: Bytes) -> bool:
    """Whether this lower-case word begins here, ignoring the page's case."""
    if place + len(word) > len(page):
        return False
    for k in range(len(word)):  # noqa: SIM110  (numba)
        if LOWER[page[place + k]] != word[k]:
            return False
    return True


@jit
def contains(page: Bytes, place: int, end: int, word: Bytes) -> bool:
    """Whether this lower-case word is in the page between ``place`` and ``end``, ignoring the page's case."""
    for begin in range(place, end - len(word) + 1):  # noqa: SIM110  (numba)
        if matches(page, begin, word):
            return True
    return False


@jit
def comment_end(page: Bytes, place: int) -> int:
    """Where the comment whose text begins here ends."""
    if matches(page, place, COMMENT_END[2:]):
        return place + 1
    if matches(page, place, COMMENT_END[1:]):
        return place + 2
    while place < len(page):
        if page[np.uint64(place)] == HYPHEN:
            if matches(page, place, COMMENT_END):
                return place + 3
            if matches(page, place, OTHER_COMMENT_END):
                return place + 4
        place += 1
    return place


@jit
def raw_end(page: Bytes, place: int, hashed: np.uint64, mode: int) -> int:
    """Where the end tag of a tag with text content begins; a <script> in a comment in a script has its own end tag."""
    in_comment = in_script = False
    while place < len(page):
        byte = page[np.uint64(place)]
        if byte == LESS_SIGN and place + 1 < len(page):
            is_end = page[np.uint64(place + 1)] == SLASH
            if mode == SCRIPT and not in_comment and matches(page, place, COMMENT_BEGIN):
                in_comment = True
                place += 1
            elif is_end or (in_comment and not in_script):
                other, name_end = name_at(page, place + 2 if is_end else place + 1)
                if other == hashed and name_end < len(page):
                    if in_comment and not is_end:
                        in_script = True
                    elif in_script:
                        in_script = False
                    else:
                        return place
        elif byte == HYPHEN and in_comment and matches(page, place, COMMENT_END):
            in_comment = in_script = False
        place += 1
    return place


@jit
def reference_at(page: Bytes, place: int, references: Lookup) -> tuple[int, int, int]:  # noqa: C901
    """Two code points (the second is mostly 0) and the length of the character reference here; "&", 0, 1 for none."""
    end, begin = len(page), place
    place += 1
    if place < end and page[np.uint64(place)] == HASH_SIGN:
        base, code = 10, 0
        place += 1
        if place < end and LOWER[page[np.uint64(place)]] == LOWER_X:
            base = 16
            place += 1
        first = place
        while place < end and DIGITS[page[np.uint64(place)]] < base:
            code = min(code * base + DIGITS[page[np.uint64(place)]], MAX_CODE)
            place += 1
        if place == first:
            return AMPERSAND_SIGN, 0, 1
        if 0x80 <= code < 0xA0:
            code = C1_CODES[code - 0x80]
        elif not code or 0xD800 <= code < 0xE000 or code == MAX_CODE:
            code = REPLACEMENT
        return code, 0, place - begin + (place < end and page[np.uint64(place)] == SEMICOLON)
    hashed, value, length = np.uint64(0), MISSING, 0
    while place < end and place - begin <= LONGEST_ENTITY and IN_WORD[page[np.uint64(place)]]:
        hashed = (hashed + np.uint64(page[np.uint64(place)])) * HASH_FACTOR
        place += 1
        if place - begin <= LONGEST_UNENDED + 1:
            reference = find(references, hashed)
            if reference != MISSING:
                value, length = reference, place - begin
    if place < end and page[np.uint64(place)] == SEMICOLON:
        reference = find(references, (hashed + np.uint64(SEMICOLON)) * HASH_FACTOR)
        if reference != MISSING:
            value, length = reference, place + 1 - begin
    if value == MISSING:
        return AMPERSAND_SIGN, 0, 1
    return value & 0xFFFFFFFF, value >> 32, length
