"""``ftfy.fix_text``, to the character, without its work where that work cannot change anything.

ftfy takes a text line by line and each line through a dozen steps until they leave it alone. A step can only act where
the line holds something that it looks for, and most lines hold nothing of the kind:

    unescape_html               an entity, such as &amp;
    fix_encoding                a pair that ``BADNESS_RE`` finds: each of its pairs has a character of ``SUSPECT``
    ligatures, widths, control  a character out of the tables of ``ftfy.chardata``
    c1, line breaks, surrogates a character of a few ranges
    NFC                         something that is not in NFC

What is left are curly quotes, which become straight ones whatever stands beside them. So stretches without any of this
are copied, quotes apart; a line that holds some of it is looked at more closely, and goes to ftfy if that finds a thing
to do. The tables are ftfy's own, and a test proves the second row from ``BADNESS_RE`` itself.
"""

from __future__ import annotations

import re
from functools import cache
from unicodedata import combining, is_normalized

import ftfy
from ftfy.badness import BADNESS_RE, MOJIBAKE_CATEGORIES
from ftfy.chardata import CONTROL_CHARS, HTML_ENTITY_RE, LIGATURES, WIDTH_MAP

#: What ftfy takes for a curly quote, by the straight one that it puts in its place.
QUOTES = {"'": "\u02bc\u2018\u2019\u201a\u201b", '"': "\u201c\u201d\u201e\u201f"}

#: Categories of ``BADNESS_RE`` that are bad only beside a character of another: quotes, dashes, bullets and the like.
UNSUSPECTED = {"common", "start_punctuation", "end_punctuation"}
SUSPECT = "".join(characters for name, characters in MOJIBAKE_CATEGORIES.items() if name not in UNSUSPECTED)

_TABLES = "".join(re.escape(chr(code)) for code in (*CONTROL_CHARS, *LIGATURES, *WIDTH_MAP))
_TOUCHED = f"{_TABLES}\x80-\x9f\u2028\u2029\ud800-\udfff"
TOUCHED = re.compile(f"[{_TOUCHED}]")
LOOK = re.compile(f"[\r{_TOUCHED}{SUSPECT}]")
LOOK_FOR_ENTITIES = re.compile(f"[&\r{_TOUCHED}{SUSPECT}]")
LOOK_AT_ALL = re.compile(f"[&\r{_TOUCHED}\x80-\U0010ffff]")

#: An entity within an entity and so on: each of ftfy's rounds takes off one layer, and there may be a million.
NESTED = re.compile(r"&(?:#?[0-9A-Za-z]{1,24};){16}")
MOST_MARKS = 100
FIRST_MARK, BEHIND_MARKS = 0x300, 0x1F000
LONGEST_LINE = ftfy.TextFixerConfig().max_decode_length


def repaired(text: str) -> str:
    """``ftfy.fix_text(text)``."""
    look = LOOK_FOR_ENTITIES if HTML_ENTITY_RE.search(text) else LOOK
    if not is_normalized("NFC", text):
        look = LOOK_AT_ALL
    # From the first piece that holds a "<" on, which may be markup, ftfy leaves entities alone.
    markup = text.find("<") % (len(text) + 1)
    parts: list[str] = []
    done = 0
    while found := look.search(text, done):
        line = text.rfind("\n", 0, found.start()) + 1
        parts.append(_straight(text[done:line]))
        done = text.find("\n", line) + 1 or len(text)
        for begin in range(line, done, LONGEST_LINE):
            end = min(begin + LONGEST_LINE, done)
            parts.append(_repaired_piece(text[begin:end], entities=end <= markup))
    parts.append(_straight(text[done:]))
    return "".join(parts)


def trap(text: str) -> str | None:
    """Why ``repaired`` would take time beyond all bounds, where it would: as the reason to drop a document.

    ``nested_entities``  entities within entities, which ftfy peels one a round
    ``stacked_marks``    a hundred combining marks on one letter, which NFC sorts one by one
    """
    if NESTED.search(text):
        return "nested_entities"
    if not text.isascii() and _stacked_marks().search(text):
        return "stacked_marks"
    return None


@cache
def _stacked_marks() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(FIRST_MARK, BEHIND_MARKS) if combining(chr(code)))
    return re.compile(f"[{marks}]{{{MOST_MARKS}}}")


def _repaired_piece(piece: str, *, entities: bool) -> str:
    """A line, or a part of one that ftfy takes by itself."""
    plain = piece.replace("\r\n", "\n").replace("\r", "\n")
    if (
        TOUCHED.search(plain)
        or (entities and HTML_ENTITY_RE.search(plain))
        or BADNESS_RE.search(piece)
        or (plain != piece and BADNESS_RE.search(plain))
        or not is_normalized("NFC", plain)
    ):
        config = ftfy.TextFixerConfig(explain=False, unescape_html="auto" if entities else False)
        return str(ftfy.fix_and_explain(piece, config).text)
    return _straight(plain)


def _straight(text: str) -> str:
    if text.isascii():
        return text
    for straight, curly in QUOTES.items():
        for quote in curly:
            text = text.replace(quote, straight)
    return text
