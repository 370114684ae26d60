"""WARC and ARC: every intact record is read; a broken record or a bomb is dropped alone, with a reason."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
import zlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import brotli
import pytest
import small_corpus as corpus
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from shards import read_source

from mtnlg_data.sources.record import Metadata
from mtnlg_data.sources.response import decode_content
from mtnlg_data.sources.warc import CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_data.sources import Dropped, Record


read = partial(read_source, kind="warc")
plain_and_compressed = pytest.mark.parametrize("compressed", [True, False])

# --- WARC ------------------------------------------------------------------------------------------------------------


BODIES = [b"<p>%d" % number for number in range(8)]
RECORDS = [corpus.record(body) for body in BODIES]


def crawl(path: Path, records: list[bytes], *, compressed: bool) -> Path:
    path.write_bytes(b"".join(gzip.compress(r, mtime=0) if compressed else r for r in records))
    return path


def read_crawl(
    folder: Path, records: list[bytes], *, compressed: bool = True, largest: int = 1 << 24
) -> tuple[list[Record], list[Dropped]]:
    return read(crawl(folder / "c.warc", records, compressed=compressed), largest=largest)


def contents(pages: list[Record]) -> list[str | bytes]:
    return [page.content for page in pages]


@plain_and_compressed
def test_only_html_responses_of_status_200_are_pages(tmp_path: Path, compressed: bool) -> None:
    pdf = "HTTP/1.1 200 OK\r\nContent-Type: application/pdf"
    gone = "HTTP/1.1 404 Not Found\r\nContent-Type: text/html"
    records = [
        corpus.record(b"", kind="request", http="GET / HTTP/1.1\r\nHost: example.org"),
        corpus.record(b"<p>one", "<http://example.org/1>"),
        corpus.record(b"%PDF", http=pdf),
        corpus.record(b"gone", http=gone),
        corpus.record(b"<p>two", http="HTTP/1.1 200 OK\r\nContent-Type: Text/HTML; Charset=ISO-8859-2"),
        corpus.record(b"<p>three", http="HTTP/1.1 200 OK\r\nContent-Type: APPLICATION/XHTML+XML"),
    ]
    pages, dropped = read_crawl(tmp_path, records, compressed=compressed)
    assert [(page.number, page.content, page.url, page.charset) for page in pages] == [
        (1, b"<p>one", "http://example.org/1", "utf-8"),
        (4, b"<p>two", "http://example.org/", "iso-8859-2"),
        (5, b"<p>three", "http://example.org/", None),
    ]
    assert [(drop.reason, drop.what) for drop in dropped] == [("not_html", None), ("http_status", None)]


@plain_and_compressed
def test_texts_of_a_wet_file_are_records_with_their_headers(tmp_path: Path, compressed: bool) -> None:
    head = "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://example.org/\r\nContent-Type: {}\r\n"
    head += "WARC-Identified-Content-Language: spa\r\nContent-Length: {}\r\n\r\n"
    bodies = [("text/plain", "<p> año".encode()), ("application/pdf", b"%PDF"), ("text/plain; x", b"caf\xe9")]
    records = [head.format(kind, len(body)).encode() + body + b"\r\n\r\n" for kind, body in bodies]
    texts, dropped = read(crawl(tmp_path / "c.warc.wet.gz", records, compressed=compressed))
    assert [(text.content, text.url) for text in texts] == [("<p> año", "http://example.org/")]
    assert texts[0].metadata == Metadata('{"WARC-Identified-Content-Language":"spa"}')
    assert [(drop.reason, drop.what is None) for drop in dropped] == [("not_text", True), ("not_utf8", False)]


HTML = b"<p>hello\r\n\r\nagain"
GZIP = gzip.compress(HTML, mtime=0)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=koi8-r\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
#: Responses that all hold the same page.
RESPONSES = {
    "lines that end in LF": OK.replace(b"\r", b"") + b"\n" + HTML,
    "one line that ends in LF": b"HTTP/1.1 200 OK\nContent-Type: text/html; charset=koi8-r\nServer: s\r\n\r\n" + HTML,
    "an empty line of LF": OK + b"\n" + HTML,
    "a quoted charset": OK.replace(b"koi8-r", b'"KOI8-R"; q=1') + b"\r\n" + HTML,
    "chunks": CHUNKED + b"4\r\n<p>h\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(HTML) - 4, HTML[4:]),
    "chunks with extensions": CHUNKED + b"%X ;a=b\r\n%s\r\n0;c\r\nTrailer: t\r\n\r\n" % (len(HTML), HTML),
    "chunks with LF": CHUNKED + b"%x\n%s\n0\n\n" % (len(HTML), HTML),
    "chunks that break off": CHUNKED + b"%x\r\n%s\r\n" % (len(HTML) + 0, HTML),
    "chunks of gzip": OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n0\r\n\r\n" % (len(GZIP), GZIP),
    "gzip in transfer": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(GZIP), GZIP),
    "two headers of codings": OK
    + b"Content-Encoding: zstd\r\nContent-Encoding: gzip\r\n\r\n"
    + gzip.compress(zstandard.compress(HTML)),
}


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
def test_a_page_is_read_whatever_its_headers_and_codings(tmp_path: Path, name: str, line_end: bytes) -> None:
    block = RESPONSES[name]
    header = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: %d\r\n\r\n"
    record = (header % len(block)).replace(b"\r\n", line_end) + block + line_end * 2
    for compressed in (True, False):
        pages, dropped = read_crawl(tmp_path, [record, record], compressed=compressed)
        assert ([(page.content, page.charset) for page in pages], dropped) == ([(HTML, "koi8-r")] * 2, [])


@pytest.mark.parametrize(
    ("kind", "headers", "body", "expected"),
    [
        ("resource", "Content-Type: text/html; charset=koi8-r", HTML, "koi8-r"),
        ("resource", "WARC-Identified-Payload-Type: application/xhtml+xml", b"<?xml?><html>", None),
        ("resource", "A: b", b"\n<!DOCTYPE html>", None),
        ("resource", "A: b", b"<a <table> of figures", None),
        ("resource", "A: b", b"<address>", "not_html"),
        ("resource", "Content-Type: text/css", b"a {}", "not_html"),
        ("conversion", "Content-Type: text/html", HTML, None),
        ("conversion", "Content-Type: image/png", b"PNG", "not_text"),
        ("response", "Content-Type: text/dns", b"example.org. A 192.0.2.1", "not_html"),
        ("response", "Content-Type: application/http", b"HTTP/1.1 200 OK\r\n\r\n<html>", None),
        ("response", "Content-Type: application/http", b"HTTP/1.1 200 OK\r\n\r\nhtml", "not_html"),
        (
            "response",
            "Content-Type: application/http\r\nWARC-Identified-Payload-Type: text/html",
            b"HTTP/1.1 200 OK\r\n\r\n\0",
            None,
        ),
        (
            "response",
            "Content-Type: application/http\r\nWARC-Identified-Payload-Type: text/html",
            b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n\0",
            "not_html",
        ),
        ("response", "A: b", b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=koi8-r\r\n\r\n<p>", "koi8-r"),
        ("continuation", "WARC-Segment-Number: 2", b"<p>", "warc_continuation"),
        ("screenshot", "Content-Type: image/png", b"PNG", "warc_unknown"),
        ("response", "A: " + "b" * 100_000 + "\r\nContent-Type: text/html", HTML, None),
    ],
)
def test_records_of_every_type_are_read_or_counted(
    tmp_path: Path, kind: str, headers: str, body: bytes, expected: str | None
) -> None:
    head = f"WARC/1.1\r\nWARC-Type: {kind}\r\n{headers}\r\nContent-Length: {len(body)}\r\n\r\n"
    pages, dropped = read_crawl(tmp_path, [head.encode() + body + b"\r\n\r\n"])
    assert [page.charset for page in pages] + [drop.reason for drop in dropped] == [expected]
    assert not [drop for drop in dropped if drop.what]


@plain_and_compressed
def test_a_wrong_length_among_headers_of_lf_is_found(tmp_path: Path, compressed: bool) -> None:
    """Where fastwarc, in the mode that reads them, passes over what is no record."""
    header = b"WARC/1.0\nWARC-Type: resource\nContent-Type: text/html\nContent-Length: %d\n\n"
    bodies = [(b"<p>0", 4), (BODY, 100), (b"<p>1", 4), (BODY, 900), (b"<p>2", 4)]
    records = [header % length + body + b"\n\n" for body, length in bodies]
    pages, dropped = read_crawl(tmp_path, records, compressed=compressed)
    assert contents(pages) == BODIES[:3]
    assert [drop.reason for drop in dropped] == ["bad_length", "truncated"]


BODY = b"<p>" + b"B" * 500


#: What stands between two pages, and why it is dropped, plain and as a gzip member. Of junk behind a plain record
#: a wrong length would look the same, and so the page before goes too.
DAMAGE: dict[str, tuple[bytes, str | None, str]] = {
    **{f"length {n}": (corpus.record(BODY, length=n), "bad_length", "bad_length") for n in (100, 700, -5, 0)},
    "length 1e15": (corpus.record(BODY, length=10**15 - 1), "too_large", "too_large"),
    "records in a large one": (corpus.record(corpus.record(b"<p>in") * 9), "too_large", "too_large"),
    "junk": (b"\0" * 100_000, "bad_length", "unreadable"),
    "bomb": (b"b" * (1 << 26), None, "unreadable"),
    "bomb in a header": (b"WARC/1.0\r\nA: " + b"b" * (1 << 26), None, "unreadable"),
}


@plain_and_compressed
@pytest.mark.parametrize("name", DAMAGE)
def test_only_broken_records_are_dropped(tmp_path: Path, name: str, compressed: bool) -> None:
    damage, *reasons = DAMAGE[name]
    if (reason := reasons[compressed]) is None:
        pytest.skip("only a compressed file holds so much")
    records = RECORDS[:3]
    records[1:1] = [damage]
    pages, dropped = read_crawl(tmp_path, records, compressed=compressed, largest=1000)
    first = name == "junk" and not compressed
    assert contents(pages) == BODIES[first:3]
    assert [drop.reason for drop in dropped] == [reason]
    assert dropped[0].what
    assert dropped[0].where.startswith("c.warc: byte ")


@pytest.mark.parametrize("together", [4, 2])
@pytest.mark.parametrize("name", [name for name in DAMAGE if "bomb" not in name])
def test_a_broken_record_hides_no_other_of_its_member(tmp_path: Path, name: str, together: int) -> None:
    records = RECORDS[:3]
    records[1:1] = [DAMAGE[name][0]]
    members = [b"".join(records[n : n + together]) for n in range(0, 4, together)]
    pages, dropped = read_crawl(tmp_path, members, largest=1000)
    assert contents(pages) == BODIES[name == "junk" : 3]
    assert len(dropped) == 1


def test_members_that_a_wrong_length_joins_are_read_one_by_one(tmp_path: Path) -> None:
    records = RECORDS[:5]
    records[1:1] = [corpus.record(b"<p>", length=500) + records.pop(1), corpus.record(b"<p>", length=10**12)]
    pages, dropped = read_crawl(tmp_path, records, largest=1000)
    assert contents(pages) == BODIES[:5]
    assert [drop.reason for drop in dropped] == ["bad_length", "too_large"]


@plain_and_compressed
def test_white_space_may_follow_a_record(tmp_path: Path, compressed: bool) -> None:
    records = [record + b" \n\t\r\n" for record in RECORDS[:3]]
    pages, dropped = read_crawl(tmp_path, records, compressed=compressed)
    assert (contents(pages), dropped) == (BODIES[:3], [])


def test_a_large_record_that_ends_with_its_member_is_reported(tmp_path: Path) -> None:
    records = [corpus.record(b"<p>0") + corpus.record(b"<p>1", length=10**12)]
    pages, dropped = read_crawl(tmp_path, records, largest=1000)
    assert (contents(pages), [drop.ends_file for drop in dropped]) == (BODIES[:1], [True])


@example(position=0, junk=b"filedesc:")  # how an ARC file begins
@example(position=527, junk=b"\x04")  # a flag of a gzip header, which makes it as long as the rest of the file
@given(position=st.integers(min_value=0, max_value=1500), junk=st.binary(min_size=1, max_size=30))
def test_overwritten_bytes_lose_only_their_records(position: int, junk: bytes) -> None:
    header = "WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: {}"
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>%d"
    records = [header.format(len(block % n)).encode() + b"\r\n\r\n" + block % n + b"\r\n\r\n" for n in range(8)]
    content = bytearray(b"".join(gzip.compress(r, mtime=0) for r in records))
    position %= len(content)
    content[position : position + len(junk)] = junk
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.warc.gz"
        path.write_bytes(content)
        pages, _ = read(path)
    assert len({page.content for page in pages} & {*BODIES}) >= 8 - 2


@pytest.mark.parametrize(
    ("name", "pages", "dropped"),
    [
        ("commoncrawl_16.warc.gz", 16, []),
        ("dolma-0000.warc.gz", 22, []),
        ("whirlwind.warc.gz", 1, []),
        ("malformed/clipped.warc.gz", 0, ["truncated"]),
        ("malformed/example-bad-non-chunked.warc.gz", 1, []),
        ("malformed/example-resource.warc.gz", 1, []),
        ("malformed/example-trunc.warc", 0, ["bad_length"]),
        ("malformed/example-wrong-chunks.warc.gz", 1, []),
        ("malformed/example.warc.gz", 1, []),
    ],
)
def test_real_and_malformed_crawl_files_are_read_to_their_end(
    samples: Path, name: str, pages: int, dropped: list[str]
) -> None:
    records, drops = read(samples / "web" / name)
    others = {"warc_revisit", "not_html"}  # sound records of the published files
    assert (len(records), [drop.reason for drop in drops if drop.reason not in others]) == (pages, dropped)


@pytest.mark.parametrize("name", ["commoncrawl_16.warc.gz", "dolma-0000.warc.gz", "malformed/example.warc.gz"])
def test_warc_pages_match_warcio(samples: Path, name: str) -> None:
    from warcio.archiveiterator import ArchiveIterator

    with (samples / "web" / name).open("rb") as file:
        expected = [record.content_stream().read() for record in ArchiveIterator(file) if record.rec_type == "response"]
    assert [page.content for page in read(samples / "web" / name)[0]] == expected


def test_gzip_file_in_the_last_record_hides_nothing(tmp_path: Path) -> None:
    """The search for members that fastwarc has passed over begins behind the last one, not within it."""
    path = tmp_path / "a.warc.gz"
    path.write_bytes(corpus.member(corpus.record(b"<p>0")) + gzip.compress(corpus.record(gzip.compress(b"stored")), 0))
    pages, dropped = read(path)
    assert (len(pages), dropped) == (2, [])


def test_a_member_that_ends_with_a_chunk_read_hides_nothing(tmp_path: Path) -> None:
    two = gzip.compress(corpus.record(b"<p>0") + corpus.record(b"<p>1"), mtime=0)
    name = b"n" * (CHUNK_BYTES - len(two) - 1) + b"\0"  # of a file, in the header of the member
    (tmp_path / "a.warc.gz").write_bytes(
        two[:3] + b"\x08" + two[4:10] + name + two[10:] + gzip.compress(corpus.record(b"<p>2"))
    )
    pages, dropped = read(tmp_path / "a.warc.gz")
    assert (contents(pages), dropped) == (BODIES[:3], [])


@pytest.mark.parametrize("length", [b"Content-Length", b"Content-Length: +0"])
def test_a_record_that_only_fastwarc_takes_hides_no_other(tmp_path: Path, length: bytes) -> None:
    records = RECORDS[:5]
    members = [records[0], b"WARC/1.0\r\n" + length + b"\r\n\r\n", records[1], records[2], records[3] + records[4]]
    pages, dropped = read_crawl(tmp_path, members)
    assert contents(pages) == BODIES[:5]
    assert [drop.reason for drop in dropped] == ["bad_length"]


@plain_and_compressed
def test_file_cut_within_a_header_loses_only_that_record(tmp_path: Path, compressed: bool) -> None:
    whole = RECORDS[:3]
    content = whole[0] + whole[1] + whole[2][:20]
    pages, dropped = read_crawl(tmp_path, [content], compressed=compressed)
    assert contents(pages) == BODIES[:2]
    assert [drop.where.rpartition(" ")[2] for drop in dropped] == ["0" if compressed else f"{len(whole[0] + whole[1])}"]


@pytest.mark.parametrize(
    "start", [b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 9000000\r\n\r\n", b"\x1f\x8b\x08\0\0\0\0\0\0\xff\0"]
)
def test_file_of_many_broken_starts_is_given_up(tmp_path: Path, start: bytes) -> None:
    """Of which each would be read as a long record, so the work of all would grow with the square of the size."""
    first = corpus.record(b"<p>0")
    (tmp_path / "a.warc").write_bytes((gzip.compress(first) if start[0] == 0x1F else first) + start * 20_000)
    pages, dropped = read(tmp_path / "a.warc")
    assert contents(pages) == BODIES[:1]
    assert dropped[-1].ends_file
    assert "broken places" in str(dropped[-1].what)


# --- content codings --------------------------------------------------------------------------------------------------

PAGE = b"<p>hello " * 50
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "Deflate": lambda body: zlib.compress(body, wbits=-15),
    "br": lambda body: bytes(brotli.compress(body, quality=1)),
    "zstd": zstandard.compress,
    "identity": bytes,
    "gzip, gzip": lambda body: gzip.compress(gzip.compress(body)),
    "br, gzip": lambda body: gzip.compress(brotli.compress(body, quality=1)),
}


@pytest.mark.parametrize("coding", CODINGS)
def test_content_codings_are_decoded(coding: str) -> None:
    assert decode_content(CODINGS[coding](PAGE), coding, 1000) == PAGE
    assert decode_content(PAGE, coding, 1000) == PAGE


def test_members_and_frames_of_a_coding_are_joined() -> None:
    page, half = PAGE * 2, len(PAGE) // 2
    for coding in ("gzip", "zstd"):
        parts = [CODINGS[coding](part) for part in (PAGE, b"", PAGE)]
        assert decode_content(b"".join(parts), coding, 10_000) == page
        assert decode_content(parts[0] + b"\r\nno member", coding, 10_000) == PAGE
        assert decode_content(b"".join(parts), coding, half)[:half] == PAGE[:half]
    with pytest.raises(ValueError, match="members"):
        decode_content(gzip.compress(b"") * 100_000, "gzip", 1000)
    with pytest.raises(ValueError, match="9 nested codings"):
        decode_content(page, ",".join(["gzip"] * 9), 1000)
    with pytest.raises(ValueError, match="chunk"):
        decode_content(b"2\r\n<p\r\nno size\r\n", "chunked", 1000)


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "gzip, gzip"])
def test_decompression_bomb_is_cut_at_max_bytes(tmp_path: Path, coding: str) -> None:
    body = CODINGS[coding](bytes(1 << 25))
    http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: {coding}"
    assert 1000 < len(decode_content(body, coding, 1000)) < 1 << 20
    records = [corpus.record(b"<p>a"), corpus.record(body, http=http), corpus.record(b"<p>b")]
    pages, dropped = read_crawl(tmp_path, records, largest=1 << 20)
    assert contents(pages) == [b"<p>a", b"<p>b"]
    assert [drop.reason for drop in dropped] == ["too_large"]


LETTERS = hashlib.shake_256(b"page").hexdigest(10_000).encode()  # half a byte each: no coding shortens them more


@pytest.mark.parametrize("coding", ["gzip", "zstd", "deflate", "br"])
def test_truncated_coding_is_read_and_corrupt_one_refused(coding: str) -> None:
    encoded = CODINGS[coding](LETTERS)
    if coding == "zstd":
        encoded = zstandard.ZstdCompressor(write_checksum=True).compress(LETTERS)
    assert LETTERS.startswith(decode_content(encoded[: len(encoded) // 2], coding, 1 << 20))
    if coding in {"gzip", "zstd"}:
        with pytest.raises(ValueError, match=r"rror|orrupt"):
            decode_content(
                encoded[:300] + bytes(byte ^ 255 for byte in encoded[300:400]) + encoded[400:], coding, 1 << 20
            )


# --- ARC -------------------------------------------------------------------------------------------------------------

FILEDESC = b"1 0 Example\nURL IP-address Archive-date Content-type Archive-length\n"


def arc_record(url: str, body: bytes, *, length: int | None = None, header: str = "Content-Type: text/html") -> bytes:
    block = body if url.startswith(("filedesc:", "dns:")) else f"HTTP/1.1 200 OK\r\n{header}\r\n\r\n".encode() + body
    return (
        f"{url} 192.0.2.1 20080430204826 text/html {len(block) if length is None else length}\n".encode()
        + block
        + b"\n"
    )


def arc(path: Path, records: list[bytes], *, compressed: bool) -> Path:
    return crawl(path, [arc_record("filedesc://c.arc", FILEDESC), *records], compressed=compressed)


@plain_and_compressed
def test_arc_pages_match_warcio(tmp_path: Path, compressed: bool) -> None:
    from warcio.archiveiterator import ArchiveIterator

    chunked = "Content-Type: text/html; charset=koi8-r\r\nTransfer-Encoding: chunked"
    records = [
        arc_record("dns:example.org", b"20080430204826\nexample.org. 192.0.2.1"),
        arc_record("http://example.org/1", b"<p>one\nhttp://example.org/ 1 2\n"),
        arc_record("http://example.org/2", b"3\r\n<p>\r\n0\r\n\r\n", header=chunked),
        arc_record("http://example.org/3", b"GIF", header="Content-Type: image/gif"),
    ]
    path = arc(tmp_path / "c.arc", records, compressed=compressed)
    pages, dropped = read(path)
    with path.open("rb") as file:
        expected = [
            (record.rec_headers.get_header("WARC-Target-URI"), record.content_stream().read())
            for record in ArchiveIterator(file, arc2warc=True)
            if record.rec_type == "response"
        ]
    assert [(page.url, page.content) for page in pages] == [
        (url, body) for url, body in expected if body.startswith(b"<p>")
    ]
    assert [(page.number, page.charset) for page in pages] == [(2, None), (3, "koi8-r")]
    assert [drop.reason for drop in dropped] == ["not_html"]


@plain_and_compressed
@pytest.mark.parametrize("length", [20, 300, 1 << 20, 10**12])
def test_arc_record_with_wrong_length_is_reported(tmp_path: Path, length: int, compressed: bool) -> None:
    records = [arc_record(f"http://example.org/{n}", b"<p>%d" % n) for n in range(2)]
    records.insert(1, arc_record("http://example.org/lies", b"<p>lies", length=length))
    pages, dropped = read(arc(tmp_path / "c.arc", records, compressed=compressed), largest=1 << 21)
    assert contents(pages) == BODIES[:2]
    assert dropped[0].where.startswith("c.arc: byte ")
    assert dropped[0].what
    assert not dropped[-1].ends_file


@plain_and_compressed
def test_arc_url_may_have_spaces_and_the_type_may_have_them_or_be_missing(tmp_path: Path, compressed: bool) -> None:
    odd = arc_record("http://example.org/0", b"<p>0")
    records = [
        odd,
        odd.replace(b"org/0", b"org/a b"),
        odd.replace(b"text/html 5", b"text/html; charset=x 5"),
        odd.replace(b"text/html 5", b" 5"),
        odd,
    ]
    pages, dropped = read(arc(tmp_path / "c.arc", records, compressed=compressed))
    assert [page.url for page in pages] == [f"http://example.org/{name}" for name in ("0", "a b", "0", "0", "0")]
    assert dropped == []


@example(position=383, junk=b"\x04", compressed=True)  # an error that warcio only prints
@example(position=35, junk=b"\x04", compressed=True)  # a flag by which the rest of the file is one header
@given(position=st.integers(0, 1200), junk=st.binary(min_size=1, max_size=30), compressed=st.booleans())
def test_no_bytes_of_an_arc_file_raise(position: int, junk: bytes, compressed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        records = [arc_record(f"http://example.org/{n}", b"<p>%d" % n) for n in range(8)]
        path = arc(Path(folder) / "c.arc", records, compressed=compressed)
        content = bytearray(path.read_bytes())
        position = 100 + position % (len(content) - 100)  # keep the start, by which the format is recognised
        content[position : position + len(junk)] = junk
        path.write_bytes(content)
        pages, dropped = read(path)
    whole = {page.content for page in pages} & {*BODIES}
    assert len(whole) >= 8 - 2 or dropped
