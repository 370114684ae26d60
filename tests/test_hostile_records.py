"""A record made to exhaust a machine costs only that record: little memory, and a counted reason."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

import brotli
import pytest
import zstandard

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
BLOCK = 1 << 20
MAX_MEMORY = 400 << 20  # the libraries take 150 MB, and memory holds a few copies of a record of up to 16 MB

READ = r"""
import json, re, sys
from pathlib import Path
from mtnlg_data.sources import Record, SourceFile, read_records
path = Path(sys.argv[1])
contents = [
    item.content[:20] if isinstance(item, Record) else item.reason
    for item in read_records(SourceFile("s", path, path.name, sys.argv[2]))
]
status = Path("/proc/self/status").read_text()  # not getrusage, which starts at the parent's peak
memory = int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) << 10
print(json.dumps([[str(item) for item in contents], memory]))
"""


def read(path: Path, kind: str) -> tuple[list[str], int]:
    """Read a file in a new process; return contents and drop reasons, and its peak memory."""
    ended = subprocess.run(
        [sys.executable, "-c", READ, str(path), kind], check=True, capture_output=True, text=True, timeout=120
    )
    contents, memory = json.loads(ended.stdout)
    return contents, memory


def gzip_of(head: bytes, size: int, tail: bytes) -> bytes:
    """Return a gzip member of ``head``, ``size`` zeros and ``tail``, without compressing all of them."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    start = deflate.compress(head) + deflate.flush(zlib.Z_FULL_FLUSH)
    block = deflate.compress(bytes(BLOCK)) + deflate.flush(zlib.Z_FULL_FLUSH)
    end = deflate.compress(tail) + deflate.flush()
    checksum = zlib.crc32(head)
    for _ in range(size // BLOCK):
        checksum = zlib.crc32(bytes(BLOCK), checksum)
    checksum = zlib.crc32(tail, checksum)
    length = (len(head) + size + len(tail)) % (1 << 32)
    trailer = checksum.to_bytes(4, "little") + length.to_bytes(4, "little")
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + start + block * (size // BLOCK) + end + trailer


def record(body: bytes, http: str = "", length: int = 0) -> bytes:
    """Return an uncompressed WARC response; its header overstates the length by ``length``."""
    block = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{http}\r\n".encode() + body
    header = "WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: "
    return f"{header}{len(block) + length}\r\n\r\n".encode() + block


END = b"\r\n\r\n"
ONE, TWO = (gzip_of(record(b"<p>%d" % n) + END, 0, b"") for n in (1, 2))


@pytest.mark.parametrize(
    ("hostile", "reason"),
    [
        (gzip_of(record(b"", length=GIB), GIB, END), "too_large"),
        (gzip_of(record(b"<p>") + END, GIB, b""), "bad_length"),
        (gzip_of(b"", GIB, b""), "unreadable"),
        (gzip_of(record(gzip_of(b"", GIB, b""), "Content-Encoding: gzip\r\n") + END, 0, b""), "too_large"),
        (
            gzip_of(record(brotli.compress(bytes(1 << 27), quality=1), "Content-Encoding: br\r\n") + END, 0, b""),
            "too_large",
        ),
    ],
    ids=["record", "behind a record", "no record", "gzip in a page", "brotli in a page"],
)
def test_a_gigabyte_in_a_crawl_file_costs_its_record(tmp_path: Path, hostile: bytes, reason: str) -> None:
    path = tmp_path / "c.warc.gz"
    path.write_bytes(ONE + hostile + TWO)
    contents, memory = read(path, "warc")
    assert contents == ["b'<p>1'", reason, "b'<p>2'"]
    assert memory < MAX_MEMORY


def frames(content: bytes, count: int) -> bytes:
    return zstandard.compress(content) * count


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl.zst", frames(bytes(BLOCK), GIB // BLOCK), ["one", "too_large", "two"]),
        ("a.jsonl.gz", gzip_of(b"", GIB // 2, b""), ["one", "too_large", "two"]),
        ("bomb.jsonl.zst", frames(bytes(BLOCK), 2 * GIB // BLOCK), ["one", "bomb"]),
    ],
)
def test_gigabyte_line_and_bomb_cost_only_themselves(
    tmp_path: Path, name: str, content: bytes, expected: list[str]
) -> None:
    pack = (lambda line: gzip_of(line, 0, b"")) if name.endswith(".gz") else zstandard.compress
    path = tmp_path / name
    path.write_bytes(pack(b'{"text": "one"}\n') + content + pack(b'\n{"text": "two"}\n'))
    contents, memory = read(path, "jsonl")
    assert contents == expected
    assert memory < MAX_MEMORY
