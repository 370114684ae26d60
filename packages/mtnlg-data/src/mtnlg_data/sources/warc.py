"""WARC: the HTML pages of a crawl, or their texts, read with fastwarc and resynchronised after broken records.

fastwarc is fast but trusts every record: a truncated payload comes out short, a wrong length shifts all that follows,
and a broken gzip member ends the file, silently if the flags of its header are broken. This reader holds each record
back until the next one begins at the announced offset. After a broken record it searches for the next gzip magic or
line ``WARC/1``, so one bad record costs one record. A file with more than ``MAX_DEFECTS`` broken places, each of which
costs at most a record's bytes, is read no further. From the first header whose lines end in LF, fastwarc reads in its
quirks mode, which accepts such lines but skips whatever is no header; so here each record is checked against what
follows it.

ARC, the crawl format before WARC, is read with warcio; there a broken record costs the rest of the file.
"""

from __future__ import annotations

import mmap
import os
import re
import zlib
from contextlib import redirect_stderr, suppress
from io import StringIO
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from mtnlg_data.console import Failure
from mtnlg_data.files import open_regular
from mtnlg_data.settings import setting
from mtnlg_data.transfer.snapshot import downloaded_files
from mtnlg_data.transfer.urls import local_only

from .reader import Part, Reader, reader
from .record import Dropped, Record
from .response import GZIP_WBITS, MAX_HEADER_BYTES, read_html_page, read_payload

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GZIP_MAGIC = b"\x1f\x8b\x08"
GZIP_MEMBER = re.compile(re.escape(GZIP_MAGIC))
RECORD_START = re.compile(rb"\x1f\x8b\x08|WARC/[01]\.")
HEADER_END = re.compile(rb"\n\r?\n")
BARE_LF = re.compile(rb"[^\r]\n")
CONTENT_LENGTH = re.compile(rb"\nContent-Length: *(\d{1,15})\r?\n", re.IGNORECASE)
ARC_START = re.compile(rb"filedesc:[ -~]{23}")  # of the first record, which describes the file
ARC_DATE = re.compile(r"\d{12,14}")
CHECKED_BYTES = 1 << 14  # of a header with LF, and of what follows its record
#: Records that describe others, or the file.
DESCRIPTIONS = (WarcRecordType.warcinfo, WarcRecordType.request, WarcRecordType.metadata)
MAX_DEFECTS = 1000
CHUNK_BYTES = 1 << 18
#: Characters of text per byte of a file, if most is kept: a little too many rather than too few.
COMPRESSED_PAGES, PLAIN_PAGES = 0.25, 0.05


class Defect(NamedTuple):
    """A broken record."""

    offset: int
    reason: str
    what: str


@reader("warc", [f"*.{stem}{suffix}" for stem in ("warc", "warc.wet", "arc") for suffix in ("", ".gz")])
class Warc(Reader):
    """Pages of WARC and ARC files, texts of WET files; each file is one unit of work, however large.

    An ARC file is recognised by its content, whatever its name.
    """

    version, pages = 2, True
    snapshot: str | None = setting(None, "Instead of paths: a folder filled by mtnlg-data fetch.")

    @property
    def finds_files(self) -> bool:
        """Whether a snapshot is given."""
        return self.snapshot is not None

    def find(self, folder: Path) -> list[tuple[str, Path]]:
        """The files of a snapshot fetched so far, in the order of its listing, so that later ones come last."""
        place = folder / local_only(self.snapshot or "")
        if files := downloaded_files(place):
            return files
        raise Failure(f"{place}: no file here yet; mtnlg-data fetch SNAPSHOT --out {place} fetches some")

    def characters(self, name: str, size: int) -> float:
        """Estimated by the file's suffix; most of a page is markup."""
        name = name.lower()
        if name.endswith((".warc.gz", ".arc.gz")):
            return size * COMPRESSED_PAGES
        return size * PLAIN_PAGES if name.endswith((".warc", ".arc")) else super().characters(name, size)

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield pages (HTML of responses of status 200, of resources, of conversions) and the texts of conversions."""
        del part
        with open_regular(path, follow=True) as file:
            if ARC_START.match(_read_start(file, 0)):
                file.seek(0)
                yield from read_arc(file, path.name, max_bytes)
                return
            for number, record in enumerate(_complete_records(file, path.name, max_bytes)):
                if isinstance(record, Dropped):
                    yield record
                    continue
                url = (record.headers.get("WARC-Target-URI") or "").strip("<>")
                where = f"{path.name}: byte {record.stream_pos}"
                if record.record_type not in DESCRIPTIONS:
                    yield read_payload(record, number, where, url, max_bytes)


def _read_start(file: BinaryIO, offset: int) -> bytes:
    """Beginning of the record at ``offset``, decompressed if it is gzipped, as long as a header may be."""
    file.seek(offset)
    start = file.read(CHUNK_BYTES)
    if start.startswith(GZIP_MAGIC):
        with suppress(zlib.error):
            return zlib.decompressobj(GZIP_WBITS).decompress(start, MAX_HEADER_BYTES)
    return start


def _header_bytes(start: bytes) -> int:
    """Length of the header that begins a record; 0 if there is none."""
    header = HEADER_END.search(start) if start.startswith(b"WARC/") else None
    return header.end() if header else 0


def read_arc(file: BinaryIO, name: str, max_bytes: int) -> Iterator[Record | Dropped]:
    """Yield the pages of an ARC file of version 1: responses of status 200 and an HTML type, content codings undone."""
    from warcio.archiveiterator import ArchiveIterator as WarcioIterator  # noqa: PLC0415  (few have ARC)

    archive = WarcioIterator(file, no_record_parse=True)
    number = offset = end = 0
    said = StringIO()  # where warcio writes what a broken gzip member raised, and goes on as at the end of the file
    while True:
        try:
            with redirect_stderr(said):
                if (arc := next(archive, None)) is None:
                    break
                url, ip, date, _, length = (value for _, value in arc.rec_headers.headers)
                body = arc.raw_stream.read(max_bytes + 1) if arc.length else b""
                offset = archive.get_record_offset()
                end = offset + archive.get_record_length()
        except Exception as error:
            if getattr(error, "errno", None):
                raise
            yield Dropped("unreadable", f"{name}: byte {offset}", str(error).strip(), ends_file=True)
            return
        where = f"{name}: byte {offset}"
        if len(body) > max_bytes:
            yield Dropped("too_large", where, f"its length is {length}")
        elif len(body) < arc.length:
            what = f"its length is {length}, but {len(body)} bytes follow"
            yield Dropped("truncated", where, what, ends_file=True)
        elif archive.err_count:
            what = f"its length is {length}, but no record follows"
            yield Dropped("bad_length", where, what, ends_file=True)
            return
        elif url.startswith(("http:", "https:")) and ARC_DATE.fullmatch(date):
            record = WarcRecord()
            record.headers["WARC-IP-Address"] = ip
            record.headers["WARC-Date"] = "{}{}-{}-{}T{}:{}:{}Z".format(*re.findall("..", f"{date:0<14}"))
            record.set_bytes_content(body)
            record.is_http = True
            yield read_html_page(record, number, where, url, max_bytes)
        number += 1
    file.seek(0)
    is_cut = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC and end < os.fstat(file.fileno()).st_size
    if said.getvalue() or is_cut:
        what = said.getvalue().strip() or "no gzip member follows"
        yield Dropped("unreadable", f"{name}: byte {end}", what, ends_file=True)


def read_gzip_member(file: BinaryIO, offset: int, limit: int) -> tuple[bytes, int] | None:
    """Content of the gzip member at ``offset``, and its end; None if it is broken or has more than ``limit`` bytes."""
    file.seek(offset)
    decompressor = zlib.decompressobj(GZIP_WBITS)
    content = b""
    while not decompressor.eof:
        chunk = file.read(CHUNK_BYTES)
        try:
            content += decompressor.decompress(chunk, limit + 1 - len(content))
        except zlib.error:
            return None
        if not chunk or len(content) > limit:
            return None
    return content, file.tell() - len(decompressor.unused_data)


def find(pattern: re.Pattern[bytes], file: BinaryIO, start: int) -> int | None:
    """Offset of the first match at or after ``start``."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        match = pattern.search(content, start)
        return match.start() if match else None


def _complete_records(file: BinaryIO, name: str, max_bytes: int) -> Iterator[WarcRecord | Dropped]:
    """Yield the complete records; after a broken one, resume at the next record start."""
    start: int | None = 0
    reported = lenient = False
    last = -1
    defects = 0
    while start is not None:
        defect: Defect | None = None
        file.seek(start)
        for record in _records_until_defect(file, max_bytes, lenient=lenient):
            if isinstance(record, WarcRecord):
                reported, last = False, record.stream_pos
                yield record
            else:
                defect = record
        if defect is None:
            return
        defect = defect._replace(offset=max(defect.offset, start))
        if not lenient and defect.offset > last and _has_bare_lf(file, defect.offset):
            start, lenient = defect.offset, True
            continue
        defects += 1
        if defects > MAX_DEFECTS:
            what = f"the last of {defects} broken places; the rest of the file is lost"
            yield Dropped(defect.reason, f"{name}: byte {defect.offset}", what, ends_file=True)
            return
        start = find(RECORD_START, file, _search_offset(file, defect))
        if not reported:  # a false start found by the search is still the same broken record
            ends_file = start is None and defect.reason != "too_large"
            yield Dropped(defect.reason, f"{name}: byte {defect.offset}", defect.what, ends_file=ends_file)
        reported = True


def _records_until_defect(file: BinaryIO, max_bytes: int, *, lenient: bool) -> Iterator[WarcRecord | Defect]:
    """Yield complete, frozen records from the file's position on, then the defect that ended them, if any."""
    previous: WarcRecord | None = None
    offset, length = file.tell(), 0
    try:
        for record in ArchiveIterator(file, parse_http=False, quirks_mode=lenient, max_header_len=MAX_HEADER_BYTES):
            if previous is not None:
                yield previous
            previous, offset = None, record.stream_pos
            length = record.content_length
            if length > max_bytes:
                yield Defect(offset, "too_large", f"its Content-Length is {length}")
                return
            if "Content-Length" not in record.headers:
                yield Defect(offset, "truncated", "its header is truncated")
                return
            record.freeze()
            if record.content_length < length:
                what = f"its Content-Length is {length}, but {record.content_length} bytes follow"
                yield Defect(offset, "truncated", what)
                return
            if lenient and _is_followed(file, offset, record) is False:
                yield Defect(offset, "bad_length", f"its Content-Length is {length}, but no record follows")
                return
            previous = record
    except OSError as error:
        if error.errno:
            raise
        yield from _after_parse_error(file, offset, previous, str(error))
        return
    if previous is not None:
        yield previous
    yield from _unread_member(file, offset, previous)


def _after_parse_error(
    file: BinaryIO, offset: int, last: WarcRecord | None, what: str
) -> Iterator[WarcRecord | Defect]:
    """Yield the ``last`` record, at ``offset``, if it is complete despite the error after it, then the defect."""
    if last is None:
        yield Defect(offset, "unreadable", what)
    elif "WARC header" in what and not _is_followed(file, offset, last):
        # No record begins where this one's length says that it ends.
        yield Defect(offset, "bad_length", what)
    else:
        yield last
        yield Defect(offset, "unreadable", f"after the record at this position: {what}")


def _is_followed(file: BinaryIO, offset: int, record: WarcRecord) -> bool | None:
    """Whether the record at ``offset`` is followed by another or by the end of the file, so that its length is right.

    None if that cannot be determined: within a gzip member.
    """
    place, most = file.tell(), CHECKED_BYTES + record.content_length
    file.seek(offset)
    content = file.read(most)
    if content.startswith(GZIP_MAGIC) and (member := read_gzip_member(file, offset, most)):
        content = member[0]
    file.seek(place)
    header = _header_bytes(content)
    rest = content[header + record.content_length :].lstrip(b"\r\n")
    is_whole = header + record.content_length <= len(content)
    return (is_whole and (not rest or RECORD_START.match(rest) is not None)) if header else None


def _has_bare_lf(file: BinaryIO, offset: int) -> bool:
    """Whether a line of the header at ``offset`` ends in LF alone."""
    start = _read_start(file, offset)
    return BARE_LF.search(start, 0, _header_bytes(start)) is not None


def _search_offset(file: BinaryIO, defect: Defect) -> int:
    """Where to search for the next record after a broken one.

    This is the record's end if it is uncompressed and another record begins there: a record that is too large may
    contain complete records that are not part of the crawl.
    """
    file.seek(defect.offset)
    start = file.read(MAX_HEADER_BYTES)
    header = _header_bytes(start)
    if length := CONTENT_LENGTH.search(start, 0, header):
        end = defect.offset + header + int(length[1]) + len(b"\r\n\r\n")
        file.seek(end)
        if RECORD_START.match(file.read(7)):
            return end
    return defect.offset + 1


def _unread_member(file: BinaryIO, offset: int, last: WarcRecord | None) -> Iterator[Defect]:
    """Yield a defect if fastwarc stopped early: a gzip member follows the last record, or no record was read."""
    file.seek(offset)
    if file.read(3) != GZIP_MAGIC:
        return
    # The last record may itself hold gzip members, as it was crawled.
    whole = None if last is None else read_gzip_member(file, offset, MAX_HEADER_BYTES + last.content_length)
    member = find(GZIP_MEMBER, file, offset + 1 if whole is None else whole[1])
    if member is not None:
        yield Defect(offset if last is None else member, "unreadable", "its gzip header has flags of optional fields")
