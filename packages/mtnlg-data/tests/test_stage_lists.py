"""A stage's folder holds the results of its present inputs, and every command reads it by the stage's own list."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from command_line import invoke
from shards import curate_here

from mtnlg_data.commands.alone import find_inputs
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.report.inspection import inspect_path

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Run

TIMED = {"stage.json", "summary.json", "report.html", ".lock"}


def step(name: str, source: Path, out: Path, *words: object) -> None:
    invoke(name, source, "--out", out, *words)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file that a run left, but for those with times in them."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in TIMED)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def shown(folder: Path) -> Any:  # noqa: ANN401  (any JSON value)
    """What ``inspect`` shows of a folder, without its name and the durations."""
    text = json.dumps(inspect_path(folder, 2, 100)).replace(str(folder), "")
    return json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "seconds"})


@pytest.fixture(scope="module")
def shrunk(tmp_path_factory: pytest.TempPathFactory, finished: Run) -> tuple[Path, Path]:
    """A finished run, run again after two of its input files were removed; and a fresh run on what is left."""
    folder = tmp_path_factory.mktemp("shrunk")
    shutil.copytree(finished.recipe.parent, folder, dirs_exist_ok=True)
    (folder / "raw" / "crawl" / "1.warc.gz").unlink()
    (folder / "raw" / "books" / "0.jsonl.zst").unlink()
    for name in ("data", "fresh"):
        curate_here(finished.recipe, folder / name, f"input={folder}")
    return folder / "data", folder / "fresh"


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    for part in range(2):
        corpus.write_texts(tmp_path / "in" / f"{part}.jsonl", [corpus.text(3 * part + n) for n in range(3)])
    return tmp_path / "in"


def test_rerun_after_removed_inputs_equals_a_fresh_run(shrunk: tuple[Path, Path]) -> None:
    again, fresh = shrunk
    assert files_of(again) == files_of(fresh)
    for stage in ("", "tokens", "01-extract", "05-decontaminate"):
        assert shown(again / stage) == shown(fresh / stage)


def test_single_step_drops_results_of_removed_inputs(
    shrunk: tuple[Path, Path], two_files: Path, tmp_path: Path
) -> None:
    for names in (["again"], ["again", "fresh"]):
        for name in names:
            step("extract", two_files, tmp_path / name / "pages", "--shard-characters", 500)
            step("dedup", tmp_path / name / "pages", tmp_path / name / "unique")
        (two_files / "1.jsonl").unlink(missing_ok=True)
    for out, name in zip(shrunk, ("again", "fresh"), strict=True):
        weights = ("--weight", "books=0.4", "--weight", "crawl=0.6")
        step("tokenize", out / "05-decontaminate", tmp_path / name / "tokens", "--vocabulary", 300, *weights)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "fresh")


def test_user_files_in_a_stage_folder_stay_unread(two_files: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "state").mkdir(parents=True)
    own = [tmp_path / "out" / "own.parquet", tmp_path / "out" / "state" / "own.parquet"]
    for path in own:
        pq.write_table(pa.table({"text": ["mine"]}), path)
        path.with_name("own.parquet.json").write_text('{"sha256": "of mine"}')
    step("extract", two_files, tmp_path / "out")
    (two_files / "1.jsonl").unlink()
    step("extract", two_files, tmp_path / "out")
    assert all(path.exists() for path in own)
    assert own[0] not in find_inputs([str(tmp_path / "out")]).shards


def test_folder_of_stages_is_refused_with_choices(shrunk: tuple[Path, Path], two_files: Path, tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"holds the output of several stages; give one of 01-extract, 02-quality, "):
        find_inputs([str(shrunk[0])])
    step("tokenize", two_files, tmp_path / "tokens", "--vocabulary", 300)
    with pytest.raises(
        Failure, match=r"tokens: the stage tokenize wrote no shards here; give the folder of another stage"
    ):
        find_inputs([str(tmp_path / "tokens")])


@pytest.mark.parametrize(("name", "stage"), [("03-clean", "clean"), ("tokens", "tokenize"), ("", "deduplicate")])
def test_a_step_changes_nothing_in_the_folder_of_another(
    shrunk: tuple[Path, Path], two_files: Path, tmp_path: Path, name: str, stage: str
) -> None:
    out = tmp_path / "out"
    if name:
        shutil.copytree(shrunk[0] / name, out)
    else:
        step("dedup", two_files, out)
    before = files_of(out)
    for command, source in (("extract", two_files), ("exact", shrunk[0] / "01-extract")):
        words = ["--kinds", "documents"] if command == "exact" else []
        with pytest.raises(
            Failure, match=f"out: holds the output of the stage {stage}, which would be replaced; give another"
        ):
            step(command, source, out, *words)
    assert files_of(out) == before


def test_run_and_single_step_refuse_each_others_folders(finished: Run, two_files: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished.out, tmp_path / "out")
    before = files_of(out)
    for folder in (out, out / "01-extract", out / "tokens", out / "03-filter"):
        with pytest.raises(UsageFailure, match=f"--out {folder} would replace results of the run {out}"):
            step("extract", two_files, folder)
    assert files_of(out) == before
    step("extract", two_files, tmp_path / "alone")
    before = files_of(tmp_path / "alone")
    with pytest.raises(Failure, match="alone: holds the output of the stage extract alone; give another --out"):
        curate_here(finished.recipe, tmp_path / "alone")
    assert files_of(tmp_path / "alone") == before


def test_unfinished_or_incomplete_stage_is_refused(shrunk: tuple[Path, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(shrunk[0] / "03-clean", tmp_path / "clean")
    (folder / "books-00000.parquet").unlink()
    with pytest.raises(Failure, match=r"books-00000.parquet: lost, or removed by --keep last; .* run the stage again"):
        find_inputs([str(folder)])
    for listed in ('{"stage": "clean", "shards": ["../01-extract/books-00000.parquet"]}', None):
        if listed is None:
            (folder / "stage.json").unlink()
        else:
            (folder / "stage.json").write_text(listed)
        with pytest.raises(Failure, match=r"clean: its stage has not finished; run it again"):
            find_inputs([str(folder)])


def test_a_step_leaves_nothing_once_no_source_goes_through_it(finished: Run, tmp_path: Path) -> None:
    out = shutil.copytree(finished.out, tmp_path / "data")
    curate_here(finished.recipe, out, "sources.crawl.filtered=false")
    assert not list((out / "02-quality").rglob("*.parquet"))
    assert not find_inputs([str(out / "03-clean")]).files
