"""What a user gives comes back: the ids of the records, all their other fields, and the columns of a Parquet file."""

from __future__ import annotations

import decimal
import itertools
import json
import random
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from shards import read_rows, read_source, run_here

from mtnlg_data import (
    Clean,
    Decontaminate,
    Deduplicate,
    Extract,
    Quality,
    SourceFile,
)
from mtnlg_data.console import Failure
from mtnlg_data.document import CHARACTERS_PER_GROUP, DocumentFile
from mtnlg_data.report.inspection import inspect_table
from mtnlg_data.sources.record import Metadata

if TYPE_CHECKING:
    from pathlib import Path

OWN = "mtnlg"


def sentences(seed: object, count: int = 12) -> str:
    drawn = random.Random(str(seed))
    words = [f"{a}{b}" for a, b in itertools.product(("ma", "so", "ti", "ne"), ("lo", "ri", "ku", "va"))]
    return " ".join(" ".join(drawn.choices(words, k=9)).capitalize() + "." for _ in range(count))


TEXTS = [sentences(n) for n in range(6)]


def extract(
    folder: Path, path: Path, kind: str = "jsonl", field: str = "text"
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The counts of the one source, and the documents."""
    file = SourceFile("own", path, path.name, kind, {"field": field})
    summary = run_here(Extract(), [file], folder / "documents")
    return summary["sources"]["own"], read_rows(folder / "documents" / "own-00000.parquet")


def cleaned(source: str, *rules: str, **settings: Any) -> Clean:  # noqa: ANN401
    return Clean(sources={source: {"rules": list(rules)}}, **settings)


def all_types() -> pa.Table:
    """Six rows of every kind of column, the texts in the middle; rows 0 and 3 have the same text."""
    count = len(TEXTS)
    return pa.table(
        {
            "id": pa.array([7, 7, None, 9, 10, 11], pa.int64()),
            "time": pa.array([1000, None, 3000, 4000, 5000, 6000], pa.timestamp("ns", "UTC")),
            "price": pa.array([decimal.Decimal("1.25"), None] * 3, pa.decimal128(9, 2)),
            "body": pa.array([*TEXTS[:3], TEXTS[0], *TEXTS[4:]], pa.string()),
            "counts": pa.array([[("a", 1)], None, []] * 2, pa.map_(pa.string(), pa.int32())),
            "category": pa.array(["x", "y", None] * 2).dictionary_encode(),
            "tags": pa.array([["a", "b"], [], None] * 2, pa.list_(pa.string())),
            "nested": pa.array([{"s": "q", "l": [{"t": "r"}]}, None, {"s": None, "l": None}] * 2),
            "bytes": pa.array([b"\xff", None, b""] * 2, pa.binary()),
            "vector": pa.array([[1.0, 2.0], None, [3.0, 4.0]] * 2, pa.list_(pa.float32(), 2)),
            "wide": pa.array(["w", None] * 3, pa.large_string()),
            "nothing": pa.nulls(count),
            "source": ["theirs"] * count,
            "score": pa.array(range(count), pa.int8()),
            "language": ["eng_Latn"] * count,
            "key": ["k"] * count,
            "text": pa.array([None] * count, pa.int32()),
        }
    )


def same(stored: pa.Table, given: pa.Table) -> None:
    """The columns have the names, order, types and values that were given; one more is ours."""
    assert stored.column_names == [*given.column_names, OWN]
    for name in given.column_names:
        assert stored.schema.field(name).type == given.schema.field(name).type, name
        assert stored[name].to_pylist() == given[name].to_pylist(), name


def to_the_end(folder: Path, *rules: str) -> Path:
    """The extracted shard cleaned, deduplicated and decontaminated, which cuts the sixth text in two."""
    texts = corpus.write_jsonl(folder / "texts.jsonl", [{"task": "t", "id": "0", "text": TEXTS[5][300:420]}])
    shard = folder / "documents" / "own-00000.parquet"
    for name, step in (
        ("clean", cleaned("own", *rules, shortest=1)),
        ("unique", Deduplicate(alarm_share=1.0)),
        ("pure", Decontaminate(texts=texts, n=5, minimum=5, window=0, shortest=50)),
    ):
        run_here(step, [shard], folder / name)
        shard = folder / name / shard.name
    return shard


def test_json_id_and_fields_survive_every_stage(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"id": "a-1", "text": TEXTS[0], "url": "http://a", "tags": ["x"], "n": 1.5},
        {"id": 17, "text": TEXTS[1], "deep": {"a": None}},
        {"id": "", "text": TEXTS[2]},
        {"text": TEXTS[3], "id": None},
        {"id": "again", "text": TEXTS[0]},  # a duplicate of the first
        {"id": "again", "text": TEXTS[5]},
    ]
    _, documents = extract(tmp_path, corpus.write_jsonl(tmp_path / "d.jsonl", records))
    ids = ["a-1", "17", "own/d.jsonl/2", "own/d.jsonl/3", "again", "again"]
    assert [row["id"] for row in documents] == ids
    assert [row["key"] for row in documents] == [f"own/d.jsonl/{n}" for n in range(6)]
    last = to_the_end(tmp_path, "unicode", "short")
    cuts = pq.read_table(last.parent / "cuts" / last.name).to_pylist()
    assert {(cut["document"], cut["key"]) for cut in cuts} == {("again", "own/d.jsonl/5")}
    left = read_rows(last)
    whole = [row for row in left if "#" not in row["key"]]
    metadata = {int(row["key"][-1]): row["metadata"] and json.loads(row["metadata"]) for row in whole}
    kept = 0 if 0 in metadata else 4
    given = {n: {name: value for name, value in record.items() if name != "text"} for n, record in enumerate(records)}
    assert metadata[1] == given[1]  # with the id, since it is a number
    assert metadata[2] is None
    assert metadata[3] == given[3]
    assert metadata[kept] == ({name: given[0][name] for name in ("url", "tags", "n")} if kept == 0 else None)
    assert [(row["id"], row["key"]) for row in left if row["key"].startswith("own/d.jsonl/5")] == [
        ("again#0", "own/d.jsonl/5#0"),
        ("again#1", "own/d.jsonl/5#1"),
    ]


def test_parquet_columns_survive_every_stage(tmp_path: Path) -> None:
    table = all_types()
    pq.write_table(table, tmp_path / "my.parquet", row_group_size=4)
    _, documents = extract(tmp_path, tmp_path / "my.parquet", "parquet", "body")
    assert [row["id"] for row in documents] == ["7", "7", "own/my.parquet/2", "9", "10", "11"]
    same(pq.read_table(tmp_path / "documents" / "own-00000.parquet"), table)
    languages = [row["language"] for row in documents]
    last = to_the_end(tmp_path, "whitespace")
    unique = tmp_path / "unique" / last.name
    duplicates = pq.read_table(tmp_path / "unique" / "dropped" / "duplicates-00000.parquet").to_pylist()
    removed = [int(row["key"].rpartition("/")[2]) for row in duplicates]
    assert removed == [max(0, 3, key=lambda row: blake2b(f"own/my.parquet/{row}".encode(), digest_size=8).digest())]
    left = [n for n in range(6) if n not in removed]
    assert [row["language"] for row in read_rows(unique)] == [languages[n] for n in left]
    same(pq.read_table(unique), table.take(left))
    pieces = pq.read_table(last)
    same(pieces.drop_columns("body"), table.take([*left, 5]).drop_columns("body"))  # its last row is cut in two
    assert [text in TEXTS[5] for text in pieces["body"].to_pylist()[-2:]] == [True, True]
    assert [row["key"] for row in read_rows(last)][-2:] == [f"own/my.parquet/5#{n}" for n in (0, 1)]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("names", "why"),
    [(["text", "n", "n"], "column n: its name is not unique"), (["text", "n", OWN], f"column {OWN}: the name is that")],
)
def test_a_column_that_no_document_can_keep_is_named(tmp_path: Path, names: list[str], why: str, kind: str) -> None:
    table, path = pa.Table.from_arrays([pa.array(TEXTS), *[pa.array(range(6))] * 2], names=names), tmp_path / "a"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table)
    _, (dropped,) = read_source(path, kind)
    assert str(dropped.what).startswith(why)


def test_a_stage_function_takes_any_parquet_file_with_texts(tmp_path: Path) -> None:
    mine = tmp_path / "mine.parquet"
    table = pa.table({"id": [3, None, 3], "text": [TEXTS[0], TEXTS[0], None], "year": [1999, 2000, 2001]})
    pq.write_table(table, mine)
    names = [(row["id"], row["source"]) for row in read_rows(mine)]
    assert names == [("3", "mine"), ("mine/mine.parquet/1", "mine"), ("3", "mine")]
    assert [row["key"] for row in read_rows(mine)] == [f"mine/mine.parquet/{n}" for n in range(3)]
    summary = run_here(Deduplicate(alarm_share=1.0), [mine], tmp_path / "unique")
    assert summary["sources"]["mine"]["dropped"] == {"duplicate": 1}
    assert pq.read_table(tmp_path / "unique" / mine.name)["year"].to_pylist() in ([1999, 2001], [2000, 2001])
    kept = tmp_path / "clean" / mine.name
    run_here(cleaned("mine", "short"), [mine], tmp_path / "clean")
    same(pq.read_table(kept), table.slice(0, 2))
    pq.write_table(table.rename_columns(["id", "body", "year"]), tmp_path / "none.parquet")
    with pytest.raises(Failure, match=r"none\.parquet: no column 'text' of strings; it has id, body, year"):
        run_here(cleaned("none"), [tmp_path / "none.parquet"], tmp_path / "c")
    with pytest.raises(FileNotFoundError, match=r"gone\.parquet"):
        run_here(cleaned("gone"), [tmp_path / "gone.parquet"], tmp_path / "c")


def test_documents_with_equal_ids_are_drawn_independently(tmp_path: Path) -> None:
    """They have one score too, so with the id in the draw all or none of them would be kept."""
    path = corpus.write_jsonl(tmp_path / "d.jsonl", [{"id": "same", "text": TEXTS[0]} for _ in range(120)])
    extract(tmp_path, path)
    good = corpus.write_jsonl(
        tmp_path / "g.jsonl", [{"id": "same", "text": sentences(("good", n), 2)} for n in range(40)]
    )
    run_here(Extract(), [SourceFile("good", good, "g.jsonl", "jsonl")], tmp_path / "good")
    shards = [tmp_path / "documents" / "own-00000.parquet", tmp_path / "good" / "good-00000.parquet"]
    step = Quality(alpha=1.0, sources={"own": {"filtered": True}, "good": {"curated": True}})
    summary = run_here(step, shards, tmp_path / "kept")
    assert 0 < summary["sources"]["own"]["documents_out"] < 120


def test_the_headers_of_a_page_are_its_metadata(tmp_path: Path) -> None:
    html = f"<html><body><p>{sentences(1)}</p></body></html>".encode()
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + html
    warc = {
        "WARC-Type": "response",
        "WARC-Record-ID": "<urn:uuid:1>",
        "WARC-Date": "2020-11-23T00:00:00Z",
        "WARC-IP-Address": "192.0.2.1",
        "WARC-Payload-Digest": "sha1:ABC",
        "WARC-Target-URI": "http://a/",
        "Content-Type": "application/http; msgtype=response",
        "Content-Length": str(len(http)),
    }
    header = "WARC/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in warc.items()) + "\r\n"
    (tmp_path / "a.warc").write_bytes(header.encode() + http + b"\r\n\r\n")
    (record,), _ = read_source(tmp_path / "a.warc", "warc")
    kept = {name: warc[name] for name in ("WARC-Record-ID", "WARC-Date", "WARC-IP-Address", "WARC-Payload-Digest")}
    assert isinstance(record.metadata, Metadata)
    assert json.loads(str(record.metadata.value)) == {**kept, "Content-Type": "text/html; charset=utf-8"}
    arc = b"filedesc://a 0.0.0.0 20080430204825 text/plain 8\n1 0\nURL\n\n"
    arc += b"http://a/ 192.0.2.1 20080430204826 text/html %d\n" % len(http) + http + b"\n"
    (tmp_path / "a.arc").write_bytes(arc)
    (record,), _ = read_source(tmp_path / "a.arc", "warc")
    assert isinstance(record.metadata, Metadata)
    assert json.loads(str(record.metadata.value)) == {
        "WARC-IP-Address": "192.0.2.1",
        "WARC-Date": "2008-04-30T20:48:26Z",
        "Content-Type": "text/html; charset=utf-8",
    }


def test_an_integer_of_any_length_keeps_its_digits(tmp_path: Path) -> None:
    big = 123456789012345678901234567890
    _, (document,) = extract(
        tmp_path, corpus.write_jsonl(tmp_path / "d.jsonl", [{"id": big, "text": TEXTS[0], "n": -big}])
    )
    assert document["id"] == str(big)
    assert json.loads(document["metadata"]) == {"id": big, "n": -big}


def test_oversized_metadata_is_dropped_and_counted(tmp_path: Path) -> None:
    deep = '{"id": "deep", "text": "a", "m": ' + "[" * 300 + "]" * 300 + "}\n"
    large = json.dumps({"id": "large", "text": "b", "m": "x" * (1 << 22)}) + "\n"
    (tmp_path / "d.jsonl").write_text(deep + large + '{"id": "c", "text": "c", "m": 1}\n')
    counts, documents = extract(tmp_path, tmp_path / "d.jsonl")
    assert [(row["id"], row["metadata"]) for row in documents] == [("deep", None), ("large", None), ("c", '{"m":1}')]
    assert counts["metadata_lost"] == {"metadata_too_deep": 1, "metadata_too_large": 1}
    assert counts["dropped"] == {}


@pytest.mark.parametrize("nested", [False, True])
def test_parquet_row_over_the_bound_loses_other_columns(tmp_path: Path, nested: bool) -> None:
    """The large value stands once in the file, and a thousand rows refer to it."""
    values = pa.array(["x" * (1 << 22), "y"])
    large = pa.DictionaryArray.from_arrays(pa.array([0] * 1000 + [1], pa.int32()), values)
    column = pa.ListArray.from_arrays(range(1002), pa.StructArray.from_arrays([large], ["v"])) if nested else large
    pq.write_table(pa.table({"text": TEXTS[:1] * 1001, "large": column, "n": range(1001)}), tmp_path / "a.parquet")
    counts, documents = extract(tmp_path, tmp_path / "a.parquet", "parquet")
    assert counts["metadata_lost"] == {"metadata_too_large": 1000}
    small = [{"v": "y"}] if nested else "y"
    assert [row["metadata"] for row in documents[999:]] == [{"large": None, "n": None}, {"large": small, "n": 1000}]


def test_metadata_counts_for_the_size_of_a_row_group(tmp_path: Path) -> None:
    size = CHARACTERS_PER_GROUP // 4
    records = [{"text": "a", "m": "x" * size} for _ in range(10)]
    extract(tmp_path, corpus.write_jsonl(tmp_path / "d.jsonl", records))
    table = pa.table({"text": ["a"] * 10, "m": ["x" * size] * 10})
    pq.write_table(table, tmp_path / "a.parquet")
    extract(tmp_path / "parquet", tmp_path / "a.parquet", "parquet")
    for folder in (tmp_path, tmp_path / "parquet"):
        file = pq.read_metadata(folder / "documents" / "own-00000.parquet")
        assert max(file.row_group(group).num_rows for group in range(file.num_row_groups)) <= 4


def test_a_table_with_times_that_python_has_not_can_be_looked_at(tmp_path: Path) -> None:
    times = pa.table({"id": ["a"], "time": pa.array([1], pa.timestamp("ns"))})
    pq.write_table(times, tmp_path / "times.parquet")
    shown = inspect_table(tmp_path / "times.parquet", 1)["samples"]
    assert shown[0]["id"] == "a"
    assert "1970-01-01 00:00:00.000000001" in str(shown[0]["time"])  # pandas, where it is installed, has such a time


def test_empty_row_groups_are_read(tmp_path: Path) -> None:
    rows = pa.table({"id": ["a", "b"], "text": ["one two", "three"]})
    with pq.ParquetWriter(tmp_path / "own-00000.parquet", rows.schema) as file:
        for table in (rows.slice(0, 0), rows):
            file.write_table(table)
    with DocumentFile(tmp_path / "own-00000.parquet") as documents:
        assert [documents.read(group).num_rows for group in (0, 1)] == [0, 2]
