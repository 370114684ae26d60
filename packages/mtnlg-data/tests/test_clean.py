"""Each cleaning rule changes and drops what it should, with its reason."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, get_args

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import run_here, write_shard

from mtnlg_data import Clean, Document
from mtnlg_data.extract.language import Language
from mtnlg_data.mojibake import unbounded_cost_reason
from mtnlg_data.sources.corpus import DATASETS
from mtnlg_data.steps.clean import VARIANTS, CleanSettings, Rule, clean_text

if TYPE_CHECKING:
    from pathlib import Path

ALL: tuple[Rule, ...] = get_args(Rule)
DEFAULTS = CleanSettings()
EN = Language("en", 0.9)
LONG = "An ordinary sentence that nobody would object to. " * 12


@pytest.mark.parametrize(
    ("rule", "text", "cleaned"),
    [
        ("whitespace", "two  spaces   here", "two spaces here"),
        ("whitespace", "broken\nline", "broken line"),
        ("whitespace", "broken\n\n line", "broken line"),
        ("whitespace", "A sentence.\nAnother.", "A sentence.\nAnother."),
        ("whitespace", "item\n- item", "item - item"),
        ("whitespace", "2021\n\n\n“Quoted.”\n", "2021 “Quoted.”\n"),
        ("blank_lines", "One.\n\n\n\nTwo.\nThree.", "One.\n\nTwo.\nThree."),
        ("paragraphs", "One.\nTwo.\n", "One.\n\nTwo.\n\n"),
        ("detokenize", "do n't ! a well - known one @ home .", "do n't! a well-known one@home."),
        ("detokenize", "he said ' so ?", "he said' so?"),
    ],
)
def test_rule_edits_text(rule: Rule, text: str, cleaned: str) -> None:
    assert clean_text(text, EN, [rule], DEFAULTS) == (cleaned, None)


def test_rules_of_single_datasets_name_the_papers() -> None:
    assert set(VARIANTS) <= set(DATASETS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("&" + "amp;" * 200_000, "nested_entities"),
        ("&" + "#38;" * 200_000, "nested_entities"),
        ("&" + "a&#109;p;" * 100_000, "nested_entities"),
        ("\uff06" + "amp;" * 200_000, "nested_entities"),
        ("a" + "\u0301\u0316" * 200_000, "stacked_marks"),
        ("AT&T;" + "".join(f"{number};" for number in range(12, 100_000)), None),
        ("&" + "amp;" * 14 + "lt;", None),
        ("&amp;amp;lt; " * 10_000, None),
        ("a\u0301\u0316 " * 10_000, None),
    ],
    ids=[
        "amp",
        "38",
        "an entity in the name",
        "wide",
        "marks",
        "a list after AT&T",
        "fifteen levels",
        "fair entities",
        "fair marks",
    ],
)
def test_slow_ftfy_text_is_dropped_with_its_own_reason(text: str, reason: str | None) -> None:
    assert clean_text(text, EN, ["unicode"], DEFAULTS)[1] == reason


@given(st.text("aé .\n\t", max_size=30))
def test_only_line_ends_and_runs_of_spaces_become_a_space(text: str) -> None:
    assert clean_text(text, EN, ["whitespace"], DEFAULTS) == (re.sub(r"  +|\b\n+ ?", " ", text), None)


def test_every_combining_mark_counts_as_stacked() -> None:
    marks = [chr(code) for code in range(0x110000) if unicodedata.combining(chr(code))]
    assert all(unbounded_cost_reason(mark * 100) == "stacked_marks" for mark in marks)


@pytest.mark.parametrize(
    ("text", "language", "reason"),
    [
        (LONG, EN, None),
        (LONG, Language("de", 1.0), "other_language"),
        (LONG, None, "other_language"),
        (LONG[:511], EN, "short"),
        (LONG[:512], EN, None),
        ("Please turn on JavaScript.", EN, "javascript"),
        ("JAVASCRIPT " * 23, EN, "javascript"),
        ("javascript is a language. " * 10, EN, "short"),
        ("javascript is a language. " * 20, EN, None),
    ],
)
def test_a_document_is_dropped_for_the_first_reason_that_applies(
    text: str, language: Language | None, reason: str | None
) -> None:
    assert clean_text(text, language, ALL, DEFAULTS)[1] == reason


def test_the_length_is_that_after_repair() -> None:
    text = "&amp;" * 200
    assert clean_text(text, EN, ["unicode", "short"], CleanSettings(shortest=201)) == ("&" * 200, "short")


def test_sources_have_own_rules_and_drops_are_counted(tmp_path: Path) -> None:
    shards = []
    for source in ("code", "crawl"):
        rows = [
            Document(f"{source}/0", source, f"def f():\n    return 1\n{LONG}", language="un"),
            Document(f"{source}/1", source, "short", language="en"),
            Document(f"{source}/2", source, LONG, url="http://a", language="en"),
        ]
        path = write_shard(tmp_path / f"{source}-00000.parquet", rows)
        shards.append(path)
    rules: dict[str, dict[str, list[Rule]]] = {"code": {"rules": ["unicode", "short"]}, "crawl": {"rules": list(ALL)}}
    account = run_here(Clean(sources=rules), shards, tmp_path / "out")
    code, crawl = (pq.read_table(tmp_path / "out" / shard.name).to_pylist() for shard in shards)
    assert [row["id"] for row in code] == ["code/0", "code/2"]
    assert code[0]["text"].startswith("def f():\n    return 1\n")
    assert [(row["id"], row["url"]) for row in crawl] == [("crawl/2", "http://a")]
    assert account["sources"]["code"]["dropped"] == {"short": 1}
    assert account["sources"]["crawl"]["dropped"] == {"other_language": 1, "short": 1}
    assert account["characters_out"] == sum(len(row["text"]) for row in code + crawl)
