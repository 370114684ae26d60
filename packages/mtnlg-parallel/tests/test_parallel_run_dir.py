"""What the run directory does with the run that it finds, and the summary of a complete one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from small_runs import event, recipe_of, write_events, write_steps

from mtnlg_model.checkpoint.manifest import Layout, Progress
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.identity import DataFingerprint
from mtnlg_parallel.launch import run
from mtnlg_parallel.recipe import RunOptions
from mtnlg_parallel.record import run_dir
from mtnlg_parallel.record.history import goodput
from mtnlg_parallel.record.run_dir import CHECKPOINTS, LOGS, prepare_run_dir, summarize

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = DataFingerprint(lambda _: "stream", Path("tokenizer.json"))


def test_other_run_is_refused_with_the_from_command(tmp_path: Path) -> None:
    state = prepare_run_dir(tmp_path, recipe_of(), DATA, resume=True)
    assert (state.step, state.steps, state.complete) == (0, 4, False)
    with pytest.raises(UsageFailure) as caught:
        prepare_run_dir(tmp_path, recipe_of(lr=1e-2), DATA, resume=True)
    assert str(caught.value) == (
        f"{tmp_path}: another run: train.lr was 0.001 and is 0.01 now; --from CHECKPOINT with another --out starts a "
        "new run from its weights, --no-resume starts over"
    )
    with pytest.raises(UsageFailure, match=r"train\.initial \(--from\) was '' and is '/other/step-9' now"):
        prepare_run_dir(tmp_path, recipe_of(initial="/other/step-9"), DATA, resume=True)


def test_more_samples_with_fixed_decay_are_refused(tmp_path: Path) -> None:
    prepare_run_dir(tmp_path, recipe_of(), DATA, resume=True)
    with pytest.raises(UsageFailure, match=r"train\.decay was 32 and is 64 now \(--set train\.decay=32 resumes\)"):
        prepare_run_dir(tmp_path, recipe_of(samples=64), DATA, resume=True)
    assert prepare_run_dir(tmp_path, recipe_of(samples=64, decay=32), DATA, resume=True).steps == 8


def test_a_damaged_checkpoint_is_refused_with_the_one_before_it(tmp_path: Path) -> None:
    for step in (4, 8):
        folder = tmp_path / CHECKPOINTS / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    with pytest.raises(Failure, match=r"manifest.json: .* fails too, remove step-8 to resume from step-4$"):
        prepare_run_dir(tmp_path, recipe_of(), DATA, resume=True)
    shutil.rmtree(tmp_path / CHECKPOINTS / "step-8")
    with pytest.raises(Failure, match=r"step-4/manifest.json: .*, remove step-4 to start over$"):
        prepare_run_dir(tmp_path, recipe_of(), DATA, resume=True)


def test_starting_over_leaves_nothing_of_the_run_before(tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "history.jsonl", "summary.json", "wandb.id"):
        (tmp_path / name).touch()
    for name in ("checkpoints/step-4", "tensorboard", "logs", "profile", "wandb"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    prepare_run_dir(tmp_path, recipe_of(lr=1e-2), DATA, resume=False)
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.toml", "notes.txt"}


def test_later_step_without_manifest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, slept = tmp_path / CHECKPOINTS / "step-9", list[float]()
    folder.mkdir(parents=True)
    monkeypatch.setattr(run_dir, "time", SimpleNamespace(sleep=slept.append))
    with pytest.raises(Failure, match=r"step-9: no manifest\.json, .* step 9 could not be written; remove it"):
        prepare_run_dir(tmp_path, recipe_of(), DATA, resume=True)
    assert sum(slept) == run_dir.LISTING_SECONDS, "the listing may be old"
    monkeypatch.setattr(run_dir, "time", SimpleNamespace(sleep=lambda _: folder.rmdir()))
    assert prepare_run_dir(tmp_path, recipe_of(), DATA, resume=True).step == 0


def test_unremovable_leftovers_are_named_and_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: str, **_: object) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", path)

    (tmp_path / "checkpoints" / "step-9.tmp").mkdir(parents=True)
    monkeypatch.setattr(os, "rmdir", refuse)
    assert prepare_run_dir(tmp_path, recipe_of(), DATA, resume=True).step == 0
    assert "step-9.tmp: Directory not empty; the old " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("restarts", "corpus", "passes"),
    [
        ("TORCHELASTIC_RESTART_COUNT", 20, "1.6 passes"),
        ("SLURM_RESTART_COUNT", 0.02, "1,600 passes, each of the same text"),
    ],
)
def test_a_restart_of_a_run_that_started_over_goes_on_with_it(  # noqa: PLR0917  (three are the case)
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    be_rank: Callable[..., None],
    restarts: str,
    corpus: float,
    passes: str,
) -> None:
    source = ["tokens/tiny.bin: 9 train tokens; the source is left out"]
    data = SimpleNamespace(left_out=source, corpus=corpus, fingerprint=DATA, verify=lambda: None)
    monkeypatch.setattr(run, "open_data", lambda *_: data)
    old, new = (tmp_path / LOGS / name for name in ("old", "new"))
    for folder, count in ((old, 0), (new, 1)):
        folder.mkdir(parents=True)
        be_rank(**{restarts: count})
        run.prepare(run.TrainingRun(recipe_of(), "data", tmp_path, RunOptions(device="cpu"), resume=False))
        warning, reads, *_ = capsys.readouterr().err.splitlines()
    assert warning.startswith("WARNING: tokens/tiny.bin: 9 train tokens; the source is left out")
    corpus_line = f"data: samples 0 to 32 of the token stream, of the {corpus} in one pass over the corpus, so "
    assert reads == corpus_line + passes
    assert not old.exists(), "the first attempt starts over"
    assert new.exists()


def test_the_summary_has_goodput_and_what_was_not_training(tmp_path: Path) -> None:
    taken: list[dict[str, object]] = [
        {"step": n, "seconds": 3.0, "validation_seconds": 0.5, "checkpoint_seconds": 0.25} for n in range(1, 5)
    ]
    taken[1]["skipped"] = "loss leaps"
    write_steps(tmp_path, taken)
    write_events(tmp_path, [event("start", 0.0), event("resumed", 6.0, step=0, corpus=64)])
    progress = Progress(step=4, samples=32, tokens=4096, loss=2.0, stream="stream", layout=Layout())
    summary = summarize(tmp_path, recipe_of(), progress)
    assert (summary["seconds"], summary["checkpoint_seconds"], summary["validation_seconds"]) == (12.0, 1.0, 2.0)
    assert (summary["start_sample"], summary["corpus_passes"]) == (0, 0.5)
    assert (summary["skipped"], summary["tokens_per_second"]) == (1, 4096 / 12)
    assert summary["goodput"] == goodput(tmp_path).facts()
    assert summary["goodput"]["share"] == 9 / 18
    json.dumps(summary, allow_nan=False)
