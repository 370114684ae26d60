"""``--keep last``: what goes, what stays, and what a rerun, a kill or a changed setting does then."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engines import NoWork
from shards import curate_here

from mtnlg_data import curate, load_recipe
from mtnlg_data.console import Failure
from mtnlg_data.engine.stage_folder import listed_shards

if TYPE_CHECKING:
    from conftest import Run


run = partial(curate_here, keep="last")


def shards(out: Path) -> set[str]:
    """The folders that have shards in them, and states."""
    files = (path.relative_to(out) for path in out.rglob("*") if path.is_file() and path.suffix != ".json")
    records = {"dropped", "cuts"}
    return {path.parent.as_posix() for path in files if path.parent.name not in records and path.suffix != ".npy"}


def tokens(out: Path) -> dict[str, bytes]:
    files = (path for path in (out / "tokens").iterdir() if path.is_file() and path.name != "stage.json")
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture
def lean(finished: Run, tmp_path: Path) -> Path:
    """A finished curation, run once more with ``--keep last``."""
    out = shutil.copytree(finished.out, tmp_path / "lean")
    assert run(finished.recipe, out) == finished.summary
    return out


def test_last_shards_tokens_and_drop_records_are_kept(finished: Run, lean: Path) -> None:
    assert shards(lean) == {".", "05-decontaminate", "tokens"}
    dropped = {path.relative_to(finished.out) for path in finished.out.rglob("dropped/*.parquet")}
    assert {path.parts[0] for path in dropped} >= {"02-quality", "04-deduplicate"}
    assert {path.relative_to(lean) for path in lean.rglob("dropped/*.parquet")} == dropped
    assert len(listed_shards(lean / "05-decontaminate") or ()) == 2
    with pytest.raises(Failure, match=r"removed by --keep last"):
        listed_shards(lean / "03-clean")
    run(finished.recipe, lean.with_name("fresh"))
    names = [{path.relative_to(out) for path in out.rglob("*")} for out in (lean, lean.with_name("fresh"))]
    assert names[0] - {Path("report.html")} == names[1]
    assert tokens(lean) == tokens(lean.with_name("fresh")) == tokens(finished.out)


@pytest.mark.parametrize("keep", ["last", "all"])
def test_finished_run_needs_no_earlier_shards(finished: Run, lean: Path, keep: Any) -> None:  # noqa: ANN401
    assert curate(load_recipe(finished.recipe), lean, NoWork(), keep=keep) == finished.summary


@pytest.mark.parametrize(
    ("step", "changed", "lost"),
    [("clean", ["clean.shortest=900"], None), ("decontaminate", [], "05-decontaminate/crawl-00000.parquet")],
)
def test_run_needing_removed_shards_names_the_command(
    finished: Run, lean: Path, step: str, changed: list[str], lost: str | None
) -> None:
    run(finished.recipe, lean, "tokenize.validation=0.1")  # which needs none
    run(finished.recipe, lean)
    if lost:
        (lean / lost).unlink()
    with pytest.raises(
        Failure, match=rf"^{step}: {lean}/\S+ and 1 more .*--keep last; rm .* and run the same"
    ) as ended:
        run(finished.recipe, lean, *changed)
    command = str(ended.value).partition("; ")[2].partition(" and run")[0]
    subprocess.run(command, shell=True, check=True)  # noqa: S602  (its pattern is for a shell)
    run(finished.recipe, lean, *changed)
    run(finished.recipe, lean.with_name("other"), *changed)
    assert tokens(lean) == tokens(lean.with_name("other"))
    assert shards(lean) == shards(lean.with_name("other"))


def test_kill_during_removal_reruns_nothing(finished: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, unlink, left = shutil.copytree(finished.out, tmp_path / "data"), Path.unlink, [0]

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
