"""JSON lines, the Pile and Parquet: every intact record is read; a broken one is dropped alone, with a reason."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mtnlg_data.sources import Dropped, Kind, Record, SourceFile, read_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType


def read(
    path: Path,
    kind: Kind,
    largest: int = 1 << 24,
    **options: Any,  # noqa: ANN401  (fields)
) -> tuple[list[Record], list[Dropped]]:
    items = list(read_records(SourceFile("s", path, path.name, kind, **options), largest))
    return [item for item in items if isinstance(item, Record)], [item for item in items if isinstance(item, Dropped)]


# --- JSON lines ------------------------------------------------------------------------------------------------------

PACK: dict[str, Callable[[bytes], bytes]] = {".jsonl": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("suffix", PACK)
def test_lines_are_read_plain_and_compressed_and_bad_ones_are_named(tmp_path: Path, suffix: str) -> None:
    lines = [
        b'{"text": "one", "url": "http://example.org"}',
        b"not json",
        b'{"text": 3}',
        b'["text"]',
        b'{"text": "lone \\ud800 surrogate"}',
        b'{"text": "bad utf-8 \xff"}',
        b"",
        b'{"text": "' + b"x" * 2000 + b'"}',
        '{"text": "zwei ü"}'.encode(),
    ]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACK[suffix](b"\n".join(lines)))
    records, dropped = read(path, "jsonl", largest=1000)
    assert [(r.number, r.content, r.url) for r in records] == [(0, "one", "http://example.org"), (8, "zwei ü", None)]
    assert [(d.reason, d.where.rpartition(" ")[2]) for d in dropped] == [
        ("not_json", "2"),
        ("no_text", "3"),
        ("not_json", "4"),
        ("not_json", "5"),
        ("not_json", "6"),
        ("too_large", "8"),
    ]


def test_a_byte_order_mark_and_the_numbers_of_pythons_json_cost_no_record(tmp_path: Path) -> None:
    """Windows programs begin a file with a mark; ``json.dumps`` writes NaN and Infinity unless it is told not to."""
    path = tmp_path / "d.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"text": "one"}\n{"text": "two", "score": NaN}\n{"text": "three", "x": [-Infinity]}\n'
    )
    records, dropped = read(path, "jsonl")
    assert [record.content for record in records] == ["one", "two", "three"]
    assert not dropped


def test_a_line_nested_too_deep_for_any_parser_is_dropped_alone(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"NaN" + b"[" * 100_000 + b'\n{"x": NaN, "y": ' + b"[" * 100_000 + b'\n{"text": "one"}\n')
    records, dropped = read(path, "jsonl")
    assert [record.content for record in records] == ["one"]
    assert [drop.reason for drop in dropped] == ["not_json", "not_json"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_stream_gives_its_complete_lines_and_names_the_loss(tmp_path: Path, suffix: str) -> None:
    rng = random.Random(0)
    lines = b"".join(json.dumps({"text": str(rng.random())}).encode() + b"\n" for _ in range(20_000))
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACK[suffix](lines)[:-1000])
    records, dropped = read(path, "jsonl")
    assert 0 < len(records) < 20_000
    assert dropped[-1].reason in {"unreadable", "not_json"}


def test_a_file_not_compressed_as_its_suffix_says_is_named(tmp_path: Path) -> None:
    for suffix in (".gz", ".zst"):
        (tmp_path / f"a{suffix}").write_bytes(b'{"text": "plain"}\n')
        records, dropped = read(tmp_path / f"a{suffix}", "jsonl")
        assert (records, [drop.reason for drop in dropped]) == ([], ["unreadable"])


def test_zstandard_files_of_several_frames_are_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.zst").write_bytes(b"".join(zstandard.compress(b'{"text": "%d"}\n' % n) for n in range(3)))
    assert [record.content for record in read(tmp_path / "a.zst", "jsonl")[0]] == ["0", "1", "2"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_an_oversized_line_is_dropped_alone(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACK[suffix](b'{"text": "a"}\n' + b"x" * (1 << 24) + b'\n{"text": "b"}\n'))
    records, dropped = read(path, "jsonl", largest=1 << 16)
    assert [(record.number, record.content) for record in records] == [(0, "a"), (2, "b")]
    assert [drop.reason for drop in dropped] == ["too_large"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("filler", [b"x", b"\n"])
def test_a_decompression_bomb_ends_its_file_and_is_named(
    tmp_path: Path, suffix: str, filler: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtnlg_data.sources.jsonl.ALWAYS_ALLOWED_BYTES", 1 << 18)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(PACK[suffix](b'{"text": "a"}\n' + filler * (1 << 21) + b'\n{"text": "b"}\n'))
    records, dropped = read(path, "jsonl", largest=1 << 16)
    assert [record.content for record in records] == ["a"]
    assert [drop.reason for drop in dropped] == ["bomb"]
    assert "256 times the file" in str(dropped[0].what)


def test_the_text_may_be_under_another_key(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"content": "here", "text": "not here"}\n')
    assert [record.content for record in read(tmp_path / "a.jsonl", "jsonl", field="content")[0]] == ["here"]


def test_only_the_wanted_subset_of_the_pile_is_read(tmp_path: Path, corpus: ModuleType) -> None:
    rows = [
        {"text": "a", "meta": {"pile_set_name": "Books3"}},
        {"text": "b", "meta": {"pile_set_name": "Github"}},
        {"text": None, "meta": {"pile_set_name": "Books3"}},
        {"text": "c"},
    ]
    corpus.write_jsonl(tmp_path / "00.jsonl.zst", rows)
    records, dropped = read(tmp_path / "00.jsonl.zst", "pile", subset="Books3")
    assert [(record.number, record.content) for record in records] == [(0, "a")]
    assert [drop.reason for drop in dropped] == ["no_text"]
    assert [record.content for record in read(tmp_path / "00.jsonl.zst", "pile")[0]] == ["a", "b", "c"]


# --- Parquet ---------------------------------------------------------------------------------------------------------


def test_parquet_rows_are_read_with_their_urls(tmp_path: Path) -> None:
    table = pa.table({"body": ["one", None, "x" * 200, "two"], "url": ["http://a", None, None, None]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    records, dropped = read(tmp_path / "a.parquet", "parquet", largest=100, field="body")
    assert [(record.number, record.content, record.url) for record in records] == [
        (0, "one", "http://a"),
        (3, "two", None),
    ]
    assert [(drop.reason, drop.where) for drop in dropped] == [
        ("no_text", "a.parquet: row 2"),
        ("too_large", "a.parquet: row 3"),
    ]


def test_invalid_utf_8_drops_only_its_row(tmp_path: Path) -> None:
    offsets = np.array([0, 2, 4, 5], np.int32)
    texts = pa.StringArray.from_buffers(3, pa.py_buffer(offsets), pa.py_buffer(b"ok\xff\xfez"))
    for dictionary in (True, False):
        pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", use_dictionary=dictionary)
        records, dropped = read(tmp_path / "a.parquet", "parquet")
        assert [(record.number, record.content) for record in records] == [(0, "ok"), (2, "z")]
        assert [(drop.reason, drop.where) for drop in dropped] == [("not_utf8", "a.parquet: row 2")]


def test_a_text_repeated_in_many_rows_is_in_memory_once(tmp_path: Path) -> None:
    rows = pa.DictionaryArray.from_arrays(np.zeros(1000, np.int32), ["x" * (1 << 20)])
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet")
    before = pa.total_allocated_bytes()
    most = 0
    for record in read_records(SourceFile("s", tmp_path / "a.parquet", "a", "parquet")):
        assert isinstance(record, Record)
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 64 << 20


def test_a_damaged_row_group_loses_only_its_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [str(n) * 50 for n in range(40)]}), tmp_path / "a.parquet", row_group_size=10)
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        place = file.metadata.row_group(1).column(0).data_page_offset
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[place : place + 40] = b"\xff" * 40
    (tmp_path / "a.parquet").write_bytes(content)
    records, dropped = read(tmp_path / "a.parquet", "parquet")
    assert [record.number for record in records] == [*range(10), *range(20, 40)]
    assert [(drop.reason, drop.where) for drop in dropped] == [("unreadable", "a.parquet: rows 11 to 20")]


def test_a_file_that_is_not_parquet_or_has_no_text_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "b.parquet")
    assert [drop.reason for drop in read(tmp_path / "a.parquet", "parquet")[1]] == ["unreadable"]
    assert "but body: name one as the field" in str(read(tmp_path / "b.parquet", "parquet")[1][0].what)
