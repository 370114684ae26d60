"""WARC: the HTML pages of a crawl, read with fastwarc and resynchronised after broken records.

fastwarc is fast but trusts every record: a truncated payload comes out short, a wrong length shifts all that follows,
and a broken gzip member ends the file, silently where the flags of its header are broken.
This reader holds each record back until the next one begins at the announced offset. After a broken record it searches
for the next gzip magic or line ``WARC/1``, so one bad record costs one record.
"""

from __future__ import annotations

import mmap
import re
import zlib
from typing import TYPE_CHECKING, BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from .arc import GZIP_MEMBER, MAX_HEADER_BYTES, is_arc, read_arc, read_gzip_member
from .record import Dropped
from .response import read_html_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .record import Record

RECORD_START = re.compile(rb"\x1f\x8b\x08|WARC/1\.")
HEADER_WITH_LENGTH = re.compile(
    rb"WARC/1\.(?:[^\r\n]+\r\n)+?Content-Length: *(\d{1,15})\r\n(?:[^\r\n]+\r\n)*\r\n", re.IGNORECASE
)
OVERLAP = len(b"WARC/1.") - 1
CHUNK_BYTES = 1 << 20

Defect = tuple[int, str, str]  # offset of a broken record, drop reason, what is wrong


def read_warc(path: Path, max_bytes: int) -> Iterator[Record | Dropped]:
    """Yield the pages of a WARC file, plain or compressed: responses of status 200 and an HTML type, codings undone.

    An ARC file is recognised by its content, whatever its name.
    """
    with path.open("rb") as file:
        if is_arc(file.read(CHUNK_BYTES)):
            yield from read_arc(path, max_bytes)
            return
        for number, record in enumerate(_complete_records(file, path.name, max_bytes)):
            if isinstance(record, Dropped):
                yield record
            elif record.record_type == WarcRecordType.response:
                url = (record.headers.get("WARC-Target-URI") or "").strip("<>")
                yield read_html_page(record, number, f"{path.name}: byte {record.stream_pos}", url, max_bytes)


def _complete_records(file: BinaryIO, name: str, max_bytes: int) -> Iterator[WarcRecord | Dropped]:
    """Yield the complete records of a file; after a broken one, resume at the next record start."""
    start: int | None = 0
    reported = False
    while start is not None:
        defect: Defect | None = None
        file.seek(start)
        for record in _records_until_defect(file, max_bytes):
            if isinstance(record, WarcRecord):
                reported = False
                yield record
            else:
                defect = record
        if defect is None:
            return
        broken_at, reason, what = defect
        start = _find(RECORD_START, file, _search_offset(file, max(broken_at, start)))
        if not reported:  # a false start found by the search is still the same broken record
            yield Dropped(reason, f"{name}: byte {broken_at}", what, ends_file=start is None and reason != "too_large")
        reported = True


def _records_until_defect(file: BinaryIO, max_bytes: int) -> Iterator[WarcRecord | Defect]:
    """Yield complete, frozen records from the file's position on, then the defect that ended them, if any."""
    previous: WarcRecord | None = None
    offset = file.tell()
    try:
        for record in ArchiveIterator(file, parse_http=False):
            if previous is not None:
                yield previous
            previous, offset = None, record.stream_pos
            length = record.content_length
            if length > max_bytes:
                yield offset, "too_large", f"its Content-Length is {length}"
                return
            if "Content-Length" not in record.headers:
                yield offset, "truncated", "its header breaks off"
                return
            record.freeze()
            if record.content_length < length:
                yield offset, "truncated", f"its Content-Length is {length}, but {record.content_length} bytes follow"
                return
            previous = record
    except OSError as error:
        if error.errno:
            raise
        yield from _after_parse_error(file, offset, previous, max_bytes, str(error))
        return
    if previous is not None:
        yield previous
    yield from _unread_member(file, offset, previous)


def _after_parse_error(
    file: BinaryIO, offset: int, last: WarcRecord | None, max_bytes: int, what: str
) -> Iterator[WarcRecord | Defect]:
    """Yield the ``last`` record, at ``offset``, if it is complete in spite of the error behind it, then the defect."""
    if last is None:
        yield offset, "unreadable", what
    elif "WARC header" in what and not _fills_gzip_member(file, offset, last, max_bytes):
        # No record begins where this one's length says that it ends.
        yield offset, "bad_length", what
    else:
        yield last
        yield offset, "unreadable", f"behind the record at this place: {what}"


def _fills_gzip_member(file: BinaryIO, offset: int, record: WarcRecord, max_bytes: int) -> bool:
    """Whether the gzip member at ``offset`` holds exactly this record, so that its length is right."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            text, _ = read_gzip_member(content, offset, max_bytes + MAX_HEADER_BYTES)
        except (EOFError, zlib.error):
            return False
    body = text.find(b"\r\n\r\n") + 4
    return text[body + record.content_length :] == b"\r\n\r\n"


def _search_offset(file: BinaryIO, offset: int) -> int:
    """Where to search for the next record after a broken one at ``offset``.

    That is its end, where the record is uncompressed and another begins there: a record that is too large may contain
    complete records that are not part of the crawl. Otherwise it is the next byte.
    """
    file.seek(offset)
    header = HEADER_WITH_LENGTH.match(file.read(MAX_HEADER_BYTES))
    if header is not None:
        end = offset + header.end() + int(header[1]) + len(b"\r\n\r\n")
        file.seek(end)
        if RECORD_START.match(file.read(OVERLAP + 1)):
            return end
    return offset + 1


def _unread_member(file: BinaryIO, offset: int, last: WarcRecord | None) -> Iterator[Defect]:
    """Yield a defect where fastwarc stopped early: a gzip member follows the last record, or no record was read."""
    file.seek(offset)
    member = _find(GZIP_MEMBER, file, offset + 1) if GZIP_MEMBER.match(file.read(3)) else None
    if member is not None:
        yield (offset if last is None else member), "unreadable", "the flags of its gzip header hide what follows"


def _find(pattern: re.Pattern[bytes], file: BinaryIO, start: int) -> int | None:
    """Offset of the first match at or after ``start``; the pattern matches at most ``OVERLAP`` + 1 bytes."""
    file.seek(start)
    window = b""
    while chunk := file.read(CHUNK_BYTES):
        window += chunk
        match = pattern.search(window)
        if match:
            return start + match.start()
        start += len(window) - OVERLAP
        window = window[-OVERLAP:]
    return None
