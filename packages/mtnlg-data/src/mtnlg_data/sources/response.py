"""Read the HTML page of a crawled HTTP response, decoded within a size limit, or the text of a WET record.

fastwarc also decodes, but content codings without a limit (a kilobyte of gzip within gzip can hold gigabytes), and
chunks only if they have no extensions and the crawler has not joined them. So this module decodes both.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

import brotli
import zstandard
from fastwarc.warc import WarcRecordType

from .record import Dropped, Record, json_metadata, text_record, too_large

if TYPE_CHECKING:
    from fastwarc.warc import WarcRecord

HTML_TYPES, TEXT_TYPE = {"text/html", "application/xhtml+xml"}, "text/plain"
#: How HTML without a type begins (mimesniff.spec.whatwg.org).
HTML_START = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*<(?:!--|(?:!doctype html|html|head|body|title|script|style|iframe|"
    rb"div|table|font|h1|a|b|br|p)[\s>])",
    re.IGNORECASE,
)
CHARSET = re.compile(r"charset\s*=\s*[\"']?([^\s\"';,]+)")
#: Headers that are the same in all records, or describe what is not kept.
REDUNDANT_HEADERS = {"warc-type", "warc-target-uri", "content-length", "content-type"}
MAX_HEADER_BYTES = 1 << 18  # of HTTP, and of WARC
OK, NO_STATUS = 200, "no HTTP status line"
GZIP_WBITS = zlib.MAX_WBITS | 16
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: Size of a chunk, with extensions, after the line end of the previous chunk.
CHUNK_START = re.compile(rb"(?:\r?\n)?([0-9a-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n", re.IGNORECASE)
CUT_CHUNK_START = b"\r\n0123456789abcdefABCDEF"
MAX_CODINGS = 5
MAX_GZIP_MEMBERS = 1000


def read_payload(record: WarcRecord, number: int, where: str, url: str, max_bytes: int) -> Record | Dropped:
    """The page or text of a complete record: of a response, a resource or a conversion."""
    kind = record.headers.get("Content-Type") or ""
    match record.record_type:
        case WarcRecordType.conversion if _essence(kind) not in HTML_TYPES:
            return read_converted_text(record, number, where, url)
        case WarcRecordType.response | WarcRecordType.resource | WarcRecordType.conversion:
            if not kind and record.record_type == WarcRecordType.response:
                record.is_http = True
            return read_html_page(record, number, where, url, max_bytes)
    return Dropped(f"warc_{record.record_type}", where)


def read_html_page(record: WarcRecord, number: int, where: str, url: str, max_bytes: int) -> Record | Dropped:
    """The HTML page of a complete record, at most ``max_bytes`` bytes: of an HTTP response of status 200, or the block.

    Its media type is that of its header, else the one that the crawler identified, else HTML if it begins like HTML.
    """
    headers, codings = record.headers, ""
    try:
        if record.is_http:
            record.parse_http(quirks_mode=True, max_header_len=MAX_HEADER_BYTES)  # lines may end in LF
            headers = record.http_headers
            if (status := headers.status_code) != OK:
                return Dropped("http_status", where) if status else Dropped("bad_http", where, NO_STATUS)
            codings = ",".join(headers.get_multiple("Content-Encoding") + headers.get_multiple("Transfer-Encoding"))
        kind = headers.get("Content-Type") or record.headers.get("WARC-Identified-Payload-Type") or ""
        if kind and _essence(kind) not in HTML_TYPES:
            return Dropped("not_html", where)
        content = decode_content(record.reader.read(max_bytes + 1), codings, max_bytes)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None):  # of the disk
            raise
        return Dropped("bad_http", where, str(error))
    if not kind and not HTML_START.match(content):
        return Dropped("not_html", where)
    if len(content) > max_bytes:
        return too_large(where, max_bytes)
    charset = CHARSET.search(kind.lower())
    metadata = json_metadata({**_kept_headers(record), "Content-Type": kind})
    return Record(number, content, url, charset and charset[1], metadata=metadata)


def read_converted_text(record: WarcRecord, number: int, where: str, url: str) -> Record | Dropped:
    """The text of a complete conversion record (WET files of Common Crawl consist of these): plain text in UTF-8."""
    if _essence(record.headers.get("Content-Type") or TEXT_TYPE) != TEXT_TYPE:
        return Dropped("not_text", where)
    metadata = json_metadata(_kept_headers(record))
    return text_record(number, record.reader.read(), where, record.content_length, url=url, metadata=metadata)


def _essence(kind: str) -> str:
    """A media type without its parameters."""
    return kind.partition(";")[0].strip().lower()


def _kept_headers(record: WarcRecord) -> dict[str, str]:
    """The headers of the record that say where it comes from."""
    return {name: value for name, value in record.headers if name.lower() not in REDUNDANT_HEADERS}


def decode_content(body: bytes, codings: str, max_bytes: int) -> bytes:
    """The body with its content and transfer codings undone, last one first, cut off a little after ``max_bytes``.

    A body that is not encoded as declared is returned as it is, since many crawlers decode the body and keep the
    header: one that does not begin with a chunk size or the magic number of gzip or Zstandard, or that deflate or
    Brotli cannot decode. Members of gzip, and frames of Zstandard, are joined. Of a truncated stream, the part that
    decodes is returned; an unknown coding is left as it is. Raises ``ValueError`` if gzip, Zstandard or chunks are
    corrupt, and for more than ``MAX_CODINGS`` codings or ``MAX_GZIP_MEMBERS`` members.
    """
    names = [name.strip().lower() for name in codings.split(",")]
    if len(names) > MAX_CODINGS:
        raise ValueError(f"{len(names)} nested codings")
    for name in reversed(names):
        match name:
            case "chunked":
                body = _join_chunks(body)
            case "gzip" | "x-gzip":
                body = _decode_gzip(body, max_bytes) if body.startswith(GZIP_MAGIC) else body
            case "deflate":
                body = _decode_deflate(body, max_bytes)
            case "br":
                body = _decode_brotli(body, max_bytes)
            case "zstd":
                body = _decode_zstd(body, max_bytes) if body.startswith(ZSTD_MAGIC) else body
    return body


def _join_chunks(body: bytes) -> bytes:
    chunks: list[bytes] = []
    place, size = 0, 1
    while size and (start := CHUNK_START.match(body, place)):
        size = int(start[1], 16)
        place = start.end() + size
        chunks.append(body[start.end() : place])
    if chunks and size and body[place:].strip(CUT_CHUNK_START):
        raise ValueError(f"no chunk begins at byte {place}")
    return b"".join(chunks) or body


def _decode_gzip(body: bytes, max_bytes: int) -> bytes:
    members: list[bytes] = []
    room = max_bytes + 1
    while body.startswith(GZIP_MAGIC) and room:
        if len(members) == MAX_GZIP_MEMBERS:  # each is cut off the body by a copy of the rest
            raise ValueError(f"more than {MAX_GZIP_MEMBERS} members of gzip")
        member, body = _inflate(body, GZIP_WBITS, room)
        members.append(member)
        room -= len(member)
    return b"".join(members)


def _inflate(body: bytes, wbits: int, most: int) -> tuple[bytes, bytes]:
    """At most ``most`` decompressed bytes of a stream, and the bytes that follow the stream."""
    decompressor = zlib.decompressobj(wbits)
    try:
        return decompressor.decompress(body, most), decompressor.unused_data
    except zlib.error as error:
        raise ValueError(str(error)) from None


def _decode_deflate(body: bytes, max_bytes: int) -> bytes:
    for wbits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):  # zlib-wrapped as RFC 9110 has it; raw, as some servers send it
        try:
            return _inflate(body, wbits, max_bytes + 1)[0]
        except ValueError:
            continue
    return body


def _decode_brotli(body: bytes, max_bytes: int) -> bytes:
    try:
        return bytes(brotli.Decompressor().process(body, output_buffer_limit=max_bytes + 1))
    except brotli.error:
        return body


def _decode_zstd(body: bytes, max_bytes: int) -> bytes:
    for frames in (True, False):  # what follows the first may be no frame
        try:
            return zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=frames).read(max_bytes + 1)
        except zstandard.ZstdError as error:
            failure = str(error)
    raise ValueError(failure)
