"""Crawl files made so that each byte looks like a long record: the work of reading them grows with their size alone."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path, PosixPath
from typing import IO, TYPE_CHECKING, Any, Self

import pytest

from mtnlg_data.sources import Record, SourceFile, arc, read_records

if TYPE_CHECKING:
    from collections.abc import Callable

#: Bytes examined for each byte of a file: 8 in vain, and what is read once. What any file may take comes on top.
TIMES, CONSTANT = 12, 1 << 27


class Counter:
    """How many bytes were read, decompressed, or looked at by a pattern."""

    def __init__(self) -> None:
        self.examined = 0

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        new, follows = zlib.decompressobj, arc._next_record
        monkeypatch.setattr(zlib, "decompressobj", lambda bits: CountingDecompressor(new(bits), self))

        def counted(content: bytes, end: int) -> int | None:
            gap = arc.LINE_BREAKS.match(content, end)
            self.examined += arc.MAX_HEADER_BYTES + (gap.end() - end if gap else 0)  # at most, as the patterns have it
            return follows(content, end)

        monkeypatch.setattr(arc, "_next_record", counted)


class CountingDecompressor:
    def __init__(self, inner: zlib._Decompress, counter: Counter) -> None:
        self._inner, self._counter = inner, counter

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner, name)

    def decompress(self, chunk: bytes, limit: int) -> bytes:
        self._counter.examined += len(chunk)
        text: bytes = self._inner.decompress(chunk, limit)
        self._counter.examined += len(text) - len(self._inner.unconsumed_tail)
        return text


class CountingFile:
    def __init__(self, file: IO[bytes], counter: Counter) -> None:
        self._file, self._counter = file, counter

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._counter.examined += len(block)
        return block


class CountingPath(PosixPath):
    """A path whose file counts what is read of it."""

    counter: Counter

    def open(self, mode: str) -> CountingFile:  # type: ignore[override]
        return CountingFile(open(self, mode), self.counter)  # noqa: PTH123


PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>page"
WARC = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
WARC_PAGE = WARC % (len(PAGE), PAGE)
LONG_WARC = b"WARC/1.0\r\nWARC-Type: response\r\nContent-Length: 9000000\r\n\r\n"
DESCRIPTION = b"filedesc://c.arc 192.0.2.1 20080430204826 text/html 4\n1 0\n\n"
ARC_PAGE = b"http://a.b/ 192.0.2.1 20080430204826 text/html %d\n%b\n" % (len(PAGE), PAGE)
LONG_ARC = b"http://a.b/ 192.0.2.1 20080430204826 text/html 900000\n"
#: A gzip header, and a stored block that holds the next ones.
STORED = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\0" + struct.pack("<HH", 60_000, 60_000 ^ 0xFFFF)


def plain_warc(size: int) -> bytes:
    return WARC_PAGE + LONG_WARC * (size // len(LONG_WARC)) + WARC_PAGE


def headers_without_end(size: int) -> bytes:
    return WARC_PAGE + b"WARC/1.0\r\nContent-Length: 9\r\n" * (size // 30) + WARC_PAGE


def compressed_warc(size: int) -> bytes:
    return gzip.compress(WARC_PAGE) + STORED * (size // len(STORED)) + gzip.compress(WARC_PAGE)


def records_in_bombs(size: int) -> bytes:
    """Members whose record claims less than they hold: each is decompressed, up to the largest record."""
    member = gzip.compress(WARC % (len(PAGE), PAGE + bytes(1 << 22)))
    return gzip.compress(WARC_PAGE) + member * (size // len(member)) + gzip.compress(WARC_PAGE)


def junk_in_bombs(size: int) -> bytes:
    """Members with more than their record: of each the record is decompressed, to see whether its length is right."""
    member = gzip.compress(WARC % (1 << 22, bytes(1 << 22)) + b"junk")
    return gzip.compress(WARC_PAGE) + member * (size // len(member))


def plain_arc(size: int) -> bytes:
    return DESCRIPTION + ARC_PAGE + LONG_ARC * (size // len(LONG_ARC)) + b"\n" * (1 << 20) + b"no header\n" + ARC_PAGE


def compressed_arc(size: int) -> bytes:
    return gzip.compress(DESCRIPTION) + gzip.compress(ARC_PAGE) + STORED * (size // len(STORED))


MAKERS = [plain_warc, headers_without_end, compressed_warc, records_in_bombs, junk_in_bombs, plain_arc, compressed_arc]


@pytest.mark.parametrize("make", MAKERS)
def test_work_is_a_small_multiple_of_the_files_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[int], bytes]
) -> None:
    for size in (1 << 18, 1 << 19, 1 << 20):
        content = make(size)
        (tmp_path / "c").write_bytes(content)
        counter = CountingPath.counter = Counter()
        with monkeypatch.context() as patch:
            counter.patch(patch)
            items = list(read_records(SourceFile("s", CountingPath(tmp_path / "c"), "c", "warc")))
        assert isinstance(items[0], Record), "the record before the hostile part is read"
        assert counter.examined <= TIMES * len(content) + CONSTANT
