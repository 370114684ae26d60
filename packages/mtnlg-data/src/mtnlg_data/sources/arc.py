"""ARC, the crawl format before WARC: versions 1 and 2, plain or with one gzip member per record.

A record is a header line, URL first and body length last, then the body and a line feed::

    http://example.org/ 192.0.2.1 20080430204826 text/html 1030

The first record describes the file. fastwarc does not read ARC, but it parses the HTTP response in a record's body.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Literal, NamedTuple

from fastwarc.warc import WarcRecord

from .parts import WHOLE, Checked, Part, find_part, mapped
from .record import Dropped, Record
from .recovery import Recovery
from .response import GZIP_WBITS, read_html_page

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator
    from pathlib import Path

ARC_BEGIN = re.compile(rb"filedesc:[ -~]{23}")
"""Of the record that describes an ARC file, which is its first: an address, and more on the same line."""

ARC_BEGIN_BYTES = 32
GZIP_MEMBER = re.compile(rb"\x1f\x8b\x08")
RECORD_HEADER = re.compile(
    rb"([a-z][a-z0-9+.-]{0,20}:[^\n ]{0,8192}) [^\n ]{1,64} \d{12,14} [^\n]{0,1024}? ?(\d{1,15})\r?\n"
)
NEXT_HEADER = re.compile(rb"(?<=\n)" + RECORD_HEADER.pattern)
LINE_BREAKS = re.compile(rb"[\r\n]{0,64}")
MAX_HEADER_BYTES = 1 << 14
CHUNK_BYTES = 1 << 16
MAX_CHECKED_BYTES = 1 << 28  # of a member that is only checked


class ArcRecord(NamedTuple):
    """A record as stored in the file."""

    where: str  # byte offset of the record, or of the gzip member that holds it
    url: str
    ip: str
    date: str  # digits: year, month, day, hour, minute, and mostly second
    body: bytes


def is_arc(head: bytes) -> bool:
    """Whether a file that begins with ``head`` is ARC, plain or gzipped."""
    if GZIP_MEMBER.match(head):
        try:
            head = zlib.decompressobj(GZIP_WBITS).decompress(head, ARC_BEGIN_BYTES)
        except zlib.error:
            return False
    return ARC_BEGIN.match(head) is not None


def read_arc(path: Path, max_bytes: int, part: Part = WHOLE) -> Iterator[Record | Dropped]:
    """Yield the pages of an ARC file: responses of status 200 and an HTML type, content codings undone."""
    with path.open("rb") as file, mapped(file) as content:
        if GZIP_MEMBER.match(content):
            records = _split_members(content, max_bytes, *find_part(content, part, GZIP_MEMBER, check_arc))
        else:
            records = _split_plain(content, max_bytes, *find_part(content, part, RECORD_HEADER, check_arc))
        for number, item in enumerate(records):
            where = f"{path.name}: byte {item.where}"
            if isinstance(item, Dropped):
                yield item._replace(where=where)
            elif item.url.startswith(("http:", "https:")):
                record = WarcRecord()
                record.headers["WARC-IP-Address"] = item.ip
                record.headers["WARC-Date"] = "{}{}-{}-{}T{}:{}:{}Z".format(*re.findall("..", f"{item.date:0<14}"))
                record.set_bytes_content(item.body)
                record.is_http = True
                yield read_html_page(record, number, where, item.url, max_bytes)


def check_arc(content: mmap.mmap, start: int) -> Checked:
    """Whether a record begins here, in a gzip member of its own or before another record."""
    if GZIP_MEMBER.match(content):
        return check_member(content, start, RECORD_HEADER)
    header = RECORD_HEADER.match(content, start)
    if header is None or content[max(0, start - 1) : start] not in {b"", b"\n"}:
        return Checked(False, start + 1)
    following = _next_record(content, header.end() + int(header[2]))
    return Checked(following is not None, start + 2 * MAX_HEADER_BYTES if following is None else following)


def check_member(content: mmap.mmap, start: int, begin: re.Pattern[bytes]) -> Checked:
    """Whether a gzip member begins here whose checksum is right, and whose content begins so."""
    member = read_gzip_member(content, start, MAX_CHECKED_BYTES)
    is_whole = member.defect is None and len(member.text) <= MAX_CHECKED_BYTES
    return Checked(is_whole and begin.match(member.text) is not None, member.end, len(member.text))


def _split_members(content: mmap.mmap, max_bytes: int, start: int, end: int) -> Iterator[ArcRecord | Dropped]:
    """Yield the records of a compressed file, one gzip member each; after a broken member, search for the next."""
    limit = max_bytes + MAX_HEADER_BYTES
    reported = False
    recovery = Recovery(len(content))
    while start < end:
        broken = None
        member = read_gzip_member(content, start, limit)
        if len(member.text) > limit:
            broken = Dropped("too_large", str(start), f"expands to more than {limit} bytes")
        elif member.defect:
            broken = Dropped(member.defect, str(start), member.what)
        if broken is None:
            reported, resume = False, member.end
            records = _split_plain(member.text, max_bytes, 0, len(member.text))
            yield from (item._replace(where=str(start)) for item in records)
        else:
            resume = recovery.resume(start, member.end, len(member.text))
            if not reported:  # a false start found by the search is still the same broken member
                yield broken
            reported = True
        next_start = GZIP_MEMBER.search(content, resume)
        start = next_start.start() if next_start else len(content)


class GzipMember(NamedTuple):
    """What decompressing a gzip member gave."""

    text: bytes  # at most one byte more than the limit
    end: int  # offset of its end, or of what was read of it
    defect: Literal["truncated", "unreadable"] | None = None
    what: str | None = None


def read_gzip_member(content: mmap.mmap, start: int, limit: int) -> GzipMember:
    """Decompress the gzip member at ``start`` as far as it is intact and not longer than ``limit``."""
    decompressor = zlib.decompressobj(GZIP_WBITS)
    pieces: list[bytes] = []
    size, offset = 0, start
    while not decompressor.eof and size <= limit:
        chunk = decompressor.unconsumed_tail
        if not chunk:
            chunk = content[offset : offset + CHUNK_BYTES]
            offset += len(chunk)
            if not chunk:
                what = "the file breaks off within a gzip member"
                return GzipMember(b"".join(pieces), offset, "truncated", what)
        try:
            pieces.append(decompressor.decompress(chunk, min(CHUNK_BYTES, limit + 1 - size)))
        except zlib.error as error:
            return GzipMember(b"".join(pieces), offset, "unreadable", str(error))
        size += len(pieces[-1])
    return GzipMember(b"".join(pieces), offset - len(decompressor.unused_data or decompressor.unconsumed_tail))


def _split_plain(content: bytes | mmap.mmap, max_bytes: int, start: int, last: int) -> Iterator[ArcRecord | Dropped]:
    """Yield the records of uncompressed ARC; a record that does not end where its length says is dropped alone."""
    reported = False
    recovery = Recovery(len(content))
    while start < last:
        header = RECORD_HEADER.match(content, start)
        end = header.end() + int(header[2]) if header else start
        resume = _next_record(content, end) if header else None
        if header and resume is not None and int(header[2]) <= max_bytes:
            reported = False
            url, ip, date = header[0].decode(errors="replace").split(" ", 3)[:3]
            yield ArcRecord(str(start), url, ip, date, content[header.end() : end])
        elif header or not reported:
            yield _diagnose(start, header, len(content), max_bytes)
            reported = True
        if resume is None:
            # A header that is none has cost at most its own length and that of a line where its record should end.
            resume = recovery.resume(start, start + 2 * MAX_HEADER_BYTES)
            match = NEXT_HEADER.search(content, max(resume, header.end() if header else 0))
            resume = match.start() if match else len(content)
        start = resume


def _next_record(content: bytes | mmap.mmap, end: int) -> int | None:
    """Offset of the header, or end of the content, that follows a record ending at ``end``; None for neither."""
    gap = LINE_BREAKS.match(content, end) if end <= len(content) else None
    offset = gap.end() if gap else 0
    return offset if gap and (offset == len(content) or RECORD_HEADER.match(content, offset)) else None


def _diagnose(start: int, header: re.Match[bytes] | None, size: int, max_bytes: int) -> Dropped:
    if header is None:
        return Dropped("bad_length", str(start), "no record begins here")
    length = int(header[2])
    if length > max_bytes:
        return Dropped("too_large", str(start), f"its length is {length}")
    if header.end() + length > size:
        return Dropped("truncated", str(start), f"its length is {length}, but {size - header.end()} bytes follow")
    return Dropped("bad_length", str(start), f"its length is {length}, but no record begins behind it")
