"""The command line: help for a person, JSON for a machine, and what ``inspect`` shows of each kind of file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from mtnlg_data.cli import app
from mtnlg_data.console import Failure
from mtnlg_data.document import Document, batches, read_documents, write_documents
from mtnlg_data.report.inspection import inspected

if TYPE_CHECKING:
    from types import ModuleType

PACKAGE = Path(__file__).parents[1]
COMMAND = str(Path(sys.executable).with_name("mtnlg-data"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def out(finished: Any) -> Path:  # noqa: ANN401  (the curation that conftest.py runs)
    return Path(finished.out)


def test_help_and_version_answer_without_the_libraries() -> None:
    heavy = {"numpy", "pyarrow", "numba", "sklearn", "scipy", "tokenizers", "pydantic", "lxml", "justext"}
    code = "import sys, mtnlg_data.cli; print(*sys.modules)"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not heavy & set(imported)
    for option in ("--help", "--version"):
        ended = subprocess.run([COMMAND, option], capture_output=True, text=True, check=True)
        assert "mtnlg-data" in ended.stdout
    assert version("mtnlg-data") in ended.stdout


ALONE = {"extract", "score", "clean", "dedup", "decontaminate", "tokenize"}
COMMANDS = {"run", "plan", "fetch", "inspect", "report", "merge"} | ALONE


def test_the_commands_are_these_and_a_machine_reads_what_they_tell() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert set(re.findall(r"^│ ([a-z]+) ", text, re.MULTILINE)) == COMMANDS
    for command in COMMANDS - {"report", "merge"}:
        shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
        assert "--json" in shown
        assert {"--out", "--set", "--workers"} <= set(re.findall(r"--\w+", shown)) or command not in {"run", *ALONE}


def test_run_prints_its_summary_as_json(out: Path) -> None:
    recipe = str(out.parent / "data.toml")
    words = [COMMAND, "--quiet", "run", recipe, "--out", str(out), "--json"]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert json.loads(ended.stdout) == json.loads((out / "summary.json").read_text())


def test_inspect_shows_a_run_with_its_stages_and_stores(out: Path) -> None:
    found = inspected(out, 1, 80)
    assert found["stages"][0]["name"] == "extract"
    stores = found["parts"][0]["parts"]
    assert [Path(store["path"]).name for store in stores] == ["books", "crawl"]
    result = CliRunner().invoke(app, ["inspect", str(out)])
    assert result.exit_code == 0, result.output
    assert "extract: kept" in result.output
    assert "<|endoftext|>" in CliRunner().invoke(app, ["inspect", str(out), "--characters", "5000"]).output


def test_inspect_decodes_a_store_by_any_of_its_names(out: Path) -> None:
    texts = {text for path in out.glob("05-decontaminate/books-*.parquet") for text in _column(path, "text")}
    names = [out / "tokens" / name for name in ("books", "books.bin", "books.idx")]
    found = [inspected(name, 2, 10_000) for name in names]
    assert found[0] == found[1] == found[2]
    assert found[0]["documents"] == len(texts)
    assert {sample["text"].removesuffix("<|endoftext|>") for sample in found[0]["samples"]} <= texts
    result = CliRunner().invoke(app, ["inspect", str(names[0]), "--json", "--documents", "0"])
    assert json.loads(result.output)["tokens"] == found[0]["tokens"]


def _column(path: Path, name: str) -> list[str]:
    return [value for batch in read_documents(path, [name]) for value in batch.column(name).to_pylist()]


def test_inspect_counts_documents_by_source(tmp_path: Path) -> None:
    rows = [Document(f"{source}/{n}", source, "é" * n) for source in ("a", "b") for n in range(5)]
    write_documents(tmp_path / "x-00000.parquet", batches(rows))
    for path in (tmp_path, tmp_path / "x-00000.parquet"):
        found = inspected(path, 3, 2)
        assert found["sources"] == {source: {"documents": 5, "characters": 10} for source in "ab"}
        assert [sample["text"] for sample in found["samples"]] == ["", "é", "éé"]


def test_inspect_shows_what_a_stage_by_itself_left(tmp_path: Path, corpus: ModuleType) -> None:
    corpus.write_texts(tmp_path / "x.jsonl", [corpus.text(n) for n in range(4)])
    words = ["clean", str(tmp_path / "x.jsonl"), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert CliRunner().invoke(app, words).exit_code == 0
    found = inspected(tmp_path / "out", 1, 80)
    assert [stage["name"] for stage in found["stages"]] == ["extract", "clean"]
    assert found["parts"][0]["sources"]["documents"]["documents"] == 4


def test_inspect_says_what_it_cannot_show(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x.parquet").write_bytes(b"no")
    for name, words in (("nowhere", "no Parquet file"), ("x", "holds no run"), ("x.parquet", "not a Parquet file")):
        with pytest.raises(Failure, match=words):
            inspected(tmp_path / name, 1, 1)


def test_the_readmes_commands_run_on_the_readmes_recipe(tmp_path: Path, corpus: ModuleType) -> None:
    blocks = BLOCK.findall((PACKAGE / "README.md").read_text(encoding="utf-8"))
    corpus.write_run(tmp_path, pages=60)
    (recipe,) = (text for language, text in blocks if language == "toml")
    (tmp_path / "data.toml").write_text(recipe)
    commands = [text for language, text in blocks if language == "bash" and "pip install" not in text]
    assert commands
    for text in commands:
        path = f"{Path(COMMAND).parent}:/usr/bin:/bin"
        words = ["bash", "-euc", text]
        ended = subprocess.run(words, cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{text}\n{ended.stderr}"
