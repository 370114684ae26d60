"""Data sets of Hugging Face: what the library ``datasets`` writes is read, and it reads what is exported."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from command_line import invoke, outcome
from hub import Hub
from loopback import serving
from shards import read_source

from mtnlg_data import read_documents
from mtnlg_data.commands.alone import find_inputs
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.sources import Dropped, Record, read_records
from mtnlg_data.sources.matching import kinds_of_files
from mtnlg_data.transfer.url_files import _digests, fetch_files, list_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Run


ROWS: dict[str, list[Any]] = {
    "text": [f"Row {number} tells of what it had become. " * 4 for number in range(30)],
    "id": [f"row-{number}" for number in range(30)],
    "label": [number % 2 for number in range(30)],
    "meta": [{"n": number, "tags": [str(number)] * (number % 3)} for number in range(30)],
}


def saved(folder: Path, rows: dict[str, list[Any]], shards: int = 1) -> Path:
    """A folder as ``Dataset.save_to_disk`` leaves it."""
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict(rows).save_to_disk(str(folder), num_shards=shards)
    return folder


def test_saved_dataset_is_read_with_its_columns(tmp_path: Path) -> None:
    folder = saved(tmp_path / "rows", ROWS, shards=3)
    (folder / "cache-0123.arrow").write_bytes((folder / "data-00000-of-00003.arrow").read_bytes())  # left by map
    invoke("dedup", f"rows={folder}", "--out", tmp_path / "out")
    table = pa.concat_tables(pq.read_table(path) for path in sorted((tmp_path / "out").glob("rows-*.parquet")))
    assert table.drop_columns("mtnlg").to_pydict() == ROWS
    assert [own["key"] for own in table["mtnlg"].to_pylist()][:2] == [
        "rows/data-00000-of-00003.arrow/0",
        "rows/data-00000-of-00003.arrow/1",
    ]


def test_only_splits_of_a_data_set_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    splits = {name: datasets.Dataset.from_dict({"text": [f"Of {name}."]}) for name in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "both"))
    files = find_inputs([str(tmp_path / "both")], raw=True).files
    assert [(file.name, file.kind) for file in files] == [
        ("test/data-00000-of-00001.arrow", "arrow"),
        ("train/data-00000-of-00001.arrow", "arrow"),
    ]
    assert [record.content for file in files for record in read_records(file)] == ["Of test.", "Of train."]  # type: ignore[union-attr]


def test_json_file_named_like_a_state_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"text": "Of the state."}))
    assert [file.name for file in find_inputs([str(tmp_path)], raw=True).files] == ["state.json"]


def test_files_named_like_those_of_a_data_set_elsewhere_are_read() -> None:
    names = ["a/solid-state.json", "a/cache-1.arrow", "b/state.json", "b/data.arrow", "b/cache-1.arrow", "state.json"]
    assert [*kinds_of_files(names)] == ["a/solid-state.json", "a/cache-1.arrow", "b/data.arrow", "state.json"]


@pytest.mark.parametrize("format_name", ["stream", "file"])
def test_truncated_arrow_is_reported(tmp_path: Path, format_name: str) -> None:
    table = pa.table({"text": ROWS["text"]})
    writer = pa.ipc.new_stream if format_name == "stream" else pa.ipc.new_file
    with writer(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=10)
    whole = (tmp_path / "a.arrow").read_bytes()
    records, _ = read_source(tmp_path / "a.arrow", "arrow")
    assert [record.content for record in records] == ROWS["text"]
    for size in range(0, len(whole) - 8, 97):
        (tmp_path / "a.arrow").write_bytes(whole[:size])
        records, (dropped,) = read_source(tmp_path / "a.arrow", "arrow")
        assert dropped.ends_file
        assert [record.content for record in records] == ROWS["text"][: len(records)]


def test_arrow_without_the_column_and_with_a_null_is_counted(tmp_path: Path) -> None:
    def read(table: pa.Table, field: str = "text") -> tuple[list[Record], list[Dropped]]:
        with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as file:
            file.write_table(table)
        return read_source(tmp_path / "a.arrow", "arrow", field=field)

    _, (dropped,) = read(pa.table({"body": ["x"]}))
    assert dropped.what == "no string under 'text' among body but under body: set field (--field) to one"
    (tmp_path / "a.arrow").write_bytes(struct.pack("<i", -5) * 9)
    status, line = outcome("extract", tmp_path / "a.arrow", "--out", tmp_path / "out")
    assert status == 1
    assert line.startswith(
        "a.arrow: rows from 1 on: Invalid IPC stream: negative continuation token; documents: 1 of 1 "
    )
    (sound,), (null,) = read(pa.table({"body": [None, "x"]}), "body")
    assert (null.reason, sound.content) == ("no_text", "x")
    broken = pa.array([b"\xff", b"sound"]).cast(pa.binary()).view(pa.string())
    assert read(pa.table({"text": broken}))[1]


@pytest.mark.parametrize("offset", [1000, -5])
def test_arrow_with_bad_offsets_is_refused(tmp_path: Path, offset: int) -> None:
    table, path = pa.table({"text": ["a", "sound"]}), tmp_path / "a.arrow"
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(struct.pack("<3i", 0, 1, 6), struct.pack("<3i", 0, offset, 6)))
    assert path.read_bytes() != whole
    _, (dropped,) = read_source(path, "arrow")
    assert (dropped.reason, dropped.where) == ("unreadable", "a.arrow: rows 1 to 2")


def test_export_is_loaded_by_datasets(tmp_path: Path, finished: Run) -> None:
    datasets = pytest.importorskip("datasets")
    out = tmp_path / "set"
    invoke("export", finished.out, "--out", out)
    last = finished.out / "05-decontaminate"
    for source in ("books", "crawl"):
        rows = datasets.load_dataset(str(out), source, split="train", cache_dir=str(tmp_path / "cache"))
        shards = sorted(last.glob(f"{source}-*.parquet"))
        wanted = [row for shard in shards for batch in read_documents(shard) for row in batch.to_pylist()]
        assert rows.to_list() == wanted


@pytest.mark.parametrize(("kind", "suffix"), [("jsonl", ".jsonl.zst"), ("parquet", ".parquet")])
def test_an_export_resumes_by_file(tmp_path: Path, finished: Run, kind: str, suffix: str) -> None:
    out = tmp_path / f"out{suffix}"  # which names the format
    invoke("export", finished.out, "--out", out)
    whole = {path: (path.read_bytes(), path.stat().st_ino) for path in out.rglob("*") if path.name.endswith(suffix)}
    assert not (out / "README.md").exists()
    gone = min(whole)
    gone.unlink()
    invoke("export", finished.out, "--format", kind, "--out", out)
    assert {path: path.read_bytes() for path in whole} == {path: content for path, (content, _) in whole.items()}
    assert {path.stat().st_ino for path in whole if path != gone} == {whole[path][1] for path in whole if path != gone}


def test_lines_of_an_export_have_all_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({**ROWS, "when": pa.nulls(len(ROWS["text"]), pa.timestamp("s"))}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "one", "meta": {"n": [1, None]}, "id": "x"}) + "\n")
    given = [f"{name[0]}={tmp_path / name}" for name in ("a.parquet", "b.jsonl")]
    invoke("extract", *given, "--out", tmp_path / "made")
    invoke("export", tmp_path / "made", "--format", "jsonl", "--out", tmp_path / "lines")
    shown = []
    for path in sorted((tmp_path / "lines").rglob("*.zst")):
        with zstandard.open(path, "rt") as lines:
            shown += [json.loads(line) for line in lines]
    *of_table, line = shown
    assert [row["text"] for row in of_table] == ROWS["text"]
    assert of_table[0]["metadata"] == {**{name: own[0] for name, own in ROWS.items() if name != "text"}, "when": None}
    assert (line["id"], line["source"], line["metadata"]) == ("x", "b", {"meta": {"n": [1, None]}})


def test_configuration_names_may_look_like_yaml_values(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "in").mkdir()
    for name in (names := ["yes", "1e5", "null", "12", "x #y", "- z", "[0]", "it's", 'q"q', "\N{GRINNING FACE}"]):
        pq.write_table(pa.table({"text": [name]}), tmp_path / "in" / f"{name}.parquet")
    invoke("export", tmp_path / "in", "--out", tmp_path / "set")
    for name in names:
        rows = datasets.load_dataset(str(tmp_path / "set"), name, split="train", cache_dir=str(tmp_path / "cache"))
        assert rows.to_list() == [{"text": name}]
    for name in ("a: b", "a*", "a\nb"):
        pq.write_table(pa.table({"text": [name]}), tmp_path / "in" / f"{name}.parquet")
        status, line = outcome("export", tmp_path / "in", "--out", tmp_path / "other")
        assert (status, line.partition(".parquet: ")[2][:27]) == (1, "datasets takes no * / : < >")
        (tmp_path / "in" / f"{name}.parquet").unlink()
    assert not (tmp_path / "other").exists()


def test_export_refuses_data_it_would_change(tmp_path: Path, finished: Run) -> None:
    (tmp_path / "set" / "data").mkdir(parents=True)
    (tmp_path / "set" / "data" / "mine.parquet").write_bytes(b"mine")
    (tmp_path / "empty").mkdir()
    from mtnlg_data.transfer.export import export_documents

    with pytest.raises(UsageFailure, match=r"holds other data, such as .*mine.parquet"):
        export_documents(finished.out, tmp_path / "set")
    with pytest.raises(UsageFailure, match="give a folder outside of it"):
        export_documents(finished.out, finished.out / "set")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "README.md").write_text("mine")
    with pytest.raises(UsageFailure, match=r"README\.md is not a card of mtnlg-data"):
        export_documents(finished.out, tmp_path / "own")
    assert (tmp_path / "own" / "README.md").read_text() == "mine"
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "a.parquet").write_bytes(b"torn")
    with pytest.raises(Failure, match=r"torn/a\.parquet: damaged: Parquet"):
        export_documents(tmp_path / "torn", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    for folder in (tmp_path / "empty", tmp_path / "missing", tmp_path / "set" / "data" / "mine.parquet"):
        with pytest.raises(Failure, match="no documents"):
            export_documents(folder, tmp_path / "other")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, no_waits: None) -> Iterator[Hub]:
    """A Hub on loopback, which hf:// leads to."""
    assert no_waits is None
    with serving(Hub()) as running:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": running.url, "token": False})
        yield running


def test_rows_on_the_hub_are_read_as_files_here_are(tmp_path: Path, hub: Hub) -> None:
    pq.write_table(pa.table(ROWS), tmp_path / "0.parquet")
    hub.files["data/train/0.parquet"] = (tmp_path / "0.parquet").read_bytes()
    hub.files["data/test/0.parquet"] = b"not wanted"
    hub.files["README.md"] = b"a card"
    words = ("--out", tmp_path / "out")
    invoke("dedup", "rows=hf://datasets/me/rows/data/train/*.parquet", *words)
    assert pq.read_table(tmp_path / "out" / "rows-00000.parquet").drop_columns("mtnlg").to_pydict() == ROWS
    hub.wrong = [
        bytes(len(hub.files["data/train/0.parquet"]))
    ]  # another content, as long, of which the SHA-256 is known
    invoke("dedup", "rows=hf://datasets/me/rows/data/train", "--out", tmp_path / "again")
    assert (tmp_path / "again" / "rows-00000.parquet").read_bytes() == (
        tmp_path / "out" / "rows-00000.parquet"
    ).read_bytes()
    assert not hub.wrong
    status, line = outcome("extract", "hf://datasets/me/none", "--out", tmp_path / "none")
    assert (status, line) == (1, "hf://datasets/me/none: no such file, folder or bucket")


def test_rows_of_the_hub_are_read_at_the_revision_of_their_url(tmp_path: Path, hub: Hub) -> None:
    hub.files["0.jsonl"] = b'{"text": "one"}\n'
    hub.revision = "3de24cf8022e94f4ee4b9d55a6f539891524d646"
    files = list_files(f"hf://datasets/me/rows@{hub.revision}")
    fetch_files(files, tmp_path)
    assert [path.read_bytes() for path in tmp_path.rglob("0.jsonl")] == [hub.files["0.jsonl"]]
    with pytest.raises(Failure, match="hf://datasets/me/rows@main: no such"):
        list_files("hf://datasets/me/rows@main")


def test_file_changed_on_the_hub_is_not_read(tmp_path: Path, hub: Hub) -> None:
    hub.files["0.jsonl"] = b'{"text": "one"}\n'
    files = list_files("hf://datasets/me/rows")
    hub.files["0.jsonl"] = b'{"text": "two"}\n'
    with pytest.raises(Failure, match="changed since"):
        fetch_files(files, tmp_path)


def test_a_run_is_exported_to_a_data_set_as_the_hub_creates_it(tmp_path: Path, hub: Hub, finished: Run) -> None:
    hub.files[".gitattributes"] = b"*.parquet filter=lfs diff=lfs merge=lfs -text\n"
    out = ("--out", "hf://datasets/me/rows", "--work", tmp_path / "work")
    for said in ("3 of 3 files published", "already has all 3 files"):
        status, line = outcome("export", finished.out, *out)
        assert status == 0, line
        assert said in line
    status, line = outcome("export", finished.out, "--out", tmp_path / "here", "--json")
    assert (status, json.loads(line[line.index("{") :])["path"]) == (0, str(tmp_path / "here"))
    here = {path.relative_to(tmp_path / "here").as_posix(): path for path in (tmp_path / "here").rglob("*.*")}
    assert hub.files.keys() - {".gitattributes"} == here.keys() - {".lock"}
    assert all(hub.files[name] == path.read_bytes() for name, path in here.items() if name != ".lock")
    status, line = outcome("export", finished.out, "--out", "hf://datasets/me/rows", "--work", tmp_path / "other")
    assert status == 1
    assert "holds 3 files that were not published from" in line


def test_googles_checksum_of_a_file_is_checked() -> None:
    assert _digests({"md5Hash": "XUFAKrxLKna5cZ2REBfFkg=="}) == {"md5": "5d41402abc4b2a76b9719d911017c592"}
    assert _digests({"ETag": '"5d41402abc4b2a76b9719d911017c592"', "lfs": None}) == {}
