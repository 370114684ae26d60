"""A whole curation: its output, and that neither damage nor bad input changes the result."""

from __future__ import annotations

import json
import os
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import small_corpus as corpus
from shards import curate_here

from mtnlg_data import Local, curate, load_recipe
from mtnlg_data.console import Failure
from mtnlg_data.document import DamagedShard

if TYPE_CHECKING:
    from conftest import Run

STAGES = ["extract", "quality", "clean", "deduplicate", "decontaminate", "tokenize"]


def tokens(out: Path) -> dict[str, bytes]:
    """The files that training reads."""
    names = ("tokenizer.json", "blend.json", "books.bin", "books.idx", "crawl.bin", "crawl.idx")
    return {name: (out / "tokens" / name).read_bytes() for name in names}


# --- what comes out --------------------------------------------------------------------------------------------------


def test_every_stage_accounts_for_every_document(finished: Run) -> None:
    stages = finished.summary["stages"]
    assert [stage["name"] for stage in stages] == STAGES
    for stage in stages:
        assert list(stage["sources"]) == ["books", "crawl"]
        for source in stage["sources"].values():
            more = source["documents_out"] + sum(source["dropped"].values()) - source["documents_in"]
            assert more >= 0 if stage["name"] == "decontaminate" else more == 0, "only a cut makes two of one"
        assert stage["documents_in"] == sum(source["documents_in"] for source in stage["sources"].values())
    for before, after in pairwise(stages):
        assert after["documents_in"] == before["documents_out"]
        assert after["characters_in"] == before["characters_out"]
    dropped = {stage["name"]: stage["sources"]["crawl"]["dropped"] for stage in stages}
    assert dropped["quality"]["low_quality"] > 0
    assert dropped["deduplicate"]["duplicate"] > 0
    assert finished.summary["decontamination"]["cuts_by_task"]["boolq"] > 0


def test_summary_matches_report(finished: Run) -> None:
    summary = json.loads((finished.out / "summary.json").read_text())
    assert summary == finished.summary
    assert summary["version"] == 1
    assert set(summary) >= {"seconds", "quality", "languages", "duplicates", "decontamination", "tokens", "vocabulary"}
    assert set(summary["quality"]) >= {"accuracy", "auc", "edges", "candidates", "kept", "positives"}
    assert summary["languages"] == {"en": 200}
    assert summary["vocabulary"] == 400
    assert 0 < summary["unigram_entropy_nats"] < 6
    assert summary["tokens"]["books"]["weight"] == 0.4
    assert load_recipe(finished.out / "recipe.toml").dump() == load_recipe(finished.recipe).dump()


# --- damage ----------------------------------------------------------------------------------------------------------


VICTIMS = ["01-extract/crawl-00000.parquet", "03-clean/books-00000.parquet", "tokens/crawl.bin", "tokens/crawl.idx"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("victim", VICTIMS)
def test_damaged_result_is_found_by_checksum_and_remade(
    finished: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], victim: str
) -> None:
    shutil.copytree(finished.out, tmp_path / "data")
    flip(tmp_path / "data" / victim)
    curate_here(finished.recipe, tmp_path / "data")
    assert f"{tmp_path / 'data' / victim}: damaged: its digest differs; it is made again" in capsys.readouterr().err
    assert (tmp_path / "data" / victim).read_bytes() == (finished.out / victim).read_bytes()
    assert tokens(tmp_path / "data") == tokens(finished.out)


def test_silent_damage_ends_the_run_with_the_repair_command(finished: Run, tmp_path: Path) -> None:
    out, victim = tmp_path / "data", tmp_path / "data" / "04-deduplicate" / "crawl-00000.parquet"
    shutil.copytree(finished.out, out)
    times, whole = victim.stat(), victim.read_bytes()
    flip(victim)
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    rerun = re.escape(f"; remove it, and rerun mtnlg-data run {out / 'recipe.toml'} --out {out}")
    with pytest.raises(DamagedShard, match=f"{rerun}$") as ended:
        curate_here(finished.recipe, out, "decontaminate.window=150")
    assert ended.value.args[0] == victim
    victim.unlink()
    curate_here(finished.recipe, out, "decontaminate.window=150")
    assert victim.read_bytes() == whole
    curate_here(finished.recipe, tmp_path / "other", "decontaminate.window=150")
    assert tokens(out) == tokens(tmp_path / "other")


def test_another_input_file_is_counted_where_it_passes_a_step(tmp_path: Path) -> None:
    (tmp_path / "data.toml").write_text("""
steps = ["extract", "filter"]
[sources.read]
kind = "jsonl"
paths = ["read.jsonl"]
filters = ["fineweb_newlines"]
[sources.past]
kind = "jsonl"
paths = ["past*.jsonl"]
""")
    corpus.write_texts(tmp_path / "read.jsonl", ["A line of words."])
    for rows, documents in ((1, 1), (3, 4)):
        corpus.write_texts(tmp_path / f"past-{rows}.jsonl", ["A line of words."] * rows)
        stage = curate_here(tmp_path / "data.toml", tmp_path / "out")["stages"][1]
        assert stage["sources"]["past"]["documents_out"] == documents


# --- faults of the system and the user ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["recipe.toml", "summary.json", "report.html"])
def test_first_run_refuses_to_overwrite_files(finished: Run, tmp_path: Path, name: str) -> None:
    """Such as its own recipe, where that is named recipe.toml and --out is its folder."""
    shutil.copytree(finished.recipe.parent, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("data"))
    recipe = (tmp_path / "data.toml").rename(tmp_path / name) if name == "recipe.toml" else tmp_path / "data.toml"
    (tmp_path / name).touch()
    before = (tmp_path / name).read_bytes()
    with pytest.raises(Failure, match=rf"{name}: exists before the first run.*give another --out"):
        curate_here(recipe, tmp_path)
    assert (tmp_path / name).read_bytes() == before
    assert not (tmp_path / "01-extract").exists()


def test_a_training_run_is_not_overwritten(finished: Run, tmp_path: Path) -> None:
    """It has a lock and a recipe.toml of its own."""
    (tmp_path / "recipe.toml").write_text("[model]\n[train]\n")
    (tmp_path / ".lock").touch()
    with pytest.raises(Failure, match=r"recipe.toml: exists before the first run.*give another --out"):
        curate_here(finished.recipe, tmp_path)
    assert (tmp_path / "recipe.toml").read_text() == "[model]\n[train]\n"


@pytest.mark.parametrize("name", ["books/3.jsonl.zst", "crawl/3.warc.gz"])
def test_unreadable_input_ends_the_run_and_is_named(finished: Run, tmp_path: Path, name: str) -> None:
    unreadable = Path("/proc/self/mem")  # its first page is mapped nowhere
    if not unreadable.exists():
        pytest.skip("no /proc on this machine, which has a file that cannot be read")
    folder = shutil.copytree(finished.recipe.parent, tmp_path / "moved")
    (folder / "raw" / name).symlink_to(unreadable)
    recipe = load_recipe(finished.recipe, folder=folder)
    engine = Local(1)
    with pytest.raises(OSError, match="Input/output error") as ended:
        curate(recipe, folder / "data", engine)
    assert ended.value.filename == str(folder / "raw" / name)
    (folder / "raw" / name).unlink()
    curate(recipe, folder / "data", engine)
    assert tokens(folder / "data") == tokens(finished.out)
