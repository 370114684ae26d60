"""The README's Python blocks and commands run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import small_corpus as corpus
from command_line import invoke
from typer.testing import CliRunner

from mtnlg_data.cli import app

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "block", [text for language, text in BLOCKS if language == "python"], ids=lambda text: text[:9]
)
def test_a_python_block_of_the_readme_runs(block: str, tmp_path: Path) -> None:
    """And the recipe that says the same gives the same tokens."""
    texts = [f"Line {n} is about the harbour and the ships that wait in it. " * 4 for n in range(9)]
    corpus.write_jsonl(tmp_path / "raw" / "notes.jsonl", [{"text": text} for text in texts])
    (tmp_path / "block.py").write_text(block)
    done = subprocess.run([sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    promised = re.findall(r"^print\(.*?  # (\{.*?\}):", block, re.MULTILINE)
    assert all(line in done.stdout for line in promised)
    if "keep_long" in block:
        (tmp_path / "filters.py").write_text(block.partition("notes =")[0])
        (tmp_path / "data.toml").write_text(next(text for language, text in BLOCKS if language == "toml"))
        invoke("run", tmp_path / "data.toml", "--out", tmp_path / "again", "--workers", 1)
        stores = [tmp_path / out / "tokens" / "notes.bin" for out in ("data", "again")]
        assert stores[0].read_bytes() == stores[1].read_bytes()


def test_the_commands_of_the_readme_run_on_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus.write_run(tmp_path, pages=60)
    (recipe,) = (text for language, text in BLOCKS if language == "toml" and "texts =" in text)
    (tmp_path / "data.toml").write_text(recipe)
    monkeypatch.chdir(tmp_path)
    shown = "".join(text for language, text in BLOCKS if language in {"bash", "sh"} and "pip install" not in text)
    for command in shown.splitlines():
        done = CliRunner().invoke(app, shlex.split(command.removeprefix("mtnlg-data ")))
        assert done.exit_code == 0, done.output
    for tokens in ("tokens", "data/tokens"):
        assert {path.name for path in Path(tokens).glob("*.bin")} == {"books.bin", "crawl.bin"}
