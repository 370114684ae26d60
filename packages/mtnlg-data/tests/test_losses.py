"""Bad input, one kind after another: what the command says, its exit status, and how many documents are kept."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from command_line import command, invoke, outcome

from mtnlg_data import curate, load_recipe, open_engine, read_documents
from mtnlg_data.console import Failure
from mtnlg_data.sources import Dropped, SourceFile, read_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RNG = random.Random(0)
# Random words, so that a compressed file has many blocks and a cut leaves some of them whole.
ROWS = [{"text": " ".join(str(RNG.random()) for _ in range(200))} for _ in range(400)]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def extract(folder: Path, *options: str) -> tuple[int, str, int]:
    """Exit status, the error's line, and the number of documents kept."""
    inputs = [f"{path.name}={path}" for path in sorted(folder.iterdir()) if path.name != "out"]
    status, line = outcome("extract", *inputs, "--out", folder / "out", *options)
    shards = [shard for shard in (folder / "out").glob("*.parquet") if not shard.name.startswith("removed")]
    return status, line if status else "", sum(b.num_rows for s in shards for b in read_documents(s))


def test_loss_fails_the_command_at_each_run(tmp_path: Path) -> None:
    """What each kind of bad file costs is in ``bad_input.py``."""
    for name, content in (("in", b"PK\x03\x04" + LINES), ("sound", LINES)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_bytes(content)
    lost = extract(tmp_path)
    assert (lost[0], lost[2]) == (1, 400)
    assert "a.jsonl: is zip: unpack it" in lost[1]
    assert "--allow-failures" in lost[1]
    assert (tmp_path / "out" / "report.html").exists()
    assert extract(tmp_path) == lost  # nothing is read a second time
    assert extract(tmp_path, "--allow-failures") == (0, "", 400)


def test_max_failed_is_not_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(LINES + b"not JSON\n" * 10)
    assert extract(tmp_path)[0] == 1
    read_again: list[object] = []
    record: Callable[..., None] = lambda *words: read_again.append(words)  # noqa: E731
    monkeypatch.setattr("mtnlg_data.extract.shards.read_any", record)
    assert extract(tmp_path, "--max-failed", "0.03") == (0, "", 400)
    assert not read_again


def test_no_part_of_a_file_in_another_format_is_read_as_lines(tmp_path: Path) -> None:
    """And a large one is lost once, not once a part."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"PK\x03\x04" + LINES)
    parts = SourceFile("own", path, path.name, "jsonl").cut(3)
    assert [[type(record) for record in read_records(part)] for part in parts] == [[Dropped]]


def test_run_reports_extraction_losses_before_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"PK\x03\x04" + LINES)
    (tmp_path / "b.jsonl").write_bytes(LINES)
    source = 'kind = "jsonl"\npaths = ["*.jsonl"]\nweight = 1.0\n'
    (tmp_path / "data.toml").write_text(f"[sources.own]\n{source}[tokenize]\nvocabulary = 300\n")
    with pytest.raises(Failure, match="source own has no document left to tokenize"), open_engine("local", 1) as engine:
        curate(load_recipe(tmp_path), tmp_path / "out", engine)
    said = capsys.readouterr().err
    assert 0 <= said.index("WARNING: a.jsonl: is zip: unpack it") < said.index("clean: kept")
    assert said.count("is zip") == 1


def test_run_stops_after_extract_where_a_source_is_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES + LINES[:-500])  # of another source, and lost first
    (tmp_path / "b.warc.gz").write_bytes(LINES)
    recipe = "[tokenize]\nvocabulary = 300\n"
    for name, kind, file in (("own", "jsonl", "a.jsonl"), ("crawl", "warc", "b.warc.gz")):
        recipe += f'[sources.{name}]\nkind = "{kind}"\npaths = ["{file}"]\nweight = 0.5\n'
    (tmp_path / "data.toml").write_text(recipe)
    line = (
        r"^source crawl has no document after extract \(unreadable 1\): b\.warc\.gz: byte 0: no record begins here; "
        "repair its files or remove it of the recipe$"
    )
    for _ in range(2):
        with pytest.raises(Failure, match=line), open_engine("local", 1) as engine:
            curate(load_recipe(tmp_path), tmp_path / "out", engine)
    assert "clean: " not in capsys.readouterr().err


def test_a_file_name_that_is_not_utf8_is_escaped_in_ids(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "caf\udce9.jsonl").write_bytes(b'{"text": "one"}\n')
    assert extract(tmp_path) == (0, "", 1)
    shard = tmp_path / "out" / "in-00000.parquet"
    assert [batch.column("id").to_pylist() for batch in read_documents(shard)] == [["in/caf\\xe9.jsonl/0"]]


@pytest.mark.parametrize(("inputs", "out"), [("in", "in"), ("in/a.jsonl", "in"), ("in", "in/below/out")])
def test_an_output_folder_within_an_input_is_refused(tmp_path: Path, inputs: str, out: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(LINES)
    for name in ("extract", "dedup"):
        result = command(name, tmp_path / inputs, "--out", tmp_path / out)
        assert f"--out {tmp_path / out} is in the input {tmp_path / inputs}" in str(result.exception)
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a.jsonl"]


def test_files_that_would_share_ids_or_be_read_twice_are_refused(tmp_path: Path) -> None:
    for name in ("in/a/f.jsonl", "b/f.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(LINES)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "more").symlink_to(tmp_path / "b")
    file, other = tmp_path / "in" / "a" / "f.jsonl", tmp_path / "b" / "f.jsonl"
    for inputs, line in (
        ([f"own={file.parent}", f"own={other.parent}"], f"{other}: {file} of source own has the same name"),
        ([tmp_path / "in", file.parent], f"{file}: given twice"),
        ([tmp_path / "linked"], f"{tmp_path / 'linked' / 'more'}: a link to a folder is not followed; give it as an"),
    ):
        assert line in outcome("extract", *inputs, "--out", tmp_path / "out")[1]
    invoke("extract", file, "--out", tmp_path / "out")
    shard = tmp_path / "out" / "documents-00000.parquet"
    assert f"{shard}: given twice" in outcome("dedup", shard.parent, shard.parent, "--out", tmp_path / "kept")[1]


@pytest.mark.parametrize("name", ["documents", "inputs"])
def test_output_that_would_replace_the_input_is_refused(tmp_path: Path, name: str) -> None:
    own = tmp_path / name
    own.mkdir()
    (own / "a.jsonl").write_bytes(LINES)
    (good := tmp_path / "good.jsonl").write_bytes(LINES)
    invoke("extract", own / "a.jsonl", "--out", tmp_path / "shards")
    (tmp_path / "shards").rename(own / "shards")
    before = sorted(tmp_path.rglob("*"))
    for given in (own / "a.jsonl", own / "shards"):
        result = command("score", given, "--positive", good, "--out", tmp_path)
        assert f"--out {tmp_path} keeps copies of its inputs in {own}, where {given} is" in str(result.exception)
    assert sorted(tmp_path.rglob("*")) == before


def test_fetch_records_are_not_input(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(LINES)
    alone = extract(tmp_path)
    (tmp_path / "in" / ".fetched.json").write_text('{"text": "a record of fetch"}')
    (tmp_path / "in" / "a.jsonl.json").write_text('{"text": "its manifest"}')
    assert extract(tmp_path) == alone


def test_unknown_files_are_skipped_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.jsonl", "b.jsonl~", "c.doc"):
        (tmp_path / "in" / name).write_bytes(LINES)
    result = command("extract", tmp_path / "in", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert f"{tmp_path / 'in'}: 2 files of no known format are left out, b.jsonl~ the first" in result.stderr
