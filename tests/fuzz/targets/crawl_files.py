"""Targets: crawl files (WARC, ARC), HTTP responses with their codings and charset, HTML pages."""

from __future__ import annotations

from contextlib import suppress

from fastwarc.warc import WarcRecord, WarcRecordType
from harness import scratch

from mtnlg_data.extract.charset import decode_html
from mtnlg_data.extract.text import PARSE_ERRORS, ExtractSettings, extract_record
from mtnlg_data.sources import Dropped, Record, SourceFile, read_records
from mtnlg_data.sources.response import read_html_page

MAX_RECORD_BYTES = 1 << 18
SETTINGS = ExtractSettings(languages=())


def crawl(data: bytes) -> None:
    """Read a WARC or ARC file: whatever it holds, each item is a record or says why there is none."""
    path = scratch("c.warc")
    path.write_bytes(data)
    for item in read_records(SourceFile("s", path, path.name, "warc"), MAX_RECORD_BYTES):
        assert isinstance(item, Dropped) or len(item.content) <= MAX_RECORD_BYTES


def response(data: bytes) -> None:
    """Read a response: its page is within the limit, and becomes text."""
    record = WarcRecord()
    record.init_headers(record_type=WarcRecordType.response)
    record.set_bytes_content(data)
    record.is_http = True
    page = read_html_page(record, 0, "c.warc: byte 0", "http://example.org/", MAX_RECORD_BYTES)
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
    "response": response,
    "html": html,
}
