"""Large files in parts: every record exactly once, whatever the parts; what is broken costs no more than in a whole."""

from __future__ import annotations

import gzip
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_data.sources import Dropped, Kind, Part, Record, SourceFile, cut_file, parts, read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LARGEST = 10_000
HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
WARC = b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a/%d\r\nContent-Type: application/http"
DESCRIPTION = b"filedesc://c.arc 192.0.2.1 20080430204826 text/html 4\n1 0\n\n"


def warc(number: int, body: bytes) -> bytes:
    block = HTTP + body
    return WARC % number + b"\r\nContent-Length: %d\r\n\r\n" % len(block) + block + b"\r\n\r\n"


def arc(number: int, body: bytes) -> bytes:
    block = HTTP + body
    return b"http://a/%d 192.0.2.1 20080430204826 text/html %d\n%b\n" % (number, len(block), block)


def line(number: int, body: bytes) -> bytes:
    return json.dumps({"text": body.decode(), "id": str(number)}).encode() + b"\n"


def pieces(content: bytes, size: int) -> list[bytes]:
    return [content[begin : begin + size] for begin in range(0, len(content), size)]


def zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


#: How the formats store these bodies, by file name.
FORMATS: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "a.warc": lambda bodies: b"".join(warc(n, body) for n, body in enumerate(bodies)),
    "a.warc.gz": lambda bodies: b"".join(gzip.compress(warc(n, body)) for n, body in enumerate(bodies)),
    "three-a-member.warc.gz": lambda bodies: b"".join(
        gzip.compress(b"".join(warc(n, body) for n, body in list(enumerate(bodies))[k : k + 3]))
        for k in range(0, len(bodies), 3)
    ),
    "a.arc": lambda bodies: DESCRIPTION + b"".join(arc(n, body) for n, body in enumerate(bodies)),
    "a.arc.gz": lambda bodies: b"".join(
        map(gzip.compress, [DESCRIPTION, *(arc(n, body) for n, body in enumerate(bodies))])
    ),
    "a.jsonl": lambda bodies: b"".join(line(n, body) for n, body in enumerate(bodies)),
    "by-line.jsonl.zst": lambda bodies: b"".join(zstd(line(n, body)) for n, body in enumerate(bodies)),
    "anywhere.jsonl.zst": lambda bodies: b"".join(
        map(zstd, pieces(b"".join(line(n, body) for n, body in enumerate(bodies)), 97))
    ),
}
BODIES = st.lists(st.integers(0, 900), min_size=1, max_size=12).map(
    lambda sizes: [b"<p>%d " % n + b"%d" % n * (size // 3) for n, size in enumerate(sizes)]
)


def source_file(path: Path) -> SourceFile:
    kind: Kind = "jsonl" if "jsonl" in path.name else "warc"
    return SourceFile("s", path, path.name, kind)


def cut(file: SourceFile, count: int) -> list[SourceFile]:
    return [replace(file, part=Part(number, count)) for number in range(count)]


def read(files: list[SourceFile]) -> tuple[list[str | bytes], list[Dropped]]:
    items = [item for file in files for item in read_records(file, LARGEST)]
    records = [item.content for item in items if isinstance(item, Record)]
    return records, [item for item in items if isinstance(item, Dropped)]


@pytest.mark.parametrize("name", FORMATS)
@given(bodies=BODIES, count=st.integers(2, 40))
def test_parts_of_any_size_hold_every_record_once_and_in_order(name: str, bodies: list[bytes], count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(FORMATS[name](bodies))
        file = source_file(path)
        records, dropped = read(cut(file, count))
        assert (records, dropped) == read([file])
        assert len(records) == len(bodies)
        items = [(part, item) for part in cut(file, count) for item in read_records(part)]
        keys = [part.key(item.number) for part, item in items if isinstance(item, Record)]
        assert len({*keys}) == len(bodies)


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz", "a.arc", "a.arc.gz", "a.jsonl"])
@given(bodies=BODIES, count=st.integers(2, 9), place=st.floats(0, 0.999), junk=st.binary(min_size=1, max_size=20))
def test_a_damaged_region_costs_no_more_than_in_a_whole_file_and_is_counted_once(
    name: str, bodies: list[bytes], count: int, place: float, junk: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        content = bytearray(FORMATS[name](bodies))
        begin = int(place * len(content))
        content[begin : begin + len(junk)] = junk
        path.write_bytes(content)
        file = source_file(path)
        records, dropped = read(cut(file, count))
        whole, dropped_whole = read([file])
        assert {*whole} <= {*records}
        assert len(records) == len({*records})
        assert len(dropped) == len(dropped_whole)


def test_a_broken_zstd_frame_costs_its_part_alone_and_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "by-line.jsonl.zst"
    frames = [zstd(line(n, b"%d " % n + b"x" * 50)) for n in range(40)]
    frames[20] = frames[20][:12] + b"\xff" * 8 + frames[20][20:]
    path.write_bytes(b"".join(frames))
    records, dropped = read(cut(source_file(path), 4))
    assert len(dropped) == 1
    assert {b"%d" % n for n in range(20)} <= {str(text).split()[0].encode() for text in records}
    assert len(records) >= 29 > len(read([source_file(path)])[0])


def test_records_of_an_archive_within_a_record_are_no_records_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crawled .warc.gz is stored as it is, since it does not compress: its members are whole ones, with checksums."""
    monkeypatch.setattr(parts, "LOOKBACK_BYTES", 4000)
    inner = b"".join(gzip.compress(warc(n, b"<p>inner %d" % n)) for n in range(12))
    stored = [warc(n, inner if n % 3 == 1 else b"<p>%d" % n) for n in range(12)]
    assert inner in gzip.compress(stored[1], 0)
    for name, content in {
        "a.warc.gz": b"".join(gzip.compress(record, 0) for record in stored),
        "a.warc": b"".join(warc(n, warc(n, b"<p>inner") * 9 if n % 3 == 1 else b"<p>%d" % n) for n in range(12)),
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        file = source_file(path)
        whole = read([file])
        assert len(whole[0]) == 12
        assert all(read(cut(file, count)) == whole for count in range(2, 40))


def test_a_last_record_that_holds_a_gzip_file_hides_nothing(tmp_path: Path) -> None:
    """The search for members that fastwarc has passed over begins behind the last one, not within it."""
    path = tmp_path / "a.warc.gz"
    path.write_bytes(gzip.compress(warc(0, b"<p>0")) + gzip.compress(warc(1, gzip.compress(b"stored")), 0))
    records, dropped = read([source_file(path)])
    assert (len(records), dropped) == (2, [])


def test_rows_of_tables_keep_their_numbers_in_any_part(tmp_path: Path) -> None:
    table = pa.table({"text": [f"text {n}" for n in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=9)
    for name, opened in {"stream.arrow": pa.ipc.new_stream, "file.arrow": pa.ipc.new_file}.items():
        with opened(tmp_path / name, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    for name in ("a.parquet", "stream.arrow", "file.arrow"):
        kind: Kind = "parquet" if name.endswith("parquet") else "arrow"
        file = SourceFile("s", tmp_path / name, name, kind)
        for count in (2, 3, 30):
            items = [(part, item) for part in cut(file, count) for item in read_records(part)]
            assert [part.key(item.number) for part, item in items if isinstance(item, Record)] == [
                f"s/{name}/{n}" for n in range(100)
            ]


def test_a_broken_batch_is_reported_by_one_part(tmp_path: Path) -> None:
    table = pa.table({"text": [f"text {n}" for n in range(100)]})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=10)
    content = bytearray((tmp_path / "a.arrow").read_bytes())
    place = content.index(b"text 50")
    begin = content.rindex(b"\xff\xff\xff\xff", 0, place)
    content[begin + 4 : begin + 30] = b"\x7f" * 26
    (tmp_path / "a.arrow").write_bytes(content)
    file = SourceFile("s", tmp_path / "a.arrow", "a.arrow", "arrow")
    for count in (1, 2, 5, 11):
        records, dropped = read(cut(file, count))
        assert (len(records), len(dropped)) == (len(read([file])[0]), 1)


def test_only_files_that_can_be_entered_in_the_middle_are_cut(tmp_path: Path) -> None:
    bodies = [b"<p>%d" % n for n in range(50)]
    lines = FORMATS["a.jsonl"](bodies)
    contents = {
        **{name: make(bodies) for name, make in FORMATS.items()},
        "stream.jsonl.gz": gzip.compress(lines),
        "stream.jsonl.zst": zstd(lines),
        "stream.warc.gz": gzip.compress(FORMATS["a.warc"](bodies)),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        file = source_file(tmp_path / name)
        assert len(cut_file(file, 4)) == (1 if name.startswith("stream") else 4), name
        assert cut_file(file, 1) == [file]
