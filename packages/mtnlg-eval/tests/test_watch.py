"""``watch`` scores each checkpoint of a run as it appears, while the run goes on and removes old ones."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCORE = """
import json, sys
from pathlib import Path
from mtnlg_model.checkpoint.manifest import list_checkpoints
from mtnlg_model.checkpoint.writer import retain

run, words = Path(sys.argv[1]), sys.argv[6:]  # behind: python -m MODULE run
(run / "summary.json").touch()  # the run completes
path = Path(words[0])
with (run / "scored").open("a") as file:
    print(json.dumps([path.name, *words[1:]]), file=file)
if path.name == "step-1":  # meanwhile the run writes two checkpoints, and keeps one
    for step in (2, 3):
        (path.parent / f"step-{step}").mkdir()
        (path.parent / f"step-{step}" / "manifest.json").touch()
    retain(path.parent, keep=1)
sys.exit(not path.joinpath("manifest.json").exists() or path.name == "step-3")
"""


def test_watch_scores_every_checkpoint_while_the_run_removes_old_ones(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here the run completes while the first is scored, and the last cannot be scored."""
    training, out, pages = tmp_path / "run", tmp_path / "eval", list[Path]()
    (training / "checkpoints" / "step-1").mkdir(parents=True)
    (training / "checkpoints" / "step-1" / "manifest.json").touch()
    (tmp_path / "score.py").write_text(SCORE)

    def write_report(folder: Path, **_: object) -> Path:
        pages.append(folder)
        return folder

    monkeypatch.setattr("mtnlg_eval.watch.write_report", write_report)
    launch = f"{sys.executable} {tmp_path / 'score.py'} {training}"
    assert run("watch", training, "--out", out, "--launch", launch, "--tasks", "boolq", "--limit", "3") == 1
    assert "step-3 (status 1)" in capsys.readouterr().err
    words = ["--out", str(out), "--tasks", "boolq", "--limit", "3"]
    scored = [json.loads(line) for line in (training / "scored").read_text().splitlines()]
    assert scored == [["step-1", *words], ["step-3", *words]]
    assert pages == [out]
    assert {path.name for path in (training / "checkpoints").iterdir()} >= {"step-1", "step-3"}


def test_watch_refuses_a_folder_that_is_no_run(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("watch", tmp_path, "--out", tmp_path / "eval") == 1
    assert f"{tmp_path}: no run, nor checkpoints" in capsys.readouterr().err
