"""``repaired`` is ftfy's ``fix_text`` to the character, whatever a text holds."""

from __future__ import annotations

import gzip
import importlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ftfy
import pytest
from ftfy.badness import BADNESS_RE, MOJIBAKE_CATEGORIES
from hypothesis import example, given
from hypothesis import strategies as st

from mtnlg_data.clean.mojibake import LONGEST_LINE, LOOK, repaired

if TYPE_CHECKING:
    from collections.abc import Iterable

WEB = Path(__file__).parents[4] / "shared" / "data" / "web"

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
@example("ГўВЂВ\rA ÐŸ")  # bad only while it is another
@example("<b>\n&amp;")
@example("&amp;\n<b>&amp;\n&amp;")
def test_repair_is_fix_text_to_the_character(text: str) -> None:
    assert repaired(text) == ftfy.fix_text(text)


def test_repair_is_fix_text_on_every_character_of_the_basic_plane() -> None:
    for code in range(0x10000):
        text = f"a{chr(code)}b"
        assert repaired(text) == ftfy.fix_text(text), ascii(text)


def test_repair_is_fix_text_on_every_suspicious_character_beside_one_of_every_category() -> None:
    suspicious = [chr(code) for code in range(0x80, 0x2600) if LOOK.match(chr(code))]
    beside = [characters[0] for characters in MOJIBAKE_CATEGORIES.values()]
    for one in suspicious:
        text = "\n".join(f"a{one}{other} {other}{one}b" for other in beside)
        assert repaired(text) == ftfy.fix_text(text), ascii(text)


def test_a_line_of_more_than_a_million_characters_is_repaired_in_ftfys_pieces() -> None:
    text = "“x”" + "x" * (LONGEST_LINE - 5) + "\r&amp; <" + "y" * 10 + "\r\n&amp; “"
    assert len(text) > LONGEST_LINE
    assert repaired(text) == ftfy.fix_text(text)


@pytest.mark.skipif(not WEB.exists(), reason="the shared sample files are not beside this repository")
def test_real_texts_are_repaired_as_ftfy_does() -> None:
    path = WEB / "cc_en_head-0091.jsonl.gz"
    texts = [json.loads(line)["text"] for line in gzip.decompress(path.read_bytes()).splitlines()]
    assert any(repaired(text) != text for text in texts)
    for text in texts:
        assert repaired(text) == ftfy.fix_text(text)


def test_ftfy_calls_nothing_bad_without_a_character_that_we_look_for() -> None:
    """Every alternative of the expression that decides it has a place that only such characters can take."""
    parser: Any = importlib.import_module("re._parser")
    ((kind, (_, alternatives)),) = parser.parse(BADNESS_RE.pattern, BADNESS_RE.flags)
    assert str(kind) == "BRANCH"
    assert len(alternatives) > 30
    for alternative in alternatives:
        assert any(all(map(LOOK.fullmatch, characters)) for characters in _places(alternative) if characters), (
            alternative
        )


def _places(alternative: Iterable[tuple[object, Any]]) -> list[list[str]]:
    """The characters that each place of an alternative admits; none where they are not listed there."""
    places = []
    for kind, what in alternative:
        if str(kind) == "LITERAL":
            places.append([chr(what)])
        elif str(kind) == "IN" and {str(each) for each, _ in what} <= {"LITERAL", "RANGE"}:
            ranges = [(value, value) if str(each) == "LITERAL" else value for each, value in what]
            places.append([chr(code) for first, last in ranges for code in range(first, last + 1)])
    return places


def test_the_places_of_an_expression_are_told() -> None:
    parser: Any = importlib.import_module("re._parser")
    assert _places(parser.parse("[a-c]x[^y].", re.VERBOSE)) == [["a", "b", "c"], ["x"]]
