"""Kinds of bad input, each as a small file, and docs/bad-input.md: what ``mtnlg-data extract`` makes of them.

``python packages/mtnlg-data/tests/bad_input.py`` writes the page; ``test_bad_input.py`` fails while it is out of date.
Compressed files consist of several members, stored or incompressible, so that what is left of a cut one is the same
with every version of the libraries.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import command_line
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import stamina
import zstandard
from fsspec.implementations.memory import MemoryFileSystem
from small_corpus import member, page, record

from mtnlg_data import read_documents
from mtnlg_data.transfer.urls import MAX_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).parents[3] / "docs" / "bad-input.md"
HEAD = """# How damaged and malformed input is handled

`mtnlg-data extract in --out out` over a folder with one bad file, and a sound one of {sound} documents beside it, whose
documents are kept in every case but those that are refused before any work (status 2, or no document kept). `there`
counts the bad file's documents as they were written; what is lost is named by a line and the exit status, or counted
by its reason in `summary.json` and the report. Nothing is lost in silence. A `<meta>` behind
the first 1 MiB of a page is not read: its encoding is detected. Records of WARC that describe others (warcinfo,
request, metadata) are not counted. Made by
`packages/mtnlg-data/tests/bad_input.py`; `test_bad_input.py` keeps it current.

| kind | there | kept | lost | in silence | status | what is said |
|---|---|---|---|---|---|---|
"""
REMOTE_HEAD = """
The same of one good file of {there} documents behind a server that fails (the word is that of the URL below).

| kind | kept | status | what is said |
|---|---|---|---|
"""
RNG = random.Random(0)
TEXTS = [f"Document {number}: " + " ".join(str(RNG.random()) for _ in range(20)) for number in range(40)]
ROWS = [json.dumps({"text": text}).encode() + b"\n" for text in TEXTS]
LINES = b"".join(ROWS)
SOUND = 3
HTML = page("It is what they had all been told of the town. " * 20).encode()
WARC = [member(record(HTML)) for _ in range(5)]
OF_HTML = "HTTP/1.1 200 OK\r\nContent-Type: text/html"
CHUNKED = f"{OF_HTML}\r\nTransfer-Encoding: chunked"
RESOURCE = b"WARC/1.0\r\nWARC-Type: resource\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
CLAIM = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/\r\nContent-Length: %d\r\n\r\n"
WAT = b"WARC/1.0\r\nWARC-Type: metadata\r\nContent-Length: 4\r\n\r\ntext\r\n\r\n"


class Outcome(NamedTuple):
    """What a command did: exit status, documents kept of the bad file, reasons of those dropped, the line it said."""

    status: int
    kept: int
    reasons: dict[str, int]
    line: str


class RemoteCase(NamedTuple):
    """A kind of broken server or URL."""

    kind: str
    url: str


class Case(NamedTuple):
    """A kind of bad input: what makes the file (bytes, or a function of its path), its name, documents in it."""

    kind: str
    content: bytes | Callable[[Path], object]
    name: str = "a.jsonl"
    documents: int = 40


def in_parts(compress: Callable[[bytes], bytes], rows: list[bytes] = ROWS) -> bytes:
    """Four members of ten rows each."""
    return b"".join(compress(b"".join(rows[start : start + 10])) for start in range(0, 40, 10))


def stored(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=0, mtime=0)


def long_window(content: bytes) -> bytes:
    """As ``zstd --long=31`` writes it: a window of 2 GiB, whatever the content."""
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=31)
    target = io.BytesIO()
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer(target, closefd=False) as stream:
        stream.write(content)
    return target.getvalue()


def zipped(content: bytes) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        file.writestr(zipfile.ZipInfo("a.jsonl"), content)
    return target.getvalue()


def in_lz4(content: bytes) -> bytes:
    return bytes(pa.compress(content, "lz4", asbytes=True))


def in_tar() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for number, text in enumerate(TEXTS):
            entry = tarfile.TarInfo(f"{number:02}.txt")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target.getvalue()


def in_csv() -> bytes:
    return b"number,text\n" + b"".join(b'%d,"%s"\n' % (n, text.encode()) for n, text in enumerate(TEXTS))


def write_below(path: Path) -> None:
    """A folder in the file's place, as Spark leaves it."""
    path.mkdir()
    (path / "part-0.jsonl").write_bytes(LINES)


def in_parquet(values: list[object], column: str = "text", kind: pa.DataType | None = None) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table({column: pa.array(values, kind or pa.string())}), target)
    return target.getvalue()


def some(row: bytes, count: int = 1) -> bytes:
    """The forty rows, and some in their midst that are bad."""
    return b"".join(ROWS[:20]) + row * count + b"".join(ROWS[20:])


CASES = [
    Case("gzip cut in its last part", in_parts(stored)[:-1000], "a.jsonl.gz"),
    Case("zstd cut in its last part", in_parts(zstandard.compress)[:-100], "a.jsonl.zst"),
    Case("xz cut in its last part", in_parts(lzma.compress)[:-100], "a.jsonl.xz"),
    Case("bzip2 cut in its last part", in_parts(bz2.compress)[:-100], "a.jsonl.bz2"),
    Case("lz4 cut in its last part", in_parts(in_lz4)[:-100], "a.jsonl.lz4"),
    Case("gzip with noise after its last part", in_parts(stored) + b"noise", "a.jsonl.gz"),
    Case("gzip with zeros after its last part (tape, block devices)", in_parts(stored) + bytes(512), "a.jsonl.gz"),
    Case("plain text named .gz", LINES, "a.jsonl.gz"),
    Case("plain text named .zst", LINES, "a.jsonl.zst"),
    Case("zstd with a window of 2 GiB (zstd --long=31)", long_window(LINES), "a.jsonl.zst"),
    Case("gzip named .jsonl", stored(LINES)),
    Case("lz4 named .jsonl", in_lz4(LINES)),
    Case("zip named .jsonl", zipped(LINES)),
    Case("byte order mark", b"\xef\xbb\xbf" + LINES),
    Case("suffix in upper case", LINES, "a.JSONL"),
    Case("NaN beside an integer of 30 digits", LINES.replace(b'{"', b'{"x": NaN, "y": 1' + b"0" * 29 + b', "')),
    Case("NaN and Infinity beside the text", LINES.replace(b'{"', b'{"x": NaN, "y": -Infinity, "')),
    Case("CRLF", LINES.replace(b"\n", b"\r\n")),
    Case("empty lines", LINES.replace(b"\n", b"\n\n \n")),
    Case("UTF-16", LINES.decode().encode("utf-16")),
    Case("Latin-1 in one line of 41", some('{"text": "café"}\n'.encode("latin-1")), documents=41),
    Case("half a surrogate pair in one line of 41", some(b'{"text": "\\ud83d"}\n'), documents=41),
    Case("NUL in the text", some(b'{"text": "a\\u0000b"}\n'), documents=41),
    Case("no line end at the end", LINES.rstrip(b"\n")),
    Case("last line cut", LINES[:-50]),
    Case("one line of 41 no JSON", some(b"no JSON\n"), documents=41),
    Case("one line of 41 nested 100,000 deep", some(b"[" * 100_000 + b"\n"), documents=41),
    Case("one line of 41 with 17 MB", some(b'{"text": "' + b"a" * 17_000_000 + b'"}\n'), documents=41),
    Case("text null, missing, a number", some(b'{"text": null}\n{"body": "x"}\n{"text": 1}\n'), documents=43),
    Case("text empty", some(b'{"text": ""}\n'), documents=41),
    Case("one JSON list instead of lines", json.dumps([json.loads(row) for row in ROWS]).encode(), "a.json"),
    Case("JSON over several lines", json.dumps({"text": "one"}, indent=1).encode(), "a.json", 1),
    Case("empty file", b"", documents=0),
    Case("empty gzip", stored(b""), "a.jsonl.gz", 0),
    Case("only line ends", b"\n\n\n", documents=0),
    Case("file name that is not UTF-8", LINES, "a\udce9.jsonl"),
    Case("folder named .jsonl", write_below),
    Case("pipe named .jsonl", os.mkfifo, documents=0),
    Case("link to nowhere", lambda path: path.symlink_to("nowhere"), documents=0),
    Case("link to itself", lambda path: path.symlink_to(path.name), documents=0),
    Case("Parquet cut", in_parquet(list(TEXTS))[:-100], "a.parquet"),
    Case("Parquet with its first bytes overwritten", bytes(64) + in_parquet(list(TEXTS))[64:], "a.parquet"),
    Case("Parquet without the column", in_parquet(list(TEXTS), "body"), "a.parquet"),
    Case("Parquet with numbers in the column", in_parquet([1, 2], kind=pa.int64()), "a.parquet", 2),
    Case("Parquet with one null in 41", in_parquet([*TEXTS, None]), "a.parquet", 41),
    Case("Parquet without rows", in_parquet([]), "a.parquet", 0),
    Case("JSON lines named .parquet", LINES, "a.parquet"),
    Case("JSON lines named .warc.gz", stored(LINES), "a.warc.gz"),
    Case("WARC cut in its last page", b"".join(WARC)[:-30], "a.warc.gz", 5),
    Case(
        "WARC with a page's bytes overwritten", WARC[0] + bytes(50) + WARC[1][50:] + b"".join(WARC[2:]), "a.warc.gz", 5
    ),
    Case("WARC with noise between pages", WARC[0] + b"noise" + b"".join(WARC[1:]), "a.warc.gz", 5),
    Case("WARC record that claims 1 GB", CLAIM % 10**9 + b"HTTP/1.1 200 OK\r\n\r\n<p>", "a.warc", 1),
    Case("WARC record that claims a negative length", CLAIM % -5 + b"<p>\r\n\r\n", "a.warc", 1),
    Case("WARC response without HTTP headers", CLAIM % 3 + b"<p>\r\n\r\n", "a.warc", 1),
    Case("HTTP headers whose lines end in LF", record(HTML, http=OF_HTML.replace("\r", "")) * 5, "a.warc", 5),
    Case("WARC headers whose lines end in LF", (RESOURCE.replace(b"\r", b"") % (len(HTML), HTML)) * 5, "a.warc", 5),
    Case("HTTP header of 70 kB", record(HTML, http=f"{OF_HTML}\r\nA: {'a' * 70_000}"), "a.warc", 1),
    Case("HTTP response without Content-Type", record(HTML, http="HTTP/1.1 200 OK"), "a.warc", 1),
    Case("chunks with extensions", record(b"%x;a=b\r\n%s\r\n0\r\n\r\n" % (len(HTML), HTML), http=CHUNKED), "a.warc", 1),
    Case("chunks that the crawler has joined, with their header", record(HTML, http=CHUNKED), "a.warc", 1),
    Case("chunks of a wrong size", record(b"3\r\n%s\r\n0\r\n\r\n" % HTML, http=CHUNKED), "a.warc", 1),
    Case(
        "page in two members of gzip",
        record(stored(HTML[:40]) + stored(HTML[40:]), http=f"{OF_HTML}\r\nContent-Encoding: gzip"),
        "a.warc",
        1,
    ),
    Case("WARC resource records (warcit)", (RESOURCE % (len(HTML), HTML)) * 5, "a.warc", 5),
    Case("WARC revisit record", record(b"", kind="revisit"), "a.warc", 1),
    Case("UTF-8 page with bytes of Windows-1252", record(HTML.replace(b"what", b"what\xc3\xa9\x92", 1)), "a.warc", 1),
    Case("WAT (metadata of pages) named .warc.gz", member(WAT) * 3, "a.warc.gz", 3),
    Case("web page named .warc.gz", b"<!doctype html><p>A page.", "a.warc.gz", 1),
    Case("tar cut in its midst", in_tar()[:30_000], "a.tar"),
    Case("tar with a header overwritten", in_tar()[:20_480] + bytes(100) + in_tar()[20_580:], "a.tar"),
    Case("CSV cut in its last row", in_csv()[:-10], "a.csv"),
    Case("CSV with one row of 41 of another length", in_csv().replace(b"20,", b"20,20,20\n20,"), "a.csv", 41),
    Case("text in Latin-1", "café".encode("latin-1"), "a.txt", 1),
    Case("only a file of an unknown suffix", b"one", "a.doc", 1),
]


REMOTE_CASES = [
    RemoteCase("a connection cut once in the middle", "broken://in/cut-once.jsonl"),
    RemoteCase("a connection cut each time", "broken://in/cut.jsonl"),
    RemoteCase("an answer that is shorter than asked for, once", "broken://in/short-once.jsonl"),
    RemoteCase("an answer that is shorter than asked for, each time", "broken://in/short.jsonl"),
    RemoteCase("503 or too many requests, once", "broken://in/busy-once.jsonl"),
    RemoteCase("503 or too many requests, each time", "broken://in/busy.jsonl"),
    RemoteCase("a file that is replaced while it is read", "broken://in/replaced.jsonl"),
    RemoteCase("a file that is removed after it was listed", "broken://in/removed.jsonl"),
    RemoteCase("no such file", "broken://in/missing.jsonl"),
    RemoteCase("no such bucket", "broken://nowhere"),
    RemoteCase("no permission to list", "broken://denied/"),
    RemoteCase("no permission to read", "broken://in/denied.jsonl"),
    RemoteCase("a mistyped scheme", "s4://bucket/a.jsonl"),
    RemoteCase("a password in the URL", "s3://me:word@bucket/a.jsonl"),
    RemoteCase("a signature in the URL", "https://a.example/a.jsonl?sig=word"),
]


class BrokenServer(MemoryFileSystem):  # type: ignore[misc]
    """Fails as the name of a file says, only the first time where it says ``once``."""

    protocol = "broken"
    store: dict[str, object] = {}  # noqa: RUF012  (fsspec's way)
    pseudo_dirs = [""]  # noqa: RUF012
    reads = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("broken://", "memory://")))

    def info(self, path: str, **options: object) -> dict[str, object]:
        if "/denied" in path and not path.endswith(".jsonl"):
            raise PermissionError("Access Denied")
        if "removed" in path and BrokenServer.reads:
            raise FileNotFoundError(path)
        version = {"ETag": f"v{BrokenServer.reads if 'replaced' in path else 0}"}
        return {**super().info(path, **options), **version}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: object) -> bytes:
        BrokenServer.reads += 1
        content = bytes(super().cat_file(path, start, end, **options))
        if "once" in path and BrokenServer.reads > 1:
            return content
        if "denied" in path:
            raise PermissionError("Access Denied")
        if "busy" in path:
            raise OSError(16, "Reduce your request rate")
        if "cut" in path:
            raise ConnectionResetError(104, "Connection reset by peer")
        return content[: len(content) // 2] if "short" in path else content


def remote_outcome(case: RemoteCase, folder: Path) -> Outcome:
    """Extract a good file from a server that fails."""
    fsspec.register_implementation("broken", BrokenServer, clobber=True)
    BrokenServer.clear_instance_cache()
    BrokenServer.reads, BrokenServer.store = 0, {}
    if case.url.startswith("broken://in/") and "missing" not in case.url:
        BrokenServer(skip_instance_cache=True).pipe_file(case.url, LINES)
    return _extract(case.url, folder / "out", folder)


def remote_row(case: RemoteCase, seen: Outcome) -> str:
    """The case's line of the page."""
    return f"| {case.kind} | {seen.kept} | {seen.status} | {seen.line.replace('|', '/')} |\n"


def outcome(case: Case, folder: Path) -> Outcome:
    """Extract the case's file and a sound one."""
    bad, out = folder / "in" / case.name, folder / "out"
    bad.parent.mkdir()
    if bad.suffix != ".doc":
        (folder / "in" / "sound.jsonl").write_bytes(b"".join(ROWS[:SOUND]))
    _ = case.content(bad) if callable(case.content) else bad.write_bytes(case.content)
    seen = _extract(str(folder / "in"), out, folder)
    return seen._replace(kept=max(0, seen.kept - SOUND))


def _extract(place: str, out: Path, folder: Path) -> Outcome:
    status, said = command_line.outcome("extract", place, "--out", out)
    shards = [
        shard for shard in out.glob("*.parquet") if (out / "stage.json").exists() and shard.name.startswith("doc")
    ]
    kept = sum(batch.num_rows for shard in shards for batch in read_documents(shard, ["id"]))
    summary = json.loads((out / "summary.json").read_text())["stages"][0] if (out / "summary.json").exists() else {}
    counts = summary.get("sources", {}).get("documents", {})
    line = said.partition("; everything else is done")[0].replace(f"{folder}/", "") if status else ""
    return Outcome(status, kept, counts.get("dropped", {}), line)


def row(case: Case, seen: Outcome) -> str:
    """The case's line of the page."""
    counted = ", ".join(f"{count} {reason}" for reason, count in seen.reasons.items())
    said = seen.line or (f"counted: {counted}" if counted else "")
    lost = max(0, case.documents - seen.kept)
    cells = (case.kind, case.documents, seen.kept, lost, lost_in_silence(case, seen), seen.status, said)
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |\n"


def lost_in_silence(case: Case, seen: Outcome) -> int:
    """Documents that are neither kept, nor counted by a reason, nor named by a failure."""
    return 0 if seen.status else max(0, case.documents - seen.kept - sum(seen.reasons.values()))


if __name__ == "__main__":
    rows = []
    for each in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(row(each, outcome(each, Path(scratch))))
    rows.append(REMOTE_HEAD.format(there=len(ROWS)))
    stamina.set_testing(True, attempts=MAX_ATTEMPTS)  # no waits
    for remote in REMOTE_CASES:
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(remote_row(remote, remote_outcome(remote, Path(scratch))))
    PAGE.write_text(HEAD.format(sound=SOUND) + "".join(rows), encoding="utf-8")
