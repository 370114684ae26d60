"""Checkpoints are copied to an object store while training goes on, and a run resumes and starts from there."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mtnlg_data.console import IoFailure
from mtnlg_data.transfer import urls
from mtnlg_data.transfer.urls import Url
from mtnlg_model.checkpoint.manifest import CheckpointError, list_checkpoints
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.checkpoint.writer import retain
from mtnlg_model.console import UsageFailure
from mtnlg_parallel.initial import initial_weights
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.training import copies
from mtnlg_parallel.training.copies import Copies, download, fetch_newest, upload
from training.reference_loop import Json, RunRanks, recipe_of

BASE: Json = {"samples": 32, "ramp": None, "validation_every": 0, "checkpoint_every": 1, "keep": 2}


@pytest.fixture(scope="module")
def run(run_ranks: RunRanks, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps whose checkpoints are copied; two are kept here."""
    folder = tmp_path_factory.mktemp("run")
    recipe = recipe_of((1, 1, 2), **BASE, copy_to=f"file://{folder}/store")
    run_ranks("train", [recipe], data=data, outs=[folder / "out"])
    return folder


def test_a_run_resumes_from_its_copies_where_its_folder_is_lost(
    run: Path, run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    """Every checkpoint is there whole; the resumed run is the one that was never lost."""
    store, out = run / "store", tmp_path / "out"
    assert {path.name for _, path in list_checkpoints(run / "out" / "checkpoints")} == {"step-3", "step-4"}
    assert [step for step, _ in list_checkpoints(store)] == [1, 2, 3, 4]
    for _, path in list_checkpoints(store):
        Checkpoint.open(path).verify()
    shutil.rmtree(store / "step-4")
    fetch_newest(f"file://{store}", out / "checkpoints")
    run_ranks("train", [recipe_of((1, 1, 2), **BASE)], data=data, outs=[out])
    whole, resumed = ([step["loss"] for step in read_steps(folder)] for folder in (run / "out", out))
    assert resumed == whole[3:]
    fetch_newest(f"file://{store}", out / "checkpoints")
    assert [step for step, _ in list_checkpoints(out / "checkpoints")] == [3, 4]
    with pytest.raises(UsageFailure, match="of another run"):
        fetch_newest(f"file://{store}", tmp_path / "new", resume=False)


def test_a_run_starts_from_weights_at_a_url(run: Path, tmp_path: Path) -> None:
    override = initial_weights(f"file://{run}/store/step-2", tmp_path)
    assert override == f'train.initial="{tmp_path}/initial/step-2"'
    Checkpoint.open(tmp_path / "initial" / "step-2").verify()
    assert initial_weights(f"file://{run}/store/step-2", tmp_path) == override


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between tries."""
    monkeypatch.setattr(copies, "PAUSE", 0.0)
    monkeypatch.setattr(urls, "MAX_WAIT_SECONDS", 0.0)


@pytest.mark.usefixtures("quick")
def test_a_store_that_fails_is_tried_again_and_the_checkpoint_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails, then cuts a file off; until the copy is whole the run does not remove the checkpoint."""
    directory = shutil.copytree(run / "out" / "checkpoints", tmp_path / "checkpoints")
    system: Any = fsspec.filesystem("memory")
    put, tries, reached, go_on = type(system).put_file, [0], threading.Event(), threading.Event()

    def failing_put(self: Any, local: str, remote: str, **more: Any) -> None:  # noqa: ANN401  (fsspec's)
        tries[0] += 1
        if tries[0] == 9:
            reached.set()
            go_on.wait(60)
        if tries[0] < 20:
            raise OSError(5, "the store is down")
        put(self, local, remote, **more)
        if tries[0] == 22:
            self.pipe_file(remote, self.cat_file(remote)[:-1])

    monkeypatch.setattr(type(system), "put_file", failing_put)
    copier = Copies(directory, "memory://store/run")
    assert reached.wait(60)
    retain(directory, keep=1)
    assert [step for step, _ in list_checkpoints(directory)] == [3, 4]
    go_on.set()
    copier._queue.put(None)
    copier._thread.join(60)
    assert not copier._missing
    assert capsys.readouterr().err.count("step-3 is not copied yet") >= 1
    retain(directory, keep=1)
    assert [step for step, _ in list_checkpoints(directory)] == [4]
    for name in ("step-3", "step-4"):
        Checkpoint.open(download(Url(f"memory://store/run/{name}"), tmp_path / "back")).verify()
    system.rm("/store", recursive=True)


@pytest.mark.usefixtures("quick")
def test_damage_on_either_side_is_not_taken_over(run: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(run / "store" / "step-1", tmp_path / "step-1")
    weights = next(folder.glob("*.safetensors"))
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="damaged"):
        upload(folder, Url(f"file://{tmp_path}/store/step-1"))
    assert not (tmp_path / "store" / "step-1" / "manifest.json").exists()
    with pytest.raises(IoFailure, match="checksum"):
        download(Url(f"file://{folder}"), tmp_path / "back")
    assert not (tmp_path / "back" / "step-1").exists()
    weights.write_bytes(content)
    upload(folder, Url(f"file://{tmp_path}/store/step-1"))
    manifest = json.loads((tmp_path / "store" / "step-1" / "manifest.json").read_text())
    assert manifest == json.loads((folder / "manifest.json").read_text())
