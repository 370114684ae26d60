"""WARC: the HTML pages of a crawl, through fastwarc.

fastwarc reads fast but takes a record at its word: a payload that ends early is handed out short, a length that lies
shifts all that follows, and a broken gzip member ends the file, in silence where the flags of its header broke.
This adapter holds every record until the next has begun where the first said it would, and after a broken one searches
for the next beginning: a gzip member or a line ``WARC/1``, so one bad record costs one record.
"""

from __future__ import annotations

import mmap
import re
import zlib
from typing import TYPE_CHECKING, BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from .arc import is_arc, read_arc
from .members import MEMBER, member_at
from .record import Dropped
from .response import page_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .record import Record

BEGINNING = re.compile(rb"\x1f\x8b\x08|WARC/1\.")
LENGTH = re.compile(rb"WARC/1\.(?:[^\r\n]+\r\n)+?Content-Length: *(\d{1,15})\r\n(?:[^\r\n]+\r\n)*\r\n", re.IGNORECASE)
OVERLAP = len(b"WARC/1.") - 1
CHUNK = 1 << 20
LONGEST_HEADER = 1 << 14


def read_warc(path: Path, largest: int) -> Iterator[Record | Dropped]:
    """The pages of a WARC file, plain or compressed: responses of status 200 and an HTML type, decoded of transfer.

    An ARC file, which it is whatever its name, is read as such.
    """
    with path.open("rb") as file:
        if is_arc(file.read(CHUNK)):
            yield from read_arc(path, largest)
            return
        for place, record in enumerate(_whole_records(file, path.name, largest)):
            if isinstance(record, Dropped):
                yield record
            elif record.record_type == WarcRecordType.response:
                url = (record.headers.get("WARC-Target-URI") or "").strip("<>")
                yield page_of(record, place, f"{path.name}: byte {record.stream_pos}", url, largest)


def _whole_records(file: BinaryIO, name: str, largest: int) -> Iterator[WarcRecord | Dropped]:
    start: int | None = 0
    sound = True
    while start is not None:
        broken = -1
        file.seek(start)
        for record in _records_until_broken(file, largest):
            if isinstance(record, WarcRecord):
                sound = True
                yield record
            else:
                broken, reason, what = record
                if sound:  # a search that stumbles over what is no beginning is still the same bad record
                    yield Dropped(reason, f"{name}: byte {broken}", what)
                sound = False
        start = _next_beginning(file, _behind(file, max(broken, start))) if broken >= 0 else None


def _records_until_broken(file: BinaryIO, largest: int) -> Iterator[WarcRecord | tuple[int, str, str]]:
    """Whole records from here on, frozen; last, where one is broken, its offset, a reason and what is wrong."""
    held: WarcRecord | None = None
    offset = file.tell()
    try:
        for record in ArchiveIterator(file, parse_http=False):
            if held is not None:
                yield held
            held, offset = None, record.stream_pos
            length = record.content_length
            if length > largest:
                yield offset, "too_large", f"its Content-Length is {length}"
                return
            if "Content-Length" not in record.headers:
                yield offset, "truncated", "its header breaks off"
                return
            record.freeze()
            if record.content_length < length:
                yield offset, "truncated", f"its Content-Length is {length}, but {record.content_length} bytes follow"
                return
            held = record
    except OSError as error:
        if error.errno:
            raise
        yield from _left_at(file, offset, held, largest, str(error))
        return
    if held is not None:
        yield held
    yield from _hidden_behind(file, offset, held)


def _left_at(
    file: BinaryIO, offset: int, held: WarcRecord | None, largest: int, what: str
) -> Iterator[WarcRecord | tuple[int, str, str]]:
    """The record at ``offset``, if it is whole where reading on ended like this, and what ended there."""
    if held is None:
        yield offset, "unreadable", what
    elif "WARC header" in what and not _is_whole_member(file, offset, held, largest):
        # No record begins where this one said that it ends.
        yield offset, "bad_length", what
    else:
        yield held
        yield offset, "unreadable", f"behind the record at this place: {what}"


def _is_whole_member(file: BinaryIO, offset: int, record: WarcRecord, largest: int) -> bool:
    """Whether the gzip member at ``offset`` holds this record and no more: what follows does not speak against it."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            text, _ = member_at(content, offset, largest + LONGEST_HEADER)
        except (EOFError, zlib.error):
            return False
    header = text.find(b"\r\n\r\n") + 4
    return text[header + record.content_length :] == b"\r\n\r\n"


def _behind(file: BinaryIO, offset: int) -> int:
    """From where on to search behind a broken record: its end, where it is plain and another begins there.

    A record that is too large may hold whole records, which are not the crawl's.
    """
    file.seek(offset)
    header = LENGTH.match(file.read(LONGEST_HEADER))
    if header is not None:
        end = offset + header.end() + int(header[1]) + len(b"\r\n\r\n")
        file.seek(end)
        if BEGINNING.match(file.read(OVERLAP + 1)):
            return end
    return offset + 1


def _hidden_behind(file: BinaryIO, offset: int, last: WarcRecord | None) -> Iterator[tuple[int, str, str]]:
    """The member behind the last record, at ``offset``, if there is one; that at ``offset`` itself after no record."""
    file.seek(offset)
    hidden = _next_beginning(file, offset + 1, MEMBER) if MEMBER.match(file.read(3)) else None
    if hidden is not None:
        yield (offset if last is None else hidden), "unreadable", "the flags of its gzip header hide what follows"


def _next_beginning(file: BinaryIO, start: int, what: re.Pattern[bytes] = BEGINNING) -> int | None:
    """The offset of the next place, at or after ``start``, that looks like the beginning of a record."""
    file.seek(start)
    window = b""
    while chunk := file.read(CHUNK):
        window += chunk
        found = what.search(window)
        if found:
            return start + found.start()
        start += len(window) - OVERLAP
        window = window[-OVERLAP:]
    return None
