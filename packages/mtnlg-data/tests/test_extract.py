"""Extraction: the main text of English pages; a bad record is dropped alone, with a reason."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, get_args

import pytest
import small_corpus as corpus
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from shards import read_rows, run_here

from mtnlg_data import Extract, Record, SourceFile, decode_html
from mtnlg_data.extract.language import detect_language
from mtnlg_data.extract.text import ExtractSettings, Method, extract_record, is_text

if TYPE_CHECKING:
    from pathlib import Path


# --- language and text -----------------------------------------------------------------------------------------------

GERMAN = "<p>Der alte Hafen war schon immer ein Ort, an dem sich die Leute der Stadt trafen und nichts taten.</p>"


def test_language_is_detected_despite_control_characters() -> None:
    page = corpus.page(corpus.text(1))
    assert detect_language(page, html=True).code == "en"
    assert detect_language(page.replace(" ", " \x01\x80"), html=True).code == "en"
    assert detect_language(GERMAN * 3, html=True).code == "de"
    assert detect_language("", html=True).code == "un"


@given(st.text(max_size=300))
def test_the_language_of_any_text_is_a_code(text: str) -> None:
    for html in (True, False):
        language = detect_language(text, html=html)
        assert language.code
        assert 0 <= (language.score or 0) <= 1


def test_binary_is_not_text() -> None:
    assert not is_text(decode_html(bytes(range(256)) * 20, None))
    assert not is_text("\ufffd" * 3 + "a" * 100)
    assert is_text("a line\r\n\tand another\f" + "x" * 200 + "\ufffd")
    assert is_text("")


# --- one page --------------------------------------------------------------------------------------------------------


def fate(html: str, **settings: object) -> tuple[str, str | None]:
    """Text of an English page, and its drop reason."""
    extracted = extract_record(Record(0, html.encode(), None, "utf-8"), ExtractSettings.model_validate(settings))
    return extracted.text, extracted.reason


METHODS = get_args(Method)


@pytest.mark.parametrize("method", METHODS)
def test_boilerplate_is_removed_and_paragraphs_stay(method: str) -> None:
    text = corpus.text(3)
    extracted, reason = fate(corpus.page(text, title="A title"), method=method)
    assert reason is None
    kept = extracted.split()
    if method == "main":  # of this menu, beside paragraphs and in no <nav>, it may keep the last links
        kept = kept[-len(text.split()) :]
    assert kept == text.split()


def test_language_is_detected_on_the_whole_page() -> None:
    page = corpus.page(corpus.text(1))
    links = "".join(f'<li><a href="/{number}">{GERMAN[3:-4]}</a></li>' for number in range(40))
    mixed = page.replace("<ul>", f"<ul>{links}")
    assert detect_language(fate(page)[0]).code == "en"
    kept = extract_record(Record(0, page.encode(), "", "utf-8"), ExtractSettings())
    assert (kept.language and kept.language.code, kept.reason) == ("en", None)
    extracted = extract_record(Record(0, mixed.encode(), "", "utf-8"), ExtractSettings())
    assert (extracted.language and extracted.language.code, extracted.reason) == ("de", "other_language")


@pytest.mark.parametrize("method", METHODS)
def test_a_page_crafted_to_be_slow_is_dropped_for_its_own_reason(method: str) -> None:
    page = corpus.page(corpus.text(3))
    assert fate(page.replace("<p>", "<p>" + "<b>" * 300, 1), method=method) == ("", "too_deep")
    assert fate(page, method=method, largest_page=len(page) - 1) == ("", "page_too_large")
    assert fate(page, method=method, largest_page=len(page))[1] is None
    attributes = " ".join(f"a{number}" for number in range(50_000))
    many = [("<p " + attributes + ">", "too_many_attributes"), ("<p></p>" * 200_000, "too_many_tags")]
    for markup, reason in many:
        text, actual = fate(page.replace("<p>", f"{markup}<p>", 1), method=method)
        words = corpus.text(3).split()
        own = method in {"justext", "main"}
        assert (text.split()[-len(words) :], actual) == ((words, None) if own else ([], reason))


@pytest.mark.parametrize("method", ["resiliparse", "trafilatura"])
def test_missing_method_is_refused_with_its_extra(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, method, None)
    with pytest.raises(ValidationError, match=rf"pip install 'mtnlg-data\[{method}\]'"):
        ExtractSettings.model_validate({"method": method})


def test_a_library_failure_drops_only_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trafilatura.extract", lambda *_, **__: 1 // 0)
    assert fate(corpus.page(corpus.text(3)), method="trafilatura") == ("", "not_extracted")


def test_nuls_and_lone_surrogates_do_no_harm() -> None:
    page = corpus.page(corpus.text(3))
    assert fate(page.replace(" ", "\0 ", 5)) == fate(page)
    surrogate = page.encode().replace(b"</p>", b"\xed\xa0\x80</p>", 1)  # invalid in UTF-8
    text = extract_record(Record(0, surrogate, None, "utf-8"), ExtractSettings()).text
    assert text.encode().decode().startswith(corpus.text(3)[:100])


# --- the stage -------------------------------------------------------------------------------------------------------


def test_every_page_is_kept_or_counted_with_a_reason(tmp_path: Path) -> None:
    records = [
        corpus.record(corpus.page(corpus.text(1)).encode(), "http://example.org/1"),
        corpus.record((GERMAN * 9).encode()),
        corpus.record(bytes(range(256)) * 40),
        corpus.record(b"<html><p>Home</p></html>" * 3 + b"<p>the and of it was</p>" * 9),
        corpus.record(b"<p>" + b"x" * 200_000),
        corpus.record(b"%PDF", http="HTTP/1.1 200 OK\r\nContent-Type: application/pdf"),
        corpus.record(corpus.page(corpus.text(2)).encode() + b" \xff\xfe", "http://example.org/2"),
        corpus.record(b"<p>lies", length=10_000),
    ]
    (tmp_path / "c.warc.gz").write_bytes(b"".join(map(corpus.member, records)))
    file = SourceFile("crawl", tmp_path / "c.warc.gz", "c.warc.gz", "warc")
    account = run_here(Extract(largest=100_000), [file], tmp_path / "out")
    rows = read_rows(*sorted((tmp_path / "out").glob("*.parquet")))
    assert [(row["id"], row["url"], row["language"]) for row in rows] == [
        ("crawl/c.warc.gz/0", "http://example.org/1", "en"),
        ("crawl/c.warc.gz/6", "http://example.org/2", "en"),
    ]
    assert rows[0]["text"] == corpus.text(1)
    assert account["sources"]["crawl"]["dropped"] == {
        "empty": 1,
        "not_html": 1,
        "not_text": 1,
        "other_language": 1,
        "too_large": 1,
        "truncated": 1,
    }
    assert (account["documents_in"], account["documents_out"]) == (8, 2)
    assert [error["where"].partition(":")[0] for error in account["errors"]] == ["c.warc.gz"] * 2
    assert account["languages"] == {"en": 3, "de": 1}
    assert account["languages_kept"] == {"en": 2, "de": 0}
