"""A fast ``ftfy.fix_text``: the same output to the character, calling ftfy only for lines that it can change.

ftfy passes each line of a text through a dozen steps until none changes it. A step acts only on a line that contains
its trigger, and most lines contain none:

    unescape_html               an entity, such as &amp;
    fix_encoding                a match of ``BADNESS_RE``, which always includes a character of ``SUSPECT``
    ligatures, widths, control  a character in the tables of ``ftfy.chardata``
    c1, line breaks, surrogates a character of a few ranges
    NFC                         text that is not in NFC

The remaining step straightens curly quotes, whatever their context. So text without triggers is copied, with its quotes
straightened; a line with a trigger is examined more closely, and passed to ftfy if a step would act. The tables are
ftfy's own, and a test derives the second row from ``BADNESS_RE`` itself.
"""

from __future__ import annotations

import re
from functools import cache
from unicodedata import combining, is_normalized

import ftfy
from ftfy.badness import BADNESS_RE, MOJIBAKE_CATEGORIES
from ftfy.chardata import CONTROL_CHARS, HTML_ENTITY_RE, LIGATURES, WIDTH_MAP
from ftfy.fixes import unescape_html

#: Straight quote → the curly quotes that ftfy replaces by it.
QUOTES = {"'": "\u02bc\u2018\u2019\u201a\u201b", '"': "\u201c\u201d\u201e\u201f"}

#: Categories that ``BADNESS_RE`` matches only beside a character of another category: quotes, dashes, bullets etc.
HARMLESS_CATEGORIES = {"common", "start_punctuation", "end_punctuation"}
SUSPECT = "".join(characters for name, characters in MOJIBAKE_CATEGORIES.items() if name not in HARMLESS_CATEGORIES)

_TABLES = "".join(re.escape(chr(code)) for code in (*CONTROL_CHARS, *LIGATURES, *WIDTH_MAP))
_REPLACED = f"{_TABLES}\x80-\x9f\u2028\u2029\ud800-\udfff"
REPLACED = re.compile(f"[{_REPLACED}]")
TRIGGERS = re.compile(f"[\r{_REPLACED}{SUSPECT}]")
TRIGGERS_OR_ENTITIES = re.compile(f"[&\r{_REPLACED}{SUSPECT}]")
TRIGGERS_OR_NON_ASCII = re.compile(f"[&\r{_REPLACED}\x80-\U0010ffff]")

#: Limit on levels of entities nested in entities. Each round of ftfy unescapes one level; a text may have a million.
MAX_ENTITY_LEVELS = 16
WIDE = re.compile("[\uff01-\uff5e]")  # full-width ASCII, including the ampersand, which ftfy narrows
MAX_COMBINING_MARKS = 100
COMBINING_MARKS = range(0x300, 0x1F000)
_MARK = f"[{chr(COMBINING_MARKS[0])}-{chr(COMBINING_MARKS[-1])}]"
PERHAPS_STACKED = re.compile(f"{_MARK}{_MARK}{{{MAX_COMBINING_MARKS - 1}}}")  # what is one by one takes far longer
MAX_PIECE_CHARACTERS = ftfy.TextFixerConfig().max_decode_length


def fix_text(text: str) -> str:
    """Return ``ftfy.fix_text(text)``."""
    triggers = TRIGGERS_OR_ENTITIES if HTML_ENTITY_RE.search(text) else TRIGGERS
    if not is_normalized("NFC", text):
        triggers = TRIGGERS_OR_NON_ASCII
    # From the first piece with a "<" on, ftfy leaves entities alone, since the text may be markup.
    markup_start = text.find("<") % (len(text) + 1)
    parts: list[str] = []
    done = 0
    while trigger := triggers.search(text, done):
        line = text.rfind("\n", 0, trigger.start()) + 1
        parts.append(_straighten_quotes(text[done:line]))
        done = text.find("\n", line) + 1 or len(text)
        for start in range(line, done, MAX_PIECE_CHARACTERS):
            end = min(start + MAX_PIECE_CHARACTERS, done)
            parts.append(_fix_piece(text[start:end], unescape=end <= markup_start))
    parts.append(_straighten_quotes(text[done:]))
    return "".join(parts)


def unbounded_cost_reason(text: str) -> str | None:
    """The reason to drop a text on which ``fix_text`` might take unbounded time, else None.

    ``nested_entities``  entities nested in entities, of more levels than ``MAX_ENTITY_LEVELS``
    ``stacked_marks``    a hundred combining marks in a row, which NFC sorts one by one
    """
    if _is_nested_deeply(text):
        return "nested_entities"
    if not text.isascii() and PERHAPS_STACKED.search(text) and _stacked_marks().search(text):
        return "stacked_marks"
    return None


def _is_nested_deeply(text: str) -> bool:
    """Whether entities remain after ``MAX_ENTITY_LEVELS`` rounds of unescaping; most texts take one round or none."""
    if not text.isascii() and WIDE.search(text):
        text = text.translate(WIDTH_MAP)
    for _ in range(MAX_ENTITY_LEVELS):
        unescaped = unescape_html(text) if "&" in text else text
        if unescaped == text:
            return False
        text = unescaped
    return True


@cache
def _stacked_marks() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in COMBINING_MARKS if combining(chr(code)))
    return re.compile(f"[{marks}]{{{MAX_COMBINING_MARKS}}}")


def _fix_piece(piece: str, *, unescape: bool) -> str:
    """Fix a line, or a part of a longer line that ftfy fixes by itself."""
    plain = piece.replace("\r\n", "\n").replace("\r", "\n")
    if (
        REPLACED.search(plain)
        or (unescape and HTML_ENTITY_RE.search(plain))
        or BADNESS_RE.search(piece)
        or (plain != piece and BADNESS_RE.search(plain))
        or not is_normalized("NFC", plain)
    ):
        config = ftfy.TextFixerConfig(explain=False, unescape_html="auto" if unescape else False)
        return str(ftfy.fix_and_explain(piece, config).text)
    return _straighten_quotes(plain)


def _straighten_quotes(text: str) -> str:
    if text.isascii():
        return text
    for straight, curly in QUOTES.items():
        for quote in curly:
            text = text.replace(quote, straight)
    return text
