"""ARC, the format of crawls before WARC: versions 1 and 2, plain or a gzip member a record.

A record is one line, its URL first and its length last, and as many bytes, with a line feed behind them::

    http://example.org/ 192.0.2.1 20080430204826 text/html 1030

The first record describes the file. fastwarc reads no ARC, but it does read the HTTP response that a record holds.
"""

from __future__ import annotations

import mmap
import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

from fastwarc.warc import WarcRecord, WarcRecordType

from .members import GZIP, MEMBER, member_at
from .record import Dropped, Record
from .response import page_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MARK = b"filedesc:"
HEADER = re.compile(rb"([a-z][a-z0-9+.-]{0,20}:[^\n ]{0,8192}) [^\n ]{1,64} \d{12,14} [^\n]{0,1024}? ?(\d{1,15})\r?\n")
NEXT_HEADER = re.compile(rb"(?<=\n)" + HEADER.pattern)
GAP = re.compile(rb"[\r\n]*")
LONGEST_HEADER = 1 << 14


class Part(NamedTuple):
    """A record as it lies in its file."""

    where: str  # the byte at which it, or the gzip member that holds it, begins
    url: str
    body: bytes


def is_arc(beginning: bytes) -> bool:
    """Whether a file that begins so is an ARC file."""
    if MEMBER.match(beginning):
        try:
            beginning = zlib.decompressobj(GZIP).decompress(beginning, len(MARK))
        except zlib.error:
            return False
    return beginning.startswith(MARK)


def read_arc(path: Path, largest: int) -> Iterator[Record | Dropped]:
    """The pages of an ARC file: responses of status 200 and an HTML type, decoded of transfer."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        parts = _of_members(content, largest) if MEMBER.match(content) else _of_records(content, largest)
        for place, part in enumerate(parts):
            where = f"{path.name}: byte {part.where}"
            if isinstance(part, Dropped):
                yield part._replace(where=where)
            elif part.url.startswith(("http:", "https:")):
                record = WarcRecord()
                record.init_headers(record_type=WarcRecordType.response)
                record.set_bytes_content(part.body)
                record.is_http = True
                yield page_of(record, place, where, part.url, largest)


def _of_members(content: mmap.mmap, largest: int) -> Iterator[Part | Dropped]:
    """The records of a compressed file, a gzip member each; behind a broken one the search for the next goes on."""
    most = largest + LONGEST_HEADER
    begin, sound = 0, True
    while begin < len(content):
        text, behind = None, begin + 1
        try:
            text, end = member_at(content, begin, most)
            reason, what = "too_large", f"expands to more than {most} bytes"
        except EOFError as error:
            reason, what = "truncated", str(error)
        except zlib.error as error:
            reason, what = "unreadable", str(error)
        if text is not None and len(text) <= most:
            behind, sound = end, True
            yield from (part._replace(where=str(begin)) for part in _of_records(text, largest))
        elif sound:  # a search that stumbles over what is no beginning is still the same bad record
            yield Dropped(reason, str(begin), what)
            sound = False
        following = MEMBER.search(content, behind)
        begin = following.start() if following else len(content)


def _of_records(content: bytes | mmap.mmap, largest: int) -> Iterator[Part | Dropped]:
    """The records that lie here one behind the other; one that does not end where it says costs itself."""
    begin, sound = 0, True
    while begin < len(content):
        header = HEADER.match(content, begin)
        end = header.end() + int(header[2]) if header else begin
        following = _following(content, end) if header else None
        if header and following is not None and int(header[2]) <= largest:
            sound = True
            yield Part(str(begin), header[1].decode(errors="replace"), content[header.end() : end])
        elif header or sound:
            yield _broken(begin, header, len(content), largest)
            sound = False
        if following is None:
            found = NEXT_HEADER.search(content, header.end() if header else begin + 1)
            following = found.start() if found else len(content)
        begin = following


def _following(content: bytes | mmap.mmap, end: int) -> int | None:
    """Where the next record begins, or the content ends, if a record that ends here is one; else None."""
    gap = GAP.match(content, end) if end <= len(content) else None
    behind = gap.end() if gap else 0
    return behind if gap and (behind == len(content) or HEADER.match(content, behind)) else None


def _broken(begin: int, header: re.Match[bytes] | None, size: int, largest: int) -> Dropped:
    if header is None:
        return Dropped("bad_length", str(begin), "no record begins here")
    length = int(header[2])
    if length > largest:
        return Dropped("too_large", str(begin), f"its length is {length}")
    if header.end() + length > size:
        return Dropped("truncated", str(begin), f"its length is {length}, but {size - header.end()} bytes follow")
    return Dropped("bad_length", str(begin), f"its length is {length}, but no record begins behind it")
