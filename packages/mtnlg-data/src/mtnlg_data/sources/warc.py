"""WARC and ARC: the HTML pages of a crawl, or their texts; after a broken record, reading resumes at the next.

A record is held back until its length is confirmed: the gzip member or the file must end where it ends, or another
record must begin there, perhaps behind white space. After a broken record the reader searches its gzip member, or else
the file, for a gzip magic, a line ``WARC/1`` or a line of ARC, so one bad record costs one record. A file with more
than ``MAX_DEFECTS`` broken places, each of which costs at most a record's bytes, is read no further.
"""

from __future__ import annotations

import mmap
import os
import re
import zlib
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from fastwarc.warc import ArchiveIterator

from mtnlg_data.console import Failure
from mtnlg_data.files import open_regular
from mtnlg_data.settings import setting
from mtnlg_data.transfer.snapshot import downloaded_files
from mtnlg_data.transfer.urls import local_only

from .reader import Part, Reader, reader
from .record import Dropped, Record
from .response import GZIP_WBITS, MAX_HEADER_BYTES, CrawlRecord, parse_fields, read_payload, value_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

GZIP_MAGIC = b"\x1f\x8b\x08"
#: Line of a record of ARC: URL, which may have spaces, IP address, date, type, which may be missing, length.
ARC_LINE = rb"([^\r\n]*) (\S+) (\d{12,14}) [^\r\n]{0,99} (\d{1,15})\r?\n"
#: Of what must follow a record: white space, then another or nothing.
FOLLOWING = re.compile(rb"[\r\n \t]*+(?:\Z|WARC/[01]\.|" + ARC_LINE + rb")")
START_IN_MEMBER = re.compile(rb"WARC/[01]\.|\nhttps?:" + ARC_LINE)
RECORD_START = re.compile(GZIP_MAGIC + b"|" + START_IN_MEMBER.pattern)
#: Header of a record: the lines of WARC behind its version, or that line.
HEADER = re.compile(rb"WARC/[01]\.(.*?\n)\r?\n|" + ARC_LINE, re.DOTALL)
LENGTH = re.compile(r"\d{1,15}")
BLANKS = b"\r\n \t"
#: Records that describe others, or the file.
DESCRIPTIONS = {"warcinfo", "request", "metadata"}
MAX_DEFECTS = 1000
CHUNK_BYTES = 1 << 14
#: Characters of text per byte of a file, if most is kept: a little too many rather than too few.
COMPRESSED_PAGES, PLAIN_PAGES = 0.25, 0.05


class Defect(NamedTuple):
    """A broken record: its offset, and its end where known (0: unknown; -1: beyond its gzip member)."""

    offset: int
    reason: str
    what: str
    end: int = 0


@reader("warc", [f"*.{stem}{suffix}" for stem in ("warc", "warc.wet", "arc") for suffix in ("", ".gz")])
class Warc(Reader):
    """Pages of WARC and ARC files, texts of WET files; each file is one unit of work, however large.

    An ARC file is recognised by its content, whatever its name.
    """

    version, pages = 3, True
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
            for number, record in enumerate(_records(file, path.name, max_bytes)):
                if isinstance(record, Dropped):
                    yield record
                elif record.type not in DESCRIPTIONS:
                    yield read_payload(record, number, f"{path.name}: byte {record.offset}", max_bytes)


class _Source:
    """The bytes of a file from an offset on, or those of the gzip member that begins there."""

    def __init__(self, file: BinaryIO, begin: int) -> None:
        file.seek(begin)
        self.buffer = bytearray()
        self._file, self._begin, self._rest = file, begin, file.read(CHUNK_BYTES)
        self.member = zlib.decompressobj(GZIP_WBITS) if self._rest.startswith(GZIP_MAGIC) else None
        self._first: Any = None  # bytes of the first member that a record is read from, its begin, itself and its end

    @property
    def offset(self) -> int:
        """Offset in the file of the next byte, or of the gzip member."""
        return self._begin if self.member else self._file.tell() - len(self._rest) - len(self.buffer)

    @property
    def end(self) -> int:
        """Offset behind what was read."""
        return self._file.tell() - len(self.member.unused_data if self.member else b"")

    def fill(self, size: int, *, across: bool = False) -> bytearray:
        """Read on until so many bytes are in the buffer, or there are no more; ``across`` members or to this one's end.

        Raises ``zlib.error`` for a damaged member.
        """
        while len(self.buffer) < size:
            if self.member and self.member.eof:
                first = self._first or (len(self.buffer), self._begin, self.member, self._file.tell())
                following = (self.member.unused_data or self._file.read(CHUNK_BYTES)) if across else b""
                if not following.startswith(GZIP_MAGIC):
                    break
                self._first, self._begin = first, self._file.tell() - len(following)
                self._rest, self.member = following, zlib.decompressobj(GZIP_WBITS)
            chunk, self._rest = self._rest or self._file.read(CHUNK_BYTES), b""
            if not chunk:
                break
            self.buffer += self.member.decompress(chunk, MAX_HEADER_BYTES) if self.member else chunk
            self._rest = self.member.unconsumed_tail if self.member else b""
        return self.buffer

    def skip(self, size: int) -> bool:
        """Skip so many bytes of this gzip member, or none if it has fewer; returns whether it has them."""
        assert self.member  # noqa: S101
        here, place = (self.buffer[:], self._rest, self.member.copy()), self._file.tell()
        while size and self.fill(1):
            skipped = len(self.buffer[:size])
            del self.buffer[:skipped]
            size -= skipped
        if size:
            self.buffer, self._rest, self.member = here
            self._file.seek(place)
        return size == 0

    def skip_blanks(self) -> bool:
        """Skip white space before a record; returns whether anything follows."""
        self._first = None
        while self.fill(1):
            del self.buffer[: len(self.buffer) - len(self.buffer.lstrip(BLANKS))]
            if self.buffer:
                return True
        return False

    def skip_to_record(self) -> bool:
        """Skip to the next record that may begin in the member of a broken one; returns whether there is one."""
        if self._first:
            size, self._begin, self.member, place = self._first
            self._file.seek(place)
            self._rest = b""
            del self.buffer[size:]
        while not (match := START_IN_MEMBER.search(self.buffer)):
            del self.buffer[:-CHUNK_BYTES]
            size = len(self.buffer)
            if len(self.fill(size + 1)) == size:
                return False
        del self.buffer[: match.start()]
        return True


def _sound_records(file: BinaryIO, max_bytes: int) -> Generator[CrawlRecord, None, tuple[int, int]]:
    """Yield the records behind which fastwarc finds another; returns where to read on, and how many of them to skip.

    fastwarc is fast, but trusts every length, takes no lines that end in LF, ends silently at a gzip member whose
    header is broken, and gives wrong offsets where a member has several records: such a file is read again from its
    beginning, another from the last of these records on.
    """
    last, known = -1, 0
    held: CrawlRecord | None = None
    sound: CrawlRecord | None = None
    try:
        for record in ArchiveIterator(file, parse_http=False, max_header_len=MAX_HEADER_BYTES):
            if held:
                known, sound = known + 1, held
                yield held
            held, fields = None, list(record.headers)
            length = value_of(fields, "content-length")
            if record.stream_pos <= last or not LENGTH.fullmatch(length) or int(length) > max_bytes:
                break
            last = record.stream_pos
            if len(body := record.reader.read()) != int(length):
                break
            held = CrawlRecord(last, fields, body)
    except OSError as error:
        if error.errno:
            raise
    if sound and [*islice(_read_source(_Source(file, sound.offset), max_bytes), 1)] == [sound]:
        return sound.offset, 1
    return 0, known


def _records(file: BinaryIO, name: str, max_bytes: int) -> Iterator[CrawlRecord | Dropped]:
    """Yield the complete records; after a broken one, resume at the next record start."""

    def drop(defect: Defect, *, ends_file: bool = False) -> Dropped:
        return Dropped(defect.reason, f"{name}: byte {defect.offset}", defect.what, ends_file=ends_file)

    size, defects = os.fstat(file.fileno()).st_size, 0
    start: int | None
    start, known = yield from _sound_records(file, max_bytes)
    first: Defect | None = None  # since the last record; others behind it are false starts that the search has found
    while start is not None and start < size:
        source = _Source(file, start)
        last: Defect | None = None
        for found in _read_source(source, max_bytes):
            if isinstance(found, Defect):
                first, last, defects = first or found, found, defects + 1
                if defects > MAX_DEFECTS:
                    what = f"the last of {defects} broken places; the rest of the file is lost"
                    yield drop(found._replace(what=what), ends_file=True)
                    return
                continue
            last = None
            if known:
                known -= 1
                continue
            if first:
                yield drop(first)
            first = None
            yield found
        if last is None or (source.member and source.member.eof):
            start = source.end
            continue
        file.seek(max(0, min(last.end, size)))
        is_end_right = 0 < last.end <= size and FOLLOWING.match(file.read(MAX_HEADER_BYTES))
        start = last.end if is_end_right else _find_start(file, last.offset + 1)
    if first:
        yield drop(first, ends_file=start is None or first.end < 0)


def _find_start(file: BinaryIO, begin: int) -> int | None:
    """Offset of the first gzip member or record at or after ``begin``."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        match = RECORD_START.search(content, begin)
        return match.start() if match else None


def _read_source(source: _Source, max_bytes: int) -> Iterator[CrawlRecord | Defect]:
    """Yield the records of a member, with its defects, or of the rest of a file up to a defect."""
    try:
        while source.skip_blanks():
            found = _read_record(source, max_bytes)
            yield found
            if isinstance(found, Defect) and not (source.member and source.skip_to_record()):
                return
        if source.member and not source.member.eof:
            yield Defect(source.offset, "truncated", "its gzip member is cut")
    except zlib.error as error:
        yield Defect(source.offset, "unreadable", str(error))


def _read_record(source: _Source, max_bytes: int) -> CrawlRecord | Defect:
    offset = source.offset
    found = HEADER.match(source.fill(MAX_HEADER_BYTES))
    if found is None:
        del source.buffer[:1]
        return Defect(offset, "unreadable", "no record begins here")
    if found[1] is None:
        url, ip, date, length = (value.decode("utf-8", "replace") for value in found.groups()[1:])
        kind = "response" if url.startswith(("http:", "https:")) else "warcinfo"
        day = "{}{}-{}-{}T{}:{}:{}Z".format(*re.findall("..", f"{date:0<14}"))
        fields = [("WARC-Type", kind), ("WARC-Target-URI", url), ("WARC-IP-Address", ip), ("WARC-Date", day)]
    else:
        fields = parse_fields(found[1])
        length = value_of(fields, "content-length")
    del source.buffer[: found.end()]
    what = f"its length is {length or 'missing'}"
    if not LENGTH.fullmatch(length):
        return Defect(offset, "bad_length", what)
    if (count := int(length)) > max_bytes:
        end = source.offset + count
        if source.member:
            end = 0 if source.skip(count) else -1
        return Defect(offset, "too_large", what, end)
    body = bytes(source.fill(count, across=True)[:count])
    if len(body) < count:
        return Defect(offset, "truncated", f"{what}, but {len(body)} bytes follow")
    if not FOLLOWING.match(source.fill(count + MAX_HEADER_BYTES), count):
        return Defect(offset, "bad_length", f"{what}, but no record follows")
    del source.buffer[:count]
    return CrawlRecord(offset, fields, body)
