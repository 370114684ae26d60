"""The quickstart's corpus: its content, and that it depends only on this Python."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shards import read_source

SCRIPT = Path(__file__).parents[3] / "recipes" / "quickstart" / "corpus.py"
PART = "5"  # of 8; a whole corpus takes too long for a test suite


def make(out: Path, folder: Path, **environment: str) -> dict[str, bytes]:
    folder.mkdir()
    words = [sys.executable, "-P", str(SCRIPT), str(out), "--part", PART, "--key", "k"]
    subprocess.run(words, cwd=folder, env={**os.environ, **environment}, check=True, capture_output=True)
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("corpus")
    return folder / "out", make(folder / "out", folder / "here", PYTHONHASHSEED="0")


def test_another_folder_home_and_environment_give_the_same_bytes(
    part: tuple[Path, dict[str, bytes]], tmp_path: Path
) -> None:
    other = make(tmp_path / "out", tmp_path / "there", PYTHONHASHSEED="0", HOME=str(tmp_path), PRIVATE="xyzzy")
    assert other == part[1]


def test_corpus_holds_pages_code_and_docstrings(part: tuple[Path, dict[str, bytes]]) -> None:
    raw = part[0] / "raw"
    counts = {}
    for kind, pattern in (("warc", "snapshot/*.warc.gz"), ("jsonl", "code/*.zst"), ("jsonl", "docstrings/*.zst")):
        (path,) = raw.glob(pattern)
        records, dropped = read_source(path, kind)
        assert not dropped
        counts[path.parent.name] = len(records)
    assert counts["snapshot"] > 100
    assert counts["code"] > 20
    assert counts["docstrings"] > 50


def test_it_holds_no_paths_or_addresses_of_this_machine(part: tuple[Path, dict[str, bytes]]) -> None:
    pages = b"".join(gzip.decompress(content) for name, content in part[1].items() if name.endswith(".warc.gz"))
    assert not re.search(rb"(?: |&nbsp;)at(?: |&nbsp;)0x[0-9a-f]{6}", pages)
    for secret in (os.environ["PATH"], sys.executable, sys.prefix + "/", str(Path(os.__file__).parent)):
        assert secret.encode() not in pages
