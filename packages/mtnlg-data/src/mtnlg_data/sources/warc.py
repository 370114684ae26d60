"""WARC: the HTML pages of a crawl, or their texts, read with fastwarc and resynchronised after broken records.

fastwarc is fast but trusts every record: a truncated payload comes out short, a wrong length shifts all that follows,
and a broken gzip member ends the file, silently where the flags of its header are broken.
This reader holds each record back until the next one begins at the announced offset. After a broken record it searches
for the next gzip magic or line ``WARC/1``, so one bad record costs one record; ``recovery`` bounds the work.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from .arc import GZIP_MEMBER, MAX_HEADER_BYTES, check_arc, check_member, is_arc, read_arc, read_gzip_member
from .parts import WHOLE, Checked, Part, begins_short, find_part, mapped
from .record import Dropped
from .recovery import Recovery, find
from .response import read_converted_text, read_html_page

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator
    from pathlib import Path

    from .record import Record

WARC_START = b"WARC/1."
PLAIN_START = re.compile(rb"WARC/1\.")
RECORD_START = re.compile(rb"\x1f\x8b\x08|WARC/1\.")
HEADER_END = b"\r\n\r\n"
CONTENT_LENGTH = re.compile(rb"\r\nContent-Length: *(\d{1,15})\r\n", re.IGNORECASE)
LONGEST_START = len(WARC_START)
CHUNK_BYTES = 1 << 20


class Defect(NamedTuple):
    """A broken record."""

    offset: int
    reason: str
    what: str
    cost: int = 0  # bytes of content that were read of it


def read_warc(path: Path, max_bytes: int, part: Part = WHOLE) -> Iterator[Record | Dropped]:
    """Yield the pages of a WARC file, plain or compressed: responses of status 200 and an HTML type, codings undone.

    Of a WET file, the texts of its conversion records.
    An ARC file is recognised by its content, whatever its name. Of a part, the pages whose records begin in it.
    """
    with path.open("rb") as file:
        if is_arc(file.read(CHUNK_BYTES)):
            yield from read_arc(path, max_bytes, part)
            return
        begin, end = _range(file, part)
        beginning = file if part.parts == 1 else cast("BinaryIO", _Beginning(file, end))
        for number, record in enumerate(_complete_records(beginning, path.name, max_bytes, begin)):
            if isinstance(record, Dropped):
                yield record
                continue
            url = (record.headers.get("WARC-Target-URI") or "").strip("<>")
            where = f"{path.name}: byte {record.stream_pos}"
            if record.record_type == WarcRecordType.response:
                yield read_html_page(record, number, where, url, max_bytes)
            elif record.record_type == WarcRecordType.conversion:
                yield read_converted_text(record, number, where, url)


def can_cut(path: Path, count: int) -> bool:
    """Whether the file's records can be found from any place: its first gzip member, if it has any, is not long."""
    with path.open("rb") as file, mapped(file) as content:
        return begins_short(content, count, check_arc if is_arc(content[:CHUNK_BYTES]) else _check)


def _check(content: mmap.mmap, start: int) -> Checked:
    """Whether a record begins here, in a gzip member or before another record."""
    if GZIP_MEMBER.match(content, start):
        return check_member(content, start, PLAIN_START)
    head = content[start : start + MAX_HEADER_BYTES]
    header_end = head.find(HEADER_END) + len(HEADER_END)
    length = CONTENT_LENGTH.search(head, 0, header_end)
    if length is None or content[max(0, start - 1) : start] not in {b"", b"\n"}:
        return Checked(False, start + len(head))
    end = start + header_end + int(length[1])
    behind = content[end : end + len(HEADER_END) + LONGEST_START]
    return Checked(behind in {HEADER_END, HEADER_END + WARC_START}, end + len(HEADER_END))


def _range(file: BinaryIO, part: Part) -> tuple[int, int]:
    """Where the records of a part begin, and those of the next."""
    if part.parts == 1:
        return 0, os.fstat(file.fileno()).st_size
    with mapped(file) as content:
        is_gzip = GZIP_MEMBER.match(content) is not None
        return find_part(content, part, GZIP_MEMBER if is_gzip else PLAIN_START, _check)


class _Beginning:
    """The bytes of a file before ``end``, as a file."""

    def __init__(self, file: BinaryIO, end: int) -> None:
        self._file = file
        self._end = end
        self.seek, self.tell, self.fileno = file.seek, file.tell, file.fileno

    def read(self, size: int) -> bytes:
        """Read as a file does."""
        return self._file.read(min(size, max(0, self._end - self._file.tell())))


def _complete_records(file: BinaryIO, name: str, max_bytes: int, begin: int) -> Iterator[WarcRecord | Dropped]:
    """Yield the complete records from ``begin`` on; after a broken one, resume at the next record start."""
    start: int | None = begin
    reported = False
    size = os.fstat(file.fileno()).st_size
    recovery = Recovery(size)
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
        defect = defect._replace(offset=max(defect.offset, start))
        start = find(RECORD_START, file, _search_offset(file, defect, recovery), LONGEST_START)
        if not reported:  # a false start found by the search is still the same broken record
            ends_file = start is None and file.tell() == size and defect.reason != "too_large"
            yield Dropped(defect.reason, f"{name}: byte {defect.offset}", defect.what, ends_file=ends_file)
        reported = True


def _records_until_defect(file: BinaryIO, max_bytes: int) -> Iterator[WarcRecord | Defect]:
    """Yield complete, frozen records from the file's position on, then the defect that ended them, if any."""
    previous: WarcRecord | None = None
    offset, length = file.tell(), 0
    try:
        for record in ArchiveIterator(file, parse_http=False):
            if previous is not None:
                yield previous
            previous, offset = None, record.stream_pos
            length = record.content_length
            if length > max_bytes:
                yield Defect(offset, "too_large", f"its Content-Length is {length}")
                return
            if "Content-Length" not in record.headers:
                yield Defect(offset, "truncated", "its header breaks off")
                return
            record.freeze()
            if record.content_length < length:
                what = f"its Content-Length is {length}, but {record.content_length} bytes follow"
                yield Defect(offset, "truncated", what, record.content_length)
                return
            previous = record
    except OSError as error:
        if error.errno:
            raise
        for item in _after_parse_error(file, offset, previous, str(error)):
            yield item._replace(cost=length) if isinstance(item, Defect) else item
        return
    if previous is not None:
        yield previous
    yield from _unread_member(file, offset, previous)


def _after_parse_error(
    file: BinaryIO, offset: int, last: WarcRecord | None, what: str
) -> Iterator[WarcRecord | Defect]:
    """Yield the ``last`` record, at ``offset``, if it is complete in spite of the error behind it, then the defect."""
    if last is None:
        yield Defect(offset, "unreadable", what)
    elif "WARC header" in what and not _fills_gzip_member(file, offset, last):
        # No record begins where this one's length says that it ends.
        yield Defect(offset, "bad_length", what)
    else:
        yield last
        yield Defect(offset, "unreadable", f"behind the record at this place: {what}")


def _fills_gzip_member(file: BinaryIO, offset: int, record: WarcRecord) -> bool:
    """Whether the gzip member at ``offset`` holds exactly this record, so that its length is right."""
    with mapped(file) as content:
        member = read_gzip_member(content, offset, MAX_HEADER_BYTES + record.content_length)
    body = member.text.find(HEADER_END) + len(HEADER_END)
    return not member.defect and member.text[body + record.content_length :] == b"\r\n\r\n"


def _search_offset(file: BinaryIO, defect: Defect, recovery: Recovery) -> int:
    """Where to search for the next record after a broken one, whose reading has come to ``file.tell()``.

    That is its end, where the record is uncompressed and another begins there: a record that is too large may contain
    complete records that are not part of the crawl.
    """
    examined = file.tell()
    file.seek(defect.offset)
    start = file.read(MAX_HEADER_BYTES)
    resume = recovery.resume(defect.offset, examined, defect.cost + len(start))
    header_end = start.find(HEADER_END) + len(HEADER_END)
    length = CONTENT_LENGTH.search(start, 0, header_end) if start.startswith(WARC_START) else None
    if length is not None:
        end = defect.offset + header_end + int(length[1]) + len(b"\r\n\r\n")
        file.seek(end)
        if RECORD_START.match(file.read(LONGEST_START)):
            return max(end, resume)
    return resume


def _unread_member(file: BinaryIO, offset: int, last: WarcRecord | None) -> Iterator[Defect]:
    """Yield a defect where fastwarc stopped early: a gzip member follows the last record, or no record was read."""
    file.seek(offset)
    if not GZIP_MEMBER.match(file.read(3)):
        return
    end = offset + 1
    if last is not None:  # and may itself hold gzip members, as it was crawled
        with mapped(file) as content:
            end = read_gzip_member(content, offset, MAX_HEADER_BYTES + last.content_length).end
    member = find(GZIP_MEMBER, file, end, 3)
    if member is not None:
        yield Defect(offset if last is None else member, "unreadable", "the flags of its gzip header hide what follows")
