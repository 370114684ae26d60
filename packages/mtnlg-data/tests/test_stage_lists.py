"""A stage's folder holds the results of its present inputs, and every command reads it by the stage's own list."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtnlg_data.commands import standalone
from mtnlg_data.commands.stage_inputs import find_inputs
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.engine import Local
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.pipeline import curate
from mtnlg_data.recipe import load_recipe
from mtnlg_data.report.inspection import inspect_path
from mtnlg_data.steps.clean import CleanSettings
from mtnlg_data.steps.deduplicate import DeduplicateSettings
from mtnlg_data.steps.tokenize import TokenizeSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from conftest import Run

TIMED = {"account.json", "summary.json", "report.html", ".lock"}


@pytest.fixture
def engine() -> Iterator[Local]:
    with closing(Local(1)) as local:
        yield local


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file that a run left, but for those with times in them."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in TIMED)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def shown(folder: Path) -> Any:  # noqa: ANN401  (any JSON value)
    """What ``inspect`` shows of a folder, without its name and the durations."""
    text = json.dumps(inspect_path(folder, 2, 100)).replace(str(folder), "")
    return json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "seconds"})


@pytest.fixture(scope="module")
def shrunk(tmp_path_factory: pytest.TempPathFactory, finished: Any) -> tuple[Path, Path]:  # noqa: ANN401
    """A finished run, run again after two of its input files were removed; and a fresh run on what is left."""
    folder = tmp_path_factory.mktemp("shrunk")
    shutil.copytree(finished.recipe.parent, folder, dirs_exist_ok=True)
    (folder / "raw" / "crawl" / "1.warc.gz").unlink()
    (folder / "raw" / "books" / "0.jsonl.zst").unlink()
    with closing(Local(1)) as engine:
        for name in ("data", "fresh"):
            curate(load_recipe(finished.recipe, [f"input={folder}"]), folder / name, engine)
    return folder / "data", folder / "fresh"


def test_a_run_after_inputs_were_removed_leaves_the_files_of_a_fresh_run(shrunk: tuple[Path, Path]) -> None:
    again, fresh = shrunk
    assert files_of(again) == files_of(fresh)


@pytest.mark.parametrize("stage", ["", "tokens", "01-extract", "05-decontaminate"])
def test_inspect_shows_nothing_of_removed_inputs(shrunk: tuple[Path, Path], stage: str) -> None:
    again, fresh = shrunk
    assert shown(again / stage) == shown(fresh / stage)


def test_a_single_stage_reads_nothing_of_removed_inputs(
    shrunk: tuple[Path, Path], tmp_path: Path, engine: Local
) -> None:
    weights = {"books": 0.4, "crawl": 0.6}
    for out, name in zip(shrunk, ("again", "fresh"), strict=True):
        inputs = find_inputs([str(out / "05-decontaminate")])
        standalone.tokenize(inputs, tmp_path / name, TokenizeSettings(vocabulary=300), engine, weights=weights)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "fresh")


def extract_pages(folder: Path, out: Path, engine: Local) -> None:
    standalone.extract(find_inputs([str(folder)], raw=True), out, ExtractSettings(shard_characters=500), engine)


def write_two_files(corpus: ModuleType, folder: Path) -> None:
    for part in range(2):
        corpus.write_texts(folder / f"{part}.jsonl", [corpus.text(3 * part + n) for n in range(3)])


def test_a_stage_by_itself_leaves_a_list_and_nothing_of_removed_inputs(
    tmp_path: Path, corpus: ModuleType, engine: Local
) -> None:
    write_two_files(corpus, tmp_path / "in")
    for again in (True, False):
        for name in ["again"] if again else ["again", "fresh"]:
            pages, unique = tmp_path / name / "pages", tmp_path / name / "unique"
            extract_pages(tmp_path / "in", pages, engine)
            standalone.dedup(find_inputs([str(pages)]), unique, DeduplicateSettings(), engine)
        (tmp_path / "in" / "1.jsonl").unlink(missing_ok=True)
    assert files_of(tmp_path / "again") == files_of(tmp_path / "fresh")


def test_files_of_the_user_in_the_folder_of_a_stage_stay_and_are_not_read(
    tmp_path: Path, corpus: ModuleType, engine: Local
) -> None:
    write_two_files(corpus, tmp_path / "in")
    (tmp_path / "out" / "state").mkdir(parents=True)
    own = [tmp_path / "out" / "own.parquet", tmp_path / "out" / "state" / "own.parquet"]
    for path in own:
        pq.write_table(pa.table({"text": ["mine"]}), path)
        path.with_name("own.parquet.json").write_text('{"sha256": "of mine"}')
    extract_pages(tmp_path / "in", tmp_path / "out", engine)
    (tmp_path / "in" / "1.jsonl").unlink()
    extract_pages(tmp_path / "in", tmp_path / "out", engine)
    assert all(path.exists() for path in own)
    assert own[0] not in find_inputs([str(tmp_path / "out")]).shards


def test_a_folder_above_stages_is_refused_with_the_stages_to_choose_from(
    shrunk: tuple[Path, Path], tmp_path: Path, corpus: ModuleType, engine: Local
) -> None:
    with pytest.raises(Failure, match=r"holds the output of several stages; give one of 01-extract, 02-quality, "):
        find_inputs([str(shrunk[0])])
    write_two_files(corpus, tmp_path / "in")
    standalone.tokenize(
        find_inputs([str(tmp_path / "in")]),
        tmp_path / "tokens",
        TokenizeSettings(vocabulary=300),
        engine,
        weights={"documents": 1.0},
    )
    with pytest.raises(Failure, match=r"tokens: the stage tokenize left no shards here; give the folder of another"):
        find_inputs([str(tmp_path / "tokens")])


def test_a_stage_does_not_begin_in_the_folder_of_another_whose_results_it_would_remove(
    shrunk: tuple[Path, Path], tmp_path: Path, corpus: ModuleType, engine: Local
) -> None:
    write_two_files(corpus, tmp_path / "in")
    for name, stage in (("03-clean", "clean"), ("tokens", "tokenize")):
        out = shutil.copytree(shrunk[0] / name, tmp_path / name)
        before = files_of(out)
        with pytest.raises(Failure, match=f"{name}: holds the output of the stage {stage}, which would go; give"):
            extract_pages(tmp_path / "in", out, engine)
        assert files_of(out) == before


def test_a_command_changes_nothing_in_the_folder_of_another_stage(
    shrunk: tuple[Path, Path], tmp_path: Path, corpus: ModuleType, engine: Local
) -> None:
    corpus.write_texts(tmp_path / "a.jsonl", [corpus.text(0)])
    standalone.dedup(find_inputs([str(tmp_path / "a.jsonl")]), tmp_path / "out", DeduplicateSettings(), engine)
    before = files_of(tmp_path / "out")
    assert "documents/documents-00000.parquet" in before
    with pytest.raises(Failure, match="holds the output of the stage deduplicate, which would go; give another"):
        standalone.clean(
            find_inputs([str(shrunk[0] / "03-clean")]), tmp_path / "out", CleanSettings(), engine, rules=["unicode"]
        )
    assert files_of(tmp_path / "out") == before


def test_a_run_and_a_stage_by_itself_do_not_work_in_each_others_folders(
    finished: Run, tmp_path: Path, corpus: ModuleType, engine: Local
) -> None:
    out = shutil.copytree(finished.out, tmp_path / "out")
    write_two_files(corpus, tmp_path / "in")
    inputs = find_inputs([str(tmp_path / "in")], raw=True)
    before = files_of(out)
    for folder in (out, out / "01-extract", out / "tokens", out / "03-filter"):
        with pytest.raises(UsageFailure, match=f"--out {folder} is a folder of the run {out}, whose results would go"):
            standalone.extract(inputs, folder, ExtractSettings(), engine)
    assert files_of(out) == before
    standalone.extract(inputs, tmp_path / "alone", ExtractSettings(), engine)
    before = files_of(tmp_path / "alone")
    with pytest.raises(Failure, match="alone: holds the output of the stage extract alone; give another --out"):
        curate(load_recipe(finished.recipe), tmp_path / "alone", engine)
    assert files_of(tmp_path / "alone") == before


def test_extract_too_takes_the_folder_of_a_stage_by_its_list(shrunk: tuple[Path, Path]) -> None:
    files = find_inputs([str(shrunk[0] / "04-deduplicate")], raw=True).files
    assert {file.name for file in files} == {"books-00000.parquet", "crawl-00000.parquet"}


def test_a_folder_whose_stage_has_not_finished_or_has_lost_a_shard_is_refused(
    shrunk: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(shrunk[0] / "03-clean", tmp_path / "clean")
    (folder / "books-00000.parquet").unlink()
    with pytest.raises(Failure, match=r"books-00000.parquet: lost, or removed by --keep last; .* run the stage again"):
        find_inputs([str(folder)])
    (folder / "stage.json").write_text('{"stage": "clean", "shards": ["../01-extract/books-00000.parquet"]}')
    with pytest.raises(Failure, match=r"clean: its stage has not finished; run it again"):
        find_inputs([str(folder)])
    (folder / "stage.json").unlink()
    with pytest.raises(Failure, match=r"clean: its stage has not finished; run it again"):
        find_inputs([str(folder)])


def test_the_quality_stage_leaves_nothing_once_a_recipe_has_none(finished: Any, tmp_path: Path, engine: Local) -> None:  # noqa: ANN401
    out = shutil.copytree(finished.out, tmp_path / "data")
    curate(load_recipe(finished.recipe, ["sources.crawl.filtered=false"]), out, engine)
    assert not list((out / "02-quality").rglob("*.parquet"))
    assert not find_inputs([str(out / "03-clean")]).files
