"""The HTML page in a crawled HTTP response, transfer and content codings undone, within a size limit; its text in WET.

fastwarc also undoes content codings, but all at once and without a limit: a kilobyte of gzip within gzip can hold
gigabytes. So fastwarc undoes the transfer coding, which cannot expand the record, and this module the content codings.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import brotli
import zstandard

from .record import Dropped, Record, json_metadata

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

HTML_TYPES, TEXT_TYPE = {"text/html", "application/xhtml+xml"}, "text/plain"
#: Headers of a record that are the same in all, or describe what is not kept.
REDUNDANT_HEADERS = {"warc-type", "warc-target-uri", "content-length", "content-type"}
OK = 200
GZIP_WBITS = zlib.MAX_WBITS | 16
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_CODINGS = 4


def read_html_page(record: WarcRecord, number: int, where: str, url: str, max_bytes: int) -> Record | Dropped:
    """The page of a complete response record: status 200, an HTML type, at most ``max_bytes`` bytes."""
    try:
        record.parse_http(auto_decode="transfer")
        if record.http_headers is None or record.http_headers.status_code is None:
            return Dropped("bad_http", where, "a response without a status line of HTTP")
        if record.http_headers.status_code != OK:
            return Dropped("http_status", where)
        if (record.http_content_type or "").lower() not in HTML_TYPES:
            return Dropped("not_html", where)
        codings = record.http_headers.get("Content-Encoding") or ""
        content = decode_content(record.reader.read(max_bytes + 1), codings, max_bytes)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None):  # of the disk
            raise
        return Dropped("bad_http", where, str(error))
    if len(content) > max_bytes:
        return Dropped("too_large", where, f"longer than {max_bytes} bytes")
    metadata = json_metadata({**_kept_headers(record), "Content-Type": record.http_headers.get("Content-Type")})
    return Record(number, content, url, record.http_charset, metadata=metadata)


def read_converted_text(record: WarcRecord, number: int, where: str, url: str) -> Record | Dropped:
    """The text of a complete conversion record, of which Common Crawl's WET files consist: plain text in UTF-8."""
    kind = record.headers.get("Content-Type") or TEXT_TYPE
    if kind.partition(";")[0].strip().lower() != TEXT_TYPE:
        return Dropped("not_text", where)
    try:
        text = record.reader.read().decode()
    except UnicodeDecodeError as error:
        return Dropped("not_utf8", where, str(error))
    return Record(number, text, url, metadata=json_metadata(_kept_headers(record)))


def _kept_headers(record: WarcRecord) -> dict[str, str]:
    """The headers of the record that say where it comes from."""
    return {name: value for name, value in record.headers if name.lower() not in REDUNDANT_HEADERS}


def decode_content(body: bytes, codings: str, max_bytes: int) -> bytes:
    """The body with its ``Content-Encoding`` undone, cut off a little after ``max_bytes``.

    A body that is not encoded as declared is returned as it is, since many crawlers decode the body and keep the
    header; that is one without the magic number of gzip or Zstandard, and one that deflate or Brotli cannot decode. Of
    a stream that breaks off what came of it is returned, an unknown coding is left. Raises ``ValueError`` where gzip or
    Zstandard find their stream corrupt, and for more than ``MAX_CODINGS`` codings.
    """
    names = [name.strip().lower() for name in codings.split(",")]
    if len(names) > MAX_CODINGS:
        raise ValueError(f"{len(names)} content codings, one in another")
    for name in reversed(names):
        match name:
            case "gzip" | "x-gzip":
                body = _inflate(body, GZIP_WBITS, max_bytes) if body.startswith(GZIP_MAGIC) else body
            case "deflate":
                body = _decode_deflate(body, max_bytes)
            case "br":
                body = _decode_brotli(body, max_bytes)
            case "zstd":
                body = _decode_zstd(body, max_bytes) if body.startswith(ZSTD_MAGIC) else body
    return body


def _inflate(body: bytes, wbits: int, max_bytes: int) -> bytes:
    try:
        return zlib.decompressobj(wbits).decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None


def _decode_deflate(body: bytes, max_bytes: int) -> bytes:
    for wbits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):  # zlib-wrapped as RFC 9110 has it; raw, as some servers send it
        try:
            return _inflate(body, wbits, max_bytes)
        except ValueError:
            continue
    return body


def _decode_brotli(body: bytes, max_bytes: int) -> bytes:
    try:
        return bytes(brotli.Decompressor().process(body, output_buffer_limit=max_bytes + 1))
    except brotli.error:
        return body


def _decode_zstd(body: bytes, max_bytes: int) -> bytes:
    try:
        return zstandard.ZstdDecompressor().stream_reader(body).read(max_bytes + 1)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None
