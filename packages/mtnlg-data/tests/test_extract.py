"""Extraction: the right text in the right language, at the cost of one record for every bad one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import justext
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_data.engine import Local
from mtnlg_data.extract import ExtractSettings, decode, is_text, language_of, main_text
from mtnlg_data.ingestion import extract
from mtnlg_data.sources import SourceFile

if TYPE_CHECKING:
    from types import ModuleType

    from mtnlg_data.engine import Summary

SHARED = Path(__file__).parents[4] / "shared" / "data"


# --- charset ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "declared", "expected"),
    [
        ("größer".encode(), "utf-8", "größer"),
        ("größer".encode("iso-8859-1"), "iso-8859-1", "größer"),
        ("größer".encode(), None, "größer"),
        ("größer".encode(), "ascii", "größer"),
        ("größer".encode(), "iso-8859-1", "größer"),
        ("größer".encode("cp1252"), None, "größer"),
        ("größer".encode("cp1252"), "no-such-charset", "größer"),
        ("“quoted”".encode("cp1252"), "iso-8859-1", "“quoted”"),  # Latin-1 means Windows-1252 on the web
        ("слово".encode("koi8-r"), "koi8-r", "слово"),
        (b'<meta charset="koi8-r">' + "слово".encode("koi8-r"), None, '<meta charset="koi8-r">слово'),
        ("\ufeffslovo".encode(), "koi8-r", "slovo"),
        ("größer".encode("utf-16"), None, "größer"),
        (b"caf\xe9 \xff", "utf-8", "caf\ufffd \ufffd"),
        (b"a+-b", "utf-7", "a+-b"),  # a codec that is none of the web
        (b"abc", "zip", "abc"),
        (b"", None, ""),
    ],
)
def test_a_page_is_decoded_as_declared_or_as_a_browser_would(page: bytes, declared: str | None, expected: str) -> None:
    assert decode(page, declared) == expected


@given(st.binary(max_size=300), st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["utf-8", "gbk", "utf-16"])))
def test_any_bytes_decode_under_any_declaration(page: bytes, declared: str | None) -> None:
    decode(page, declared)


@given(st.text(max_size=200))
def test_any_text_that_is_utf_8_comes_back(text: str) -> None:
    page = text.encode(errors="replace")
    if not page.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")) and b"charset" not in page.lower():
        assert decode(page, None) == page.decode()


def test_binary_is_no_text() -> None:
    assert not is_text(decode(bytes(range(256)) * 20, None))
    assert not is_text("\ufffd" * 3 + "a" * 100)
    assert is_text("a line\r\n\tand another\f" + "x" * 200 + "\ufffd")
    assert is_text("")


# --- language and text -----------------------------------------------------------------------------------------------

GERMAN = "<p>Der alte Hafen war schon immer ein Ort, an dem sich die Leute der Stadt trafen und nichts taten.</p>"


def test_the_language_is_read_off_the_html_even_through_control_characters(corpus: ModuleType) -> None:
    page = corpus.page(corpus.text(1))
    assert language_of(page, html=True) == "en"
    assert language_of(page.replace(" ", " \x01\x80"), html=True) == "en"
    assert language_of(GERMAN * 3, html=True) == "de"
    assert language_of("", html=True) == "un"


@given(st.text(max_size=300))
def test_the_language_of_any_text_is_a_code(text: str) -> None:
    assert language_of(text, html=True)
    assert language_of(text)


def test_boilerplate_goes_and_paragraphs_stay(corpus: ModuleType) -> None:
    text = corpus.text(3)
    assert main_text(corpus.page(text)) == text


@pytest.mark.skipif(not SHARED.exists(), reason="the shared sample files are not beside this repository")
def test_real_articles_come_out_as_justext_takes_them_apart() -> None:
    stop_words = justext.get_stoplist("English")
    pages = sorted((SHARED / "extraction" / "html").glob("*.html.gz"))
    assert pages
    for path in pages[:6]:
        html = gzip.decompress(path.read_bytes()).decode()
        good = [p.text for p in justext.justext(html, stop_words) if p.class_type == "good"]
        assert main_text(html).split("\n\n") == (good or [""])


# --- the stage -------------------------------------------------------------------------------------------------------


def run(files: list[SourceFile], out: Path) -> tuple[Summary, list[dict[str, str]]]:
    account = extract(files, out, ExtractSettings(largest=100_000), Local(1))
    shards = sorted(out.glob("*.parquet"))
    return account, [row for shard in shards for row in pq.read_table(shard).to_pylist()]


def test_every_page_is_kept_or_dropped_for_a_reason_that_is_counted(tmp_path: Path, corpus: ModuleType) -> None:
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
    account, rows = run([SourceFile("crawl", tmp_path / "c.warc.gz", "c.warc.gz", "warc")], tmp_path / "out")
    assert [(row["id"], row["url"], row["language"]) for row in rows] == [
        ("crawl/c.warc.gz/0", "http://example.org/1", "en"),
        ("crawl/c.warc.gz/6", "http://example.org/2", "en"),
    ]
    assert rows[0]["text"] == corpus.text(1)
    assert account["sources"]["crawl"]["dropped"] == {
        "empty": 1,
        "not_english": 1,
        "not_html": 1,
        "not_text": 1,
        "too_large": 1,
        "truncated": 1,
    }
    assert (account["documents_in"], account["documents_out"]) == (8, 2)
    assert [error["where"].partition(":")[0] for error in account["errors"]] == ["c.warc.gz"] * 2
    assert account["languages"] == {"en": 3, "de": 1}


def test_texts_pass_with_their_language_and_keep_their_ids_when_files_move(tmp_path: Path, corpus: ModuleType) -> None:
    outs = []
    for folder in ("a", "b"):
        path = tmp_path / folder / "x.jsonl.zst"
        corpus.write_jsonl(path, [{"text": corpus.text(1)}, {"text": " \n"}])
        outs.append(run([SourceFile("books", path, "x.jsonl.zst", "jsonl")], tmp_path / f"out-{folder}"))
    assert outs[0] == outs[1]
    account, rows = outs[0]
    assert [(row["id"], row["text"], row["language"]) for row in rows] == [
        ("books/x.jsonl.zst/0", corpus.text(1), "en")
    ]
    assert account["sources"]["books"]["dropped"] == {"empty": 1}


@pytest.mark.skipif(not SHARED.exists(), reason="the shared sample files are not beside this repository")
def test_real_and_malformed_crawl_files_make_documents_and_end_nothing(tmp_path: Path) -> None:
    paths = sorted(path for path in (SHARED / "web").rglob("*warc*") if ".wet." not in path.name)
    account, rows = run([SourceFile("web", path, path.name, "warc") for path in paths], tmp_path)
    assert account["documents_in"] == sum(
        count["documents_out"] + sum(count["dropped"].values()) for count in account["sources"].values()
    )
    assert {row["language"] for row in rows} == {"en"}
    assert {"truncated", "bad_length", "not_english"} <= set(account["sources"]["web"]["dropped"])
    assert len(rows) > 10
    json.dumps(account)
