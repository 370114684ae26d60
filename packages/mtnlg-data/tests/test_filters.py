"""Filters decide as the published rules do, to the last document, and touch nothing that they are not asked for."""

from __future__ import annotations

import gzip
from random import Random
from typing import TYPE_CHECKING, Any, Literal

import filter_reference as reference
import numpy as np
import pyarrow as pa
import pytest
from filter_reference import PROSE
from hypothesis import example, given
from hypothesis import strategies as st

from mtnlg_data import TextBatch
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.filters import c4
from mtnlg_data.filters.decisions import KEPT, DocumentFilter
from mtnlg_data.filters.rules import own_families
from mtnlg_data.filters.settings import FilterSettings, check_rules
from mtnlg_data.text.characters import character_table
from mtnlg_data.text.words import hashed_words

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_data.text.words import Split


# What the rules look at, mixed: marks of all kinds, line ends that only Unicode knows, scripts, the phrases of C4.
LINES = [
    *(
        "[1]",
        "[\u0661]",
        "[edit]",
        "[Edit]",
        "[citation needed]",
        "JavaScript ",
        "java[1]script ",
        "Lorem Ipsum",
        "use cookies",
    ),
    *("a,b ", "1,2 ", "3.a ", "12:30 ", "हिन्दी ", "می\u200cروم ", "in\u00adter", "\u2764\ufe0f", "e\u0301", "\u200b"),
    *("x" * 1001, "\nThis is a line of seven words here.\n", "don't 3.5 ", "\n\n", "\r\n", "...", "a a a a a a "),
    "one two three four five six seven eight nine ten eleven. ",
]
MARKS = "ab1#-•…!.\"' \t\n\r\x1c\x85\u2028\xa0{[]éß\u0661中"
PIECES = st.sampled_from([*MARKS, "the ", "of ", "to be ", "word ", *LINES])
TEXTS = st.lists(PIECES, min_size=1, max_size=60).map("".join)


def column(*texts: str) -> pa.LargeStringArray:
    return pa.array(texts, pa.large_string())


def decide(rules: list[str], *texts: str, urls: list[str | None] | None = None, **settings: object) -> list[str]:
    """Text of each document that is kept, or the reason in brackets."""
    chosen = DocumentFilter(rules, FilterSettings.model_validate(settings))
    decided = chosen.decide(column(*texts), urls or [None] * len(texts))
    kept = iter(decided.texts.to_pylist())
    return [next(kept) if number == KEPT else f"<{chosen.reasons[number]}>" for number in decided.reasons.tolist()]


# --- equal to the plain rules ----------------------------------------------------------------------------------------


@given(texts=st.lists(TEXTS, min_size=1, max_size=4), unicode=st.booleans())
@example(texts=["a b ab a b ab a b ab a b", "1 11 1 1 11 1 1 1 11"], unicode=False)
def test_measures_equal_the_plain_rules(texts: list[str], unicode: bool) -> None:
    texts = [text for text in texts if reference.unicode_words(text) and "中" not in text]
    lists = [reference.unicode_words(text) if unicode else text.split() for text in texts]
    for name, plain in (
        ("gopher_repetition", reference.repetition),
        ("gopher_quality", reference.gopher),
        ("fineweb", reference.fineweb),
    ):
        batch = TextBatch(column("left out", *texts)[1:], (), "unicode" if unicode else "whitespace")  # in mid-buffer
        family = next(family for family in own_families() if family.name == name)
        measures = np.array(family.open(FilterSettings(), frozenset())(batch))
        assert measures.T.tolist() == [plain(*each) for each in zip(texts, lists, strict=True)]
        assert batch.word_counts.tolist() == [len(words) for words in lists]  # found, or only counted


@given(text=TEXTS, terminal=st.booleans(), fewest_words=st.sampled_from([0, 3]))
def test_lines_kept_equal_the_plain_rules(text: str, terminal: bool, fewest_words: int) -> None:
    text = text.replace("中", "") or "a"  # in scripts with spaces
    rules = ["c4_longest_word", "c4_citations", "c4_fewest_words", "c4_lorem_ipsum", "c4_javascript", "c4_policy"]
    rules += ["c4_curly_bracket", *(["c4_terminal_punctuation"] if terminal else [])]
    (kept,) = decide(rules, text, c4_fewest_words=fewest_words)
    expected = reference.c4(text, terminal=terminal, fewest_words=fewest_words)
    dropped = {"<c4_lorem_ipsum>", "<c4_curly_bracket>"}
    assert kept in dropped if expected is None else kept == (expected or "<empty>")


# --- each rule at its threshold --------------------------------------------------------------------------------------

LINE = "A line of words that is long enough for every rule.\n"
DIFFERENT = [
    f"Sentence {n} says how {n * 7} boats and {n + 3} men of the {n * n} came to the island.\n" for n in range(9)
]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("one\n\ntwo\n\none\n\none", "gopher_duplicate_paragraphs"),
        (f"one\n\ntwo\n\nthree\n\nfour\n\n{'x' * 60}\n\n{'x' * 60}", "gopher_duplicate_paragraph_characters"),
        ("one\ntwo\none\none\n", "gopher_duplicate_lines"),
        (f"one\ntwo\nthree\nfour\n{'x' * 60}\n{'x' * 60}", "gopher_duplicate_line_characters"),
        ("so so so so so so so so so", "gopher_top_2_gram"),
        (f"{PROSE[:100]} {'we sing a song here, ' * 3}", "gopher_top_4_gram"),
        (f"{PROSE} {'every day at five they went to the old harbour and waited. ' * 3}", "gopher_duplicate_5_grams"),
        (PROSE[:120], "gopher_fewest_words"),
        ("we be at of to do it by " * 10, "gopher_shortest_mean_word"),
        ("interconnection characterisation " * 30, "gopher_longest_mean_word"),
        (PROSE + " #" * 10, "gopher_hashes"),
        (PROSE + " ..." * 5 + " …" * 5, "gopher_ellipses"),
        (f"- {PROSE}\n  • and\n", "gopher_bullet_lines"),
        (f"{PROSE}\nand so on …\nmore...\n", "gopher_ellipsis_lines"),
        (PROSE + " 1 2 3 4 5 6 7 8 9" * 3, "gopher_alphabetic_words"),
        ("these words lack small common ones " * 20, "gopher_stop_words"),
        ("Lines without stops\n" * 9 + "But one.\nAnother\n", "fineweb_line_punctuation"),
        ("Short one.\nAnother.\nA third.\n" + LINE, "fineweb_short_lines"),
        (LINE * 2 + "".join(DIFFERENT[:4]), "fineweb_duplicate_line_characters"),
        ("".join(DIFFERENT).replace("\n", "\n\n\n\n\n\n\n"), "fineweb_newlines"),
        (LINE + "Lorem Ipsum dolor sit amet, consectetur.", "c4_lorem_ipsum"),
        (LINE + "function run() { return it all } and more", "c4_curly_bracket"),
        (LINE + LINE, "c4_fewest_sentences"),
    ],
)
def test_a_document_is_dropped_by_the_rule_that_it_breaks(text: str, rule: str) -> None:
    assert decide([rule], text) == [f"<{rule}>"]
    assert decide([rule], PROSE + PROSE[:60] if rule.startswith("c4") else PROSE)[0][0] != "<"


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("gopher_duplicate_lines", "1\n2\n3\n4\n5\n6\n7\n1\n2\n3"),  # three in ten
        ("gopher_fewest_words", "word " * 50),
        ("gopher_alphabetic_words", "a b c d 5 " * 3),
        ("fineweb_newlines", "one two three\nfour five six\nseven eight nine\nten"),
        ("c4_fewest_sentences", "One is here now. Two is here now. Three is here now."),
    ],
)
def test_a_document_at_the_threshold_is_kept(rule: str, text: str) -> None:
    assert decide([rule], text)[0][0] != "<"


def test_first_broken_rule_is_the_reason() -> None:
    chosen = DocumentFilter(["gopher_quality", "gopher_repetition"], FilterSettings())
    decided = chosen.decide(column(PROSE, "# # # # #", "  ", "word"), [None] * 4)
    assert [chosen.reasons[n] for n in decided.reasons[1:]] == ["gopher_top_2_gram", "empty", "gopher_fewest_words"]
    assert decided.scores[[1, 3]].tolist() == [4 * 3 / 9, 1.0]
    assert decided.texts.to_pylist() == [PROSE]


def test_lines_are_removed_and_the_edits_counted() -> None:
    text = f"{LINE}Please enable JAVASCRIPT in your browser to go on.\nWe use cookies on all of our pages.\nToo short\n"
    text += f"{'y' * 1001} is one very long word.\nA fact[1] with its source [citation needed] is given here.\n"
    decided = DocumentFilter(["c4"], FilterSettings()).decide(column(text * 2), [None])
    assert decided.texts.to_pylist() == ["\n".join([LINE[:-1], "A fact with its source  is given here."] * 2)]
    assert decided.edits == {
        **dict.fromkeys(["c4_javascript", "c4_policy", "c4_longest_word", "c4_terminal_punctuation"], 2),
        "c4_citations": 4,
    }


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("", 0),
        (" . ", 1),
        ("One. Two! Three?", 3),
        ('He said "Go." Then he left (at 3.5 p.m. sharp).', 2),
        ("J. R. Smith of the U.S. waited... and waited", 1),
        ("Visit example.com now. Is it up?Yes", 2),
        ("これは文です。次の文。", 2),
        ("नमस्ते। फिर मिलेंगे।", 2),
        ("สวัสดีครับ ไปไหนมา", 2),
    ],
)
def test_sentences_end_before_white_space(line: str, sentences: int) -> None:
    assert c4.count_sentences(np.frombuffer(line.encode(), np.uint8), character_table()) == sentences


@pytest.mark.parametrize(
    ("split", "counts"),
    [
        ("unicode", [7, 2, 6, 8]),
        ("letters", [6, 6, 6, 9]),
        ("whitespace", [1, 1, 4, 5]),
        ("characters", [7, 6, 15, 18]),
    ],
)
def test_word_definitions(split: Split | Literal["letters"], counts: list[int]) -> None:
    texts = ["東京は大きい。", "ที่นี่", "don't 3.5 ... a--b", "צה\"ל ג'ירפה צ\u05f3 ג'1 א\"a"]
    if split == "letters":
        found = np.diff(hashed_words(texts).bounds)
    else:
        found = TextBatch(column(*texts), (), split).word_counts
    assert found.tolist() == counts


#: Scripts: letters, the signs on them, what stands between words and sentences, and what ends a sentence.
SCRIPTS = {
    "Devanagari": ("कखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह", "ािीुूेैोौंँ्", " ", "। "),
    "Bengali": ("কখগঘচছজঝটঠডঢণতথদধনপফবভমযরলশষসহ", "ািীুূেোৌ", " ", "। "),
    "Tamil": ("கஙசஞடணதநபமயரலவழளறன", "ாிீுூெேைொோௌ்", " ", ". "),
    "Arabic": ("ابتثجحخدذرزسشصضطظعغفقكلمنهوي", "\u064e\u064f\u0650\u0651\u0652", " ", "؟ "),
    "Hebrew": ("אבגדהוזחטיכלמנסעפצקרשת", "\u05b4\u05b5\u05b6\u05b7\u05b8", " ", ". "),
    "Hangul": ([chr(code) for code in range(0xAC00, 0xD7A4, 28)], "", " ", ". "),
    "Armenian": ("աբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆ", "\u055b", " ", "\u0589 "),
    "Han": ([chr(code) for code in range(0x4E00, 0x5200)], "", "", "。"),
    "kana": ([chr(code) for code in range(0x3042, 0x3094)], "", "", "。"),
    "Thai": ("กขคฆงจฉชซญฎฏฐฑฒณดตถทธนบปผฝพฟภมยรลวศษสหฬอฮ", "ะาิีึืุู่้", "", " "),
    "Khmer": ("កខគឃងចឆជឈញដឋឌឍណតថទធនបផពភមយរលវសហឡអ", "ាិីឹឺុូួើ", "", "។ "),
    "Burmese": ("ကခဂဃငစဆဇဈညဋဌဍဎဏတထဒဓနပဖဗဘမယရလဝသဟဠအ", "ာိီုူေဲ", "", "။ "),
    "Tibetan": ("ཀཁགངཅཆཇཉཏཐདནཔཕབམཙཚཛཝཞཟའཡརལཤསཧཨ", "ིེོུ", "\u0f0b", "། "),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_rule_drops_a_text_for_its_script(script: str) -> None:
    letters, signs, space, end = SCRIPTS[script]
    draw = Random(0)

    def word() -> str:
        return "".join(draw.choice(letters) + draw.choice([*signs, "", ""]) for _ in range(draw.randint(2, 6)))

    def sentence() -> str:
        return space.join(word() for _ in range(draw.randint(8, 14))) + end

    text = "\n".join("".join(sentence() for _ in range(4)).strip() for _ in range(6))
    rules = [rule.name for family in own_families() if family.name not in {"url", "pii"} for rule in family.rules]
    assert decide([name for name in rules if name not in {"c4_bad_words", "gopher_stop_words"}], text) == [text]


@pytest.mark.parametrize(
    ("language", "kept"), [(None, False), ("un", False), ("en", False), ("fr", False), ("de", True), ("zh", True)]
)
def test_stop_words_follow_the_documents_language(language: str | None, kept: bool) -> None:
    texts = column("Wer über die Brücke kommt, sieht am Ende der Gasse das Tor.", "The men of the town have come.")
    chosen = DocumentFilter(["gopher_stop_words"], FilterSettings())
    decided = chosen.decide(texts, [None] * 2, [language, "en"])
    assert [reason == KEPT for reason in decided.reasons.tolist()] == [kept, True]


def test_stop_words_of_another_language_are_a_setting() -> None:
    german = "Wer über die Brücke geht und an dem Haus vorbei kommt, sieht am Ende der Gasse das Tor. " * 3
    assert decide(["gopher_stop_words"], german) == ["<gopher_stop_words>"]
    assert decide(["gopher_stop_words"], german, stop_words=("und", "der", "die")) == [german]


# --- addresses and words ---------------------------------------------------------------------------------------------


@pytest.fixture
def lists(tmp_path: Path) -> dict[str, tuple[Path, ...]]:
    entries = {
        "domain": "# blocked\nBlocked.com\nsub.nice.org\n",
        "address": "https://fine.net/One?q=2\n",
        "word": "casino\n",
        "soft_word": "bet\nwin\nbonus\n",
        "substring": "free-pills\n",
        "bad_word": "swearing\nbad phrase\n",
    }
    for name, text in entries.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    return {f"{name}_files": (tmp_path / f"{name}.gz",) for name in entries}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://blocked.com/x", "url_domain"),
        ("http://WWW.Blocked.com:8080", "url_domain"),
        ("http://user@a.b.blocked.com/?q=1#x", "url_domain"),
        ("https://deep.sub.nice.org/", "url_domain"),
        ("https://nice.org/blocked.com", None),
        ("https://notblocked.com/", None),
        ("https://blocked.com.au/", None),
        ("https://fine.net/One?q=2", "url_address"),
        ("https://fine.net/one?q=2", None),
        ("https://play.net/Casino/games", "url_word"),
        ("https://play.net/casinos", None),
        ("https://play.net/win-a-bonus", "url_soft_words"),
        ("https://play.net/win-win", None),
        ("https://play.net/freepills4u", "url_substring"),
        ("", None),
        (None, None),
    ],
)
def test_addresses_are_blocked_by_the_lists(lists: dict[str, Any], url: str | None, reason: str | None) -> None:
    assert decide(["url"], PROSE, urls=[url], **lists) == [f"<{reason}>" if reason else PROSE]


def test_url_list_with_windows_bom_blocks_its_first_entry(tmp_path: Path) -> None:
    path = tmp_path / "domains"
    path.write_bytes(b"\xef\xbb\xbfa.com\r\n# others\r\nb.com\r\n")
    for url in ("http://a.com/", "http://b.com/"):
        assert decide(["url_domain"], PROSE, urls=[url], domain_files=(path,)) == ["<url_domain>"]


def test_bad_words_count_between_letters_of_others(lists: dict[str, Any]) -> None:
    texts = ["No SWEARING.", "swearings", "a bad\u00a0phrase", "a bad phrase", "éswearing"]
    dropped = [kept == "<c4_bad_words>" for kept in decide(["c4_bad_words"], *texts, **lists)]
    assert dropped == [True, False, False, True, False]


# --- personal data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to me@example.org.", "Write to E."),
        ("a.b+c-d@sub.example.co.uk, x_1@[8.8.4.4]", "E, E"),
        ("no @ here, nor a@b, a@-b.c, é@example.org", "no @ here, nor a@b, a@-b.c, é@example.org"),
        ("a@b@c.de .x@y.zz a..b@c.de", "a@E .E a..E"),
        ("<'q@z.org'>", "<'E'>"),
        (
            "8.8.8.8 and 10.0.0.1, 192.168.1.9, 127.0.0.1, 192.0.2.7",
            "I and 10.0.0.1, 192.168.1.9, 127.0.0.1, 192.0.2.7",
        ),
        ("256.256.256.256 8.8.8.08 1.2.3 v2.8.8.8.8", "256.256.256.256 8.8.8.08 1.2.3 vI.8"),
        ("(212) 555-0147, 212.555.0147, +1 212 555 0147, +44 20 7946 0958", "P, P, P, P"),
        ("2121234567 2024-05-06 10-20-3000 12 345 6789 +12", "2121234567 2024-05-06 10-20-3000 12 345 6789 +12"),
    ],
)
def test_personal_data_is_replaced(text: str, expected: str) -> None:
    assert decide(["pii"], text, pii_email=("E",), pii_ip=("I",), pii_phone=("P",)) == [expected]


def test_replacements_take_turns_within_a_document() -> None:
    text = "a@b.cc " * 3
    assert decide(["pii_email"], text, text, pii_email=("X", "Y")) == ["X Y X "] * 2


@pytest.mark.parametrize(
    "text", ["a@" * 100_000, "a" * 200_000 + "@", "@" + "a." * 100_000, "1.-" * 100_000, "+1 " * 100_000]
)
def test_hostile_texts_take_no_longer_than_others(
    text: str,
) -> None:  # quadratic time would outlast the test's patience
    assert decide(["pii"], text) == [text]


# --- rules of one's own -----------------------------------------------------------------------------------------------

OWN_RULES = """
import pyarrow.compute as pc
from mtnlg_data import Rule, edit, measure, setting

@measure("shouting", rules=[Rule("exclamations", at_most=setting(2, "Most exclamation marks.", ge=0))])
def shouting(batch, settings):
    return [pc.count_substring(batch.column, "!").to_numpy()]

@edit("quiet", rules=[Rule("hushed", effect=Effect.REPLACE)])
def quiet(batch, settings):
    return pc.replace_substring(batch.column, "!", "."), [pc.count_substring(batch.column, "!").to_numpy()]
""".replace("import Rule", "import Effect, Rule")


def test_own_rule_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_RULES)
    shouting, quiet = (f"{tmp_path / 'own.py'}:{name}" for name in ("shouting", "quiet"))
    texts = ["One! Two!", "One! Two! Three!"]
    assert decide([quiet, shouting], *texts) == ["One. Two.", "One. Two. Three."]
    assert decide([shouting, quiet], *texts) == ["One. Two.", "<exclamations>"]
    assert decide([shouting], *texts, own={"exclamations": 1}) == ["<exclamations>"] * 2
    with pytest.raises(UsageFailure, match="exclamations"):
        decide([shouting], *texts, own={"exclamations": -1})
    for returned, message in (("[]", "shape"), ("batch.nothing", "AttributeError")):
        name = f"{returned.replace('.', '_').strip('[]')}x"
        (tmp_path / f"{name}.py").write_text(
            OWN_RULES.replace('[pc.count_substring(batch.column, "!").to_numpy()]', returned)
        )
        with pytest.raises(Failure, match=rf"^shouting: .*{message}"):
            decide([f"{tmp_path / name}.py:shouting"], *texts)
    with pytest.raises(ValueError, match="exclamations: two rules have this name"):
        decide([shouting, f"{tmp_path / 'x'}.py:shouting"], *texts)
    with pytest.raises(UsageFailure, match="whispers"):
        check_rules(FilterSettings.model_validate({"own": {"whispers": 1}}), [[shouting]])
