"""The command line: help text, JSON output, and what ``inspect`` shows of each kind of file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import command, invoke
from shards import write_shard

from mtnlg_data import Document, read_documents
from mtnlg_data.console import Failure
from mtnlg_data.report.inspection import inspect_path, print_inspection

COMMAND = str(Path(sys.executable).with_name("mtnlg-data"))


@pytest.fixture
def out(finished: Any) -> Path:  # noqa: ANN401  (the curation that conftest.py runs)
    return Path(finished.out)


def test_help_and_version_answer_without_the_libraries() -> None:
    heavy = {"numpy", "pyarrow", "numba", "sklearn", "scipy", "tokenizers", "pydantic", "lxml", "justext", "fsspec"}
    code = "import sys, mtnlg_data.cli; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not heavy & set(imported)
    for option in ("--help", "--version"):
        completed = subprocess.run([COMMAND, option], capture_output=True, text=True, check=True)
        assert "mtnlg-data" in completed.stdout
    assert version("mtnlg-data") in completed.stdout


STAGE_COMMANDS = {"extract", "filter", "score", "clean", "dedup", "exact", "decontaminate", "tokenize"}
COMMANDS = {"run", "step", "plan", "export", "fetch", "inspect", "why", "report"} | STAGE_COMMANDS


def test_commands_are_listed_and_print_json() -> None:
    text = command("--help", env={"COLUMNS": "200"}).output
    assert set(re.findall(r"^│ ([a-z]+) ", text, re.MULTILINE)) == COMMANDS
    for name in COMMANDS - {"report", "step"}:
        shown = command(name, "--help", env={"COLUMNS": "200"}).output
        assert "--json" in shown
        if name in {"run", *STAGE_COMMANDS}:
            assert {"--out", "--workers", "--engine"} <= set(re.findall(r"--\w+", shown))


@pytest.mark.parametrize(
    "words",
    [
        "run recipe --out x --workers",
        "clean x --out y --workers",
        "plan recipe --workers",
        "plan recipe --characters-per-document",
        "fetch CC-MAIN-2020-50 --out x --files",
        "fetch CC-MAIN-2020-50 --out x --largest",
        "fetch CC-MAIN-2020-50 --out x --workers",
        "inspect x --documents",
        "inspect x --characters",
    ],
)
def test_command_line_integers_have_bounds(words: str) -> None:
    for number in ((1 << 63) - 1, 10**30):
        result = command(*words.split(), number, env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert f"Invalid value for '{words.rsplit(maxsplit=1)[-1]}'" in result.output


def test_run_prints_its_summary_as_json(out: Path) -> None:
    words = [COMMAND, "--quiet", "run", str(out.parent / "data.toml"), "--out", str(out), "--json"]
    completed = subprocess.run(words, capture_output=True, text=True, check=True)
    assert completed.stderr == ""
    assert json.loads(completed.stdout) == json.loads((out / "summary.json").read_text())


def test_inspect_shows_a_run_with_its_stages_and_stores(out: Path) -> None:
    inspection = inspect_path(out, 1, 80)
    assert inspection["stages"][0]["name"] == "extract"
    stores = inspection["parts"][0]["parts"]
    assert [Path(store["path"]).name for store in stores] == ["books", "crawl"]
    assert "extract: kept" in invoke("inspect", out)
    assert "<|endoftext|>" in command("inspect", out, "--characters", "5000").output


def test_inspect_decodes_a_store_by_any_of_its_names(out: Path) -> None:
    texts = {text for path in out.glob("05-decontaminate/books-*.parquet") for text in _column(path, "text")}
    names = [out / "tokens" / name for name in ("books", "books.bin", "books.idx")]
    inspections = [inspect_path(name, 2, 10_000) for name in names]
    assert inspections[0] == inspections[1] == inspections[2]
    assert inspections[0]["documents"] == len(texts)
    assert {sample["text"].removesuffix("<|endoftext|>") for sample in inspections[0]["samples"]} <= texts
    result = command("inspect", names[0], "--json", "--documents", "0")
    assert json.loads(result.output)["tokens"] == inspections[0]["tokens"]


def _column(path: Path, name: str) -> list[str]:
    return [value for batch in read_documents(path, [name]) for value in batch.column(name).to_pylist()]


def test_inspect_counts_documents_by_source(tmp_path: Path) -> None:
    rows = [Document(f"{source}/{n}", source, "é" * n) for source in ("a", "b") for n in range(5)]
    write_shard(tmp_path / "x-00000.parquet", rows)
    for path in (tmp_path, tmp_path / "x-00000.parquet"):
        inspection = inspect_path(path, 3, 2)
        assert inspection["sources"] == {source: {"documents": 5, "characters": 10} for source in "ab"}
        assert [sample["text"] for sample in inspection["samples"]] == ["", "é", "éé"]


def test_inspect_opens_tables_that_a_run_leaves(out: Path) -> None:
    for name in ("04-deduplicate/dropped/duplicates-00000.parquet", "05-decontaminate/cuts/books-00000.parquet"):
        assert inspect_path(out / name, 1, 80)["kind"] == "table"
        print_inspection(inspect_path(out / name, 1, 80))
    ledger = str(out / "04-deduplicate" / "dropped" / "duplicates-00000.parquet")
    assert "reason = 'duplicate'" in command("inspect", ledger).output


def test_inspect_reads_the_documents_that_stages_read(tmp_path: Path) -> None:
    texts = pa.array(["one", "two"])
    tables = {
        "documents": [{"text": texts}, {"text": texts.dictionary_encode()}, {"text": texts.cast(pa.string_view())}],
        "table": [{"text": pa.array([1, 2])}, {"body": texts}, {"mtnlg": texts, "body": texts}],
    }
    for kind, of_kind in tables.items():
        for number, columns in enumerate(of_kind):
            pq.write_table(pa.table(columns), path := tmp_path / f"{kind}{number}.parquet")
            assert inspect_path(path, 1, 80)["kind"] == kind, columns
            print_inspection(inspect_path(path, 1, 80))


def test_inspect_refuses_other_files_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x.json").write_text("{}")
    for name, words in (("x", "holds no run"), ("x.json", "neither Parquet nor a token store")):
        with pytest.raises(Failure, match=f"{name}.*{words}"):
            inspect_path(tmp_path / name, 1, 1)


def test_broken_tokenizer_next_to_a_store_is_named_in_the_error(out: Path, tmp_path: Path) -> None:
    shutil.copytree(out / "tokens", tmp_path / "tokens")
    (tmp_path / "tokens" / "tokenizer.json").write_text("{")
    with pytest.raises(Failure, match=r"tokens/tokenizer\.json: not a tokenizer\.json: "):
        inspect_path(tmp_path / "tokens" / "books", 1, 1)
    (tmp_path / "tokens" / "tokenizer.json").unlink()
    assert "text" not in inspect_path(tmp_path / "tokens" / "books", 1, 1)["samples"][0]
