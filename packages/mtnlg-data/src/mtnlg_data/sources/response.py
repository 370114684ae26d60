"""Read the HTML page of a crawled HTTP response, decoded within a size limit, or the text of a WET record.

Lines of headers end in CRLF or LF. Content codings are undone within a limit, since a kilobyte of gzip within gzip can
hold gigabytes.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

import brotli
import zstandard

from .record import Dropped, Record, json_metadata, text_record, too_large

#: Types of WARC's records.
TYPES = {"warcinfo", "response", "resource", "request", "metadata", "revisit", "conversion", "continuation"}
HTML_TYPES, TEXT_TYPE, HTTP_TYPE = {"text/html", "application/xhtml+xml"}, "text/plain", "application/http"
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
OK, NO_STATUS = b"200", "no HTTP status line"
HTTP_STATUS = re.compile(rb"HTTP/\S+ +(\d{1,9})")
HEADER_END = re.compile(rb"\n\r?\n")
CONTINUED = re.compile(r"\r?\n[ \t]+")
CODINGS = ("content-encoding", "transfer-encoding")
GZIP_WBITS = zlib.MAX_WBITS | 16
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
#: Size of a chunk, with extensions, after the line end of the previous chunk.
CHUNK_START = re.compile(rb"(?:\r?\n)?([0-9a-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n", re.IGNORECASE)
CUT_CHUNK_START = b"\r\n0123456789abcdefABCDEF"
MAX_CODINGS = 5
MAX_GZIP_MEMBERS = 1000


Fields = list[tuple[str, str]]


class CrawlRecord(NamedTuple):
    """A complete record, with the fields of its header as they are written."""

    offset: int
    fields: Fields
    body: bytes

    @property
    def type(self) -> str:
        """Its type in lower case; unknown for one that the standard lacks."""
        kind = value_of(self.fields, "warc-type").lower()
        return kind if kind in TYPES else "unknown"

    @property
    def url(self) -> str:
        """The URL of what was crawled."""
        return value_of(self.fields, "warc-target-uri").strip("<>")

    @property
    def kept_fields(self) -> dict[str, str]:
        """The fields that say where it comes from."""
        return {name: value for name, value in self.fields if name.lower() not in REDUNDANT_HEADERS}


def parse_fields(header: bytes) -> Fields:
    """Names and values of a header's fields; a line that begins with white space continues the one before."""
    lines = CONTINUED.sub(" ", header.decode("utf-8", "replace")).split("\n")
    fields = (line.partition(":") for line in lines)
    return [(name.strip(), value.strip()) for name, colon, value in fields if colon]


def value_of(fields: Fields, name: str) -> str:
    """The first value of the field of this name, which is in lower case; empty if there is none."""
    return next((value for field, value in fields if field.lower() == name), "")


def read_payload(record: CrawlRecord, number: int, where: str, max_bytes: int) -> Record | Dropped:
    """The page or text of a complete record: of a response, a resource or a conversion."""
    if record.type not in {"response", "resource", "conversion"}:
        return Dropped(f"warc_{record.type}", where)
    kind = value_of(record.fields, "content-type")
    if record.type != "conversion" or _essence(kind) in HTML_TYPES:
        return _read_page(record, number, where, max_bytes)
    if _essence(kind or TEXT_TYPE) != TEXT_TYPE:
        return Dropped("not_text", where)
    return text_record(
        number, record.body, where, max_bytes, url=record.url, metadata=json_metadata(record.kept_fields)
    )


def _read_page(record: CrawlRecord, number: int, where: str, max_bytes: int) -> Record | Dropped:
    """The HTML page of a record, at most ``max_bytes`` bytes: of an HTTP response of status 200, or the block.

    Its media type is that of its header, else the one that the crawler identified, else HTML if it begins like HTML.
    """
    fields, body, codings = record.fields, record.body, ""
    kind = value_of(fields, "content-type")
    if _essence(kind) == HTTP_TYPE or (record.type == "response" and not kind):
        status = HTTP_STATUS.match(body)
        if status is None or status[1] != OK:
            return Dropped("http_status", where) if status else Dropped("bad_http", where, NO_STATUS)
        end = HEADER_END.search(body, 0, MAX_HEADER_BYTES)
        size = end.end() if end else len(body)
        fields, body = parse_fields(body[:size]), body[size:]
        codings = ",".join(value for wanted in CODINGS for name, value in fields if name.lower() == wanted)
    kind = value_of(fields, "content-type") or value_of(record.fields, "warc-identified-payload-type")
    is_html = not kind or _essence(kind) in HTML_TYPES
    try:
        content = decode_content(body, codings, max_bytes) if is_html else b""
    except ValueError as error:
        return Dropped("bad_http", where, str(error))
    if not is_html or not (kind or HTML_START.match(content)):
        return Dropped("not_html", where)
    if len(content) > max_bytes:
        return too_large(where, max_bytes)
    charset = CHARSET.search(kind.lower())
    metadata = json_metadata(record.kept_fields | {"Content-Type": kind})
    return Record(number, content, record.url, charset and charset[1], metadata=metadata)


def _essence(kind: str) -> str:
    """A media type without its parameters."""
    return kind.partition(";")[0].strip().lower()


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
