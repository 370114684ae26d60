"""Targets: crawl files (WARC, ARC), other source files, HTTP responses with their codings and charset, HTML pages."""

from __future__ import annotations

from contextlib import suppress

from harness import scratch

from mtnlg_data.extract.charset import decode_html
from mtnlg_data.extract.text import PARSE_ERRORS, ExtractSettings, extract_record
from mtnlg_data.sources import Dropped, Record, SourceFile, read_records
from mtnlg_data.sources.response import CrawlRecord, read_payload

MAX_RECORD_BYTES = 1 << 18
KINDS = {
    "jsonl": {"field": "data.text", "id": "data.id", "message": "{role}: {content}\n"},
    "csv": {},
    "text": {"document": "paragraph"},
    "tar": {},
}
SETTINGS = ExtractSettings(languages=())


def crawl(data: bytes) -> None:
    """Read a WARC or ARC file: whatever it holds, each item is a record or says why there is none."""
    path = scratch("c.warc")
    path.write_bytes(data)
    for item in read_records(SourceFile("s", path, path.name, "warc"), MAX_RECORD_BYTES):
        assert isinstance(item, Dropped) or len(item.content) <= MAX_RECORD_BYTES


def rows(data: bytes) -> None:
    """Read a file of each of these formats: each item is a text within the limit, or says why there is none."""
    path = scratch("rows")
    path.write_bytes(data)
    for kind, options in KINDS.items():
        for item in read_records(SourceFile("s", path, path.name, kind, options), MAX_RECORD_BYTES):
            if isinstance(item, Record):
                assert isinstance(item.content, str)
                assert len(f"{item.content}{item.id}".encode()) <= 2 * MAX_RECORD_BYTES


def response(data: bytes) -> None:
    """Read a response: its page is within the limit, and becomes text."""
    record = CrawlRecord(0, [("WARC-Type", "response"), ("WARC-Target-URI", "http://example.org/")], data)
    page = read_payload(record, 0, "c.warc: byte 0", MAX_RECORD_BYTES)
    if isinstance(page, Record):
        assert isinstance(page.content, bytes)
        assert len(page.content) <= MAX_RECORD_BYTES
        assert isinstance(decode_html(page.content, page.charset), str)


def html(data: bytes) -> None:
    """Extract the text of a page: a text, or the reason why there is none."""
    with suppress(*PARSE_ERRORS):
        extracted = extract_record(Record(0, data, "http://example.org/"), SETTINGS)
        assert extracted.text or extracted.reason
        extracted.text.encode()


TARGETS = {
    "crawl": crawl,
    "rows": rows,
    "response": response,
    "html": html,
}
