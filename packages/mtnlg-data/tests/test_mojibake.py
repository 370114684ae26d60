"""Our ``fix_text`` equals ftfy's to the character, for any text."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import ftfy
from ftfy.badness import BADNESS_RE
from hypothesis import example, given
from hypothesis import strategies as st

from mtnlg_data.mojibake import MAX_PIECE_CHARACTERS, TRIGGERS, fix_text

if TYPE_CHECKING:
    from collections.abc import Iterable


PIECES = st.one_of(
    st.text(max_size=20),
    st.text("abc <&;\n\t~", max_size=20),
    st.sampled_from(
        ["&amp;", "&lt;b&gt;", "&#233;", "&bogus;", "&", "<", "\n", "\r\n", "\r", "\t", " ", "\x00", "\x1b[31m"]
    ),
    st.sampled_from(
        ["â€œ", "â€\x9d", "schÃ¶n", "Ã ", "Â ", "Â\xa0", "œ", "€", "°", "²", "Ø®", "ГўВЂВ", "\ufffd", "½", "é", "É"]
    ),
    st.sampled_from(list("\u201c\u201d\u2018\u2019\u02bc\u201e\u2013\xa0\u2022\xae\u2122\xab\u2026")),
    st.sampled_from(
        [
            "ﬁ",
            "\uff26",
            "ﾊ\uff9e",
            "e\u0301",
            "\u0301",
            "か\u3099",
            "\u0958",
            "\u1100\u1161",
            "\ufeff",
            "\x85",
            "\u2028",
        ]
    ),
    st.sampled_from(["\ud83d\ude00", "\ud800", "\U0001f600", "日本"]),
)


@given(st.lists(PIECES, max_size=12).map("".join))
@example("a\r\nÂ b")  # bad only once the line break is one character
@example("ГўВЂВ\rA ÐŸ")  # bad only while it is a carriage return
@example("<b>\n&amp;")
@example("&amp;\n<b>&amp;\n&amp;")
def test_fix_text_equals_ftfy_to_the_character(text: str) -> None:
    assert fix_text(text) == ftfy.fix_text(text)


def test_fix_text_matches_ftfy_on_the_basic_plane() -> None:
    for code in range(0x10000):
        text = f"a{chr(code)}b"
        assert fix_text(text) == ftfy.fix_text(text), ascii(text)


def test_million_character_line_is_fixed_in_ftfys_pieces() -> None:
    text = "“x”" + "x" * (MAX_PIECE_CHARACTERS - 5) + "\r&amp; <" + "y" * 10 + "\r\n&amp; “"
    assert len(text) > MAX_PIECE_CHARACTERS
    assert fix_text(text) == ftfy.fix_text(text)


def test_ftfy_matches_no_mojibake_without_a_trigger_character() -> None:
    """Every alternative of ``BADNESS_RE`` has a position that only characters of ``TRIGGERS`` match."""
    parser: Any = importlib.import_module("re._parser")
    ((kind, (_, alternatives)),) = parser.parse(BADNESS_RE.pattern, BADNESS_RE.flags)
    assert str(kind) == "BRANCH"
    assert len(alternatives) > 30
    for alternative in alternatives:
        assert any(all(map(TRIGGERS.fullmatch, characters)) for characters in _positions(alternative) if characters), (
            alternative
        )


def _positions(alternative: Iterable[tuple[object, Any]]) -> list[list[str]]:
    """The characters that each position of an alternative matches, where the expression lists them."""
    positions = []
    for kind, what in alternative:
        if str(kind) == "LITERAL":
            positions.append([chr(what)])
        elif str(kind) == "IN" and {str(each) for each, _ in what} <= {"LITERAL", "RANGE"}:
            ranges = [(value, value) if str(each) == "LITERAL" else value for each, value in what]
            positions.append([chr(code) for first, last in ranges for code in range(first, last + 1)])
    return positions
