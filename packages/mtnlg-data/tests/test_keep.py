"""``--keep last``: what goes, what stays, and that neither a rerun, a kill nor a changed setting shows a difference."""

from __future__ import annotations

import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mtnlg_data.engine.stage_runner import _release

from mtnlg_data.console import Failure
from mtnlg_data.engine import Local
from mtnlg_data.engine.stage_folder import listed_shards
from mtnlg_data.files import write_json
from mtnlg_data.pipeline import curate
from mtnlg_data.recipe import load_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_data.engine import Summary


def run(recipe: Path, out: Path, *overrides: str, keep: Any = "last") -> Summary:  # noqa: ANN401
    with closing(Local(1)) as engine:
        return curate(load_recipe(recipe, overrides), out, engine, keep=keep)


class NoWork:
    """An engine that must not be asked for anything."""

    def imap(self, function: object, units: object) -> Iterator[Any]:
        raise AssertionError(f"{function} was to run over {units}")


def shards(out: Path) -> set[str]:
    """The folders that have shards in them, and states."""
    files = (path.relative_to(out) for path in out.rglob("*") if path.is_file() and path.suffix != ".json")
    records = {"dropped", "cuts"}
    return {path.parent.as_posix() for path in files if path.parent.name not in records and path.suffix != ".npy"}


def tokens(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "tokens").iterdir() if path.is_file()}


@pytest.fixture
def lean(finished: Any, tmp_path: Path) -> Path:  # noqa: ANN401  (the curation that conftest.py runs)
    """That curation, run once more with ``--keep last``."""
    out = shutil.copytree(finished.out, tmp_path / "lean")
    assert run(finished.recipe, out) == finished.summary
    return out


def test_the_last_shards_and_the_tokens_stay_and_every_record_of_what_was_dropped(finished: Any, lean: Path) -> None:  # noqa: ANN401
    assert shards(lean) == {".", "04-deduplicate", "05-decontaminate", "tokens"} - {"04-deduplicate"}
    assert tokens(lean) == tokens(finished.out)
    dropped = {path.relative_to(finished.out) for path in finished.out.rglob("dropped/*.parquet")}
    assert {path.parts[0] for path in dropped} >= {"02-quality", "04-deduplicate"}
    assert {path.relative_to(lean) for path in lean.rglob("dropped/*.parquet")} == dropped
    assert len(listed_shards(lean / "05-decontaminate") or ()) == 2
    with pytest.raises(Failure, match=r"removed by --keep last"):
        listed_shards(lean / "03-clean")


def test_a_fresh_run_that_keeps_the_last_ends_as_one_that_removes_afterwards(finished: Any, lean: Path) -> None:  # noqa: ANN401
    run(finished.recipe, lean.with_name("fresh"))
    names = [{path.relative_to(out) for path in out.rglob("*")} for out in (lean, lean.with_name("fresh"))]
    assert names[0] - {Path("report.html")} == names[1]
    assert tokens(lean) == tokens(lean.with_name("fresh"))


@pytest.mark.parametrize("keep", ["last", "all"])
def test_a_finished_run_does_no_work_without_its_earlier_shards(finished: Any, lean: Path, keep: Any) -> None:  # noqa: ANN401
    assert curate(load_recipe(finished.recipe), lean, NoWork(), keep=keep) == finished.summary


def test_a_setting_of_the_last_stage_needs_no_removed_shard_and_one_of_clean_makes_them_again(
    finished: Any,  # noqa: ANN401
    lean: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(finished.recipe, lean, "tokenize.validation=0.1")
    assert "removed" not in capsys.readouterr().err
    run(finished.recipe, lean, "clean.shortest=900")
    assert "clean: 2 of its 2 shards were removed (--keep last); they are made again" in capsys.readouterr().err
    run(finished.recipe, lean.with_name("other"), "clean.shortest=900")
    assert tokens(lean) == tokens(lean.with_name("other"))
    assert shards(lean) == shards(lean.with_name("other"))


def test_no_stage_runs_twice_where_two_settings_changed_and_the_first_makes_no_difference(
    finished: Any,  # noqa: ANN401
    lean: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capsys.readouterr()
    run(finished.recipe, lean, "clean.shortest=41", "decontaminate.n=9")
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("deduplicate: ") and line.endswith("(done before)")]
    ran = [line.partition(":")[0] for line in lines if re.search(r"\([\d.]+ s\)$", line)]
    assert sorted(ran) == sorted(set(ran))
    assert {"extract", "deduplicate", "tokenize"} <= {*ran}
    assert shards(lean) == {".", "05-decontaminate", "tokens"}


def test_a_kill_in_the_middle_of_the_removal_makes_nothing_again(
    finished: Any,  # noqa: ANN401
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, unlink, left = shutil.copytree(finished.out, tmp_path / "data"), Path.unlink, [9]

    def dying(path: Path, *, missing_ok: bool = False) -> None:
        left[0] -= path.suffix == ".parquet"
        if left[0] < 0:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    for _ in range(3):
        left[0] = 3
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", dying)
            with pytest.raises(KeyboardInterrupt):
                curate(load_recipe(finished.recipe), out, NoWork(), keep="last")
    assert curate(load_recipe(finished.recipe), out, NoWork(), keep="last") == finished.summary
    assert shards(out) == {".", "05-decontaminate", "tokens"}


def test_a_damaged_last_shard_is_made_again_from_the_sources(finished: Any, lean: Path) -> None:  # noqa: ANN401
    victim = lean / "05-decontaminate" / "crawl-00000.parquet"
    whole = victim.read_bytes()
    victim.unlink()
    run(finished.recipe, lean)
    assert victim.read_bytes() == whole


@pytest.mark.parametrize("name", ["../mine.txt", "state/../../mine.txt", "{folder}/mine.txt"])
def test_an_account_that_somebody_wrote_removes_nothing_outside_of_its_stage(tmp_path: Path, name: str) -> None:
    mine, results = tmp_path / "mine.txt", tmp_path / "01-extract"
    mine.write_text("mine")
    (results / "state").mkdir(parents=True)
    write_json(results / "account.json", {"files": {}, "removed": [name.format(folder=tmp_path)]})
    with pytest.raises(Failure, match="is not below"):
        _release(results / "account.json", results, set())
    assert mine.read_text() == "mine"
