"""The page in an HTTP response, as a crawl's record holds it: transfer and content codings undone, never past a bound.

fastwarc undoes content codings too, but all at once and whatever they expand to: a kilobyte of gzip in gzip holds
gigabytes. So the transfer coding is its business, which adds nothing to the record, and the content codings are ours.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import brotli
import zstandard

from .record import Dropped, Record

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

HTML = {"text/html", "application/xhtml+xml"}
OK = 200
GZIP_MARK = b"\x1f\x8b"
ZSTD_MARK = b"\x28\xb5\x2f\xfd"
MOST_CODINGS = 4


def page_of(record: WarcRecord, place: int, where: str, url: str, largest: int) -> Record | Dropped:
    """The page of a whole response record: status 200, an HTML type, at most ``largest`` bytes."""
    try:
        record.parse_http(auto_decode="transfer")
        status = record.http_headers.status_code if record.http_headers else None
        if status != OK:
            return Dropped("http_status", where)
        if record.http_content_type not in HTML:
            return Dropped("not_html", where)
        content = decoded(record.reader.read(largest + 1), record.http_headers.get("Content-Encoding") or "", largest)
    except (OSError, ValueError) as error:
        return Dropped("bad_http", where, str(error))
    if len(content) > largest:
        return Dropped("too_large", where, f"longer than {largest} bytes")
    return Record(place, content, url, record.http_charset)


def decoded(body: bytes, codings: str, largest: int) -> bytes:
    """The body without its content codings; no more than a little over ``largest`` bytes of it.

    One that is not coded as it says is taken as it is, as many a crawler undid the coding and kept the header. Raises
    ``ValueError`` where a coding breaks off in mid-stream or is none.
    """
    names = [name.strip().lower() for name in codings.split(",")]
    if len(names) > MOST_CODINGS:
        raise ValueError(f"{len(names)} content codings, one in another")
    for name in reversed(names):
        match name:
            case "gzip" | "x-gzip":
                body = _inflated(body, zlib.MAX_WBITS | 16, largest) if body.startswith(GZIP_MARK) else body
            case "deflate":
                body = _deflate_decoded(body, largest)
            case "br":
                body = _brotli_decoded(body, largest)
            case "zstd":
                body = _zstd_decoded(body, largest) if body.startswith(ZSTD_MARK) else body
    return body


def _inflated(body: bytes, window: int, largest: int) -> bytes:
    try:
        return zlib.decompressobj(window).decompress(body, largest + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None


def _deflate_decoded(body: bytes, largest: int) -> bytes:
    for window in (zlib.MAX_WBITS, -zlib.MAX_WBITS):  # as the standard has it, and as some servers send it
        try:
            return _inflated(body, window, largest)
        except ValueError:
            continue
    return body


def _brotli_decoded(body: bytes, largest: int) -> bytes:
    try:
        return bytes(brotli.Decompressor().process(body, output_buffer_limit=largest + 1))
    except brotli.error:
        return body


def _zstd_decoded(body: bytes, largest: int) -> bytes:
    try:
        return zstandard.ZstdDecompressor().stream_reader(body).read(largest + 1)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
