"""The command: what it writes and prints, and that a killed run resumes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from mtnlg_eval import cli
from mtnlg_eval.report.run_files import Evaluation
from mtnlg_eval.scoring.harness import FEW_SHOTS
from mtnlg_eval.tasks.rows import ROWS
from mtnlg_model.console import progress
from mtnlg_model.convert.huggingface import export_gpt2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from mtnlg_eval.scoring.packing import Batch
    from mtnlg_model.checkpoint.reader import Checkpoint

    Run = Callable[..., int]
    Write = Callable[..., Path]

OURS = Path(__file__).parent / "rows"
KILLED = """
import os, signal, sys
from mtnlg_eval import cli
from mtnlg_eval.scoring.answer_store import AnswerStore
save, batches = AnswerStore.save, 0
def save_and_die(self, answers):
    global batches
    save(self, answers)
    batches += 1
    if batches == 7:
        os.kill(os.getpid(), signal.SIGKILL)
AnswerStore.save = save_and_die
cli.main()
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command in this process; returns its exit status."""

    def command(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["mtnlg-eval", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0)

    return command


def outside(
    words: Sequence[object], folder: Path, script: str = "from mtnlg_eval import cli; cli.main()", **variables: str
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, outside any repository."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-c", script, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def files(folder: Path) -> dict[str, bytes]:
    """Files of a finished evaluation, without the store and the seconds."""
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.json*")}
    summary = json.loads(contents.pop("summary.json"))
    del summary["seconds"]
    return contents | {"summary": json.dumps(summary).encode()}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.json*")}


def test_an_evaluation_leaves_results_samples_and_a_summary(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval"
    assert run("run", checkpoint.directory, "--data", OURS, "--out", out) == 0
    table = capsys.readouterr().out
    assert all(title in table for title in ("LAMBADA", "RACE-h", "0-shot", "few-shot"))
    entries = {f"{task}_{shots}" for task in ROWS for shots in ("0", "1", "few")}
    results = json.loads((out / "results.json").read_bytes())
    for part in ("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples"):
        assert set(results[part]) == entries
    assert {name: results["n-shot"][f"{name}_few"] for name in ROWS} == FEW_SHOTS
    assert results["results"]["race_h_0"]["acc_stderr,none"] > 0
    assert results["n-samples"]["race_h_0"] == {"original": 4, "effective": 4}
    assert results["config"]["model_args"]["digest"] == checkpoint.digest
    assert {path.stem for path in (out / "samples").iterdir()} == entries
    (sample, *_) = map(json.loads, (out / "samples" / "hans_1.jsonl").read_text().splitlines())
    assert sample["doc"]["subcase"] == "ln_subject/object_swap"
    assert sample["shots"] == 1
    assert sample["acc"] in {0.0, 1.0}
    assert len(sample["scores"]) == len(sample["resps"]) == 2
    summary = json.loads((out / "summary.json").read_bytes())
    assert summary["tokens"] == 768
    score = summary["tasks"]["hans"]["1"]
    assert score["documents"] == score["shots_used"] * 2 == 2
    assert score["value"] == results["results"]["hans_1"]["acc,none"]
    assert set(Evaluation.model_validate(summary).tasks) == set(ROWS)


def test_json_a_limit_and_other_numbers_of_shots(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--data", OURS, "--tasks", "piqa,hans", "--shots", "0,2", "--limit", 1, "--json")
    assert run("run", checkpoint.directory, "--out", tmp_path / "eval", *words) == 0
    summary = json.loads(capsys.readouterr().out)
    assert {task: list(scores) for task, scores in summary["tasks"].items()} == {"piqa": ["0", "2"], "hans": ["0", "2"]}
    assert summary["tasks"]["hans"]["2"]["documents"] == 1
    assert summary["tasks"]["hans"]["2"]["stderr"] is None
    assert summary["tasks"]["hans"]["2"]["shots_used"] == 2


def test_the_hans_study_is_drawn_from_the_samples_of_a_run_and_its_modes_are_kept_to_hans(
    run: Run,
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "eval"
    words = ("run", checkpoint.directory, "--data", OURS, "--out", out, "--shots", "0,1,2", "--shot-labels", "negative")
    assert run(*words) == 2
    assert "use them with --tasks hans" in capsys.readouterr().err
    assert run(*words, "--tasks", "hans") == 0
    shown = [json.loads(line) for line in (out / "samples" / "hans_2.jsonl").read_text().splitlines()]
    assert all(" True\n" not in sample["arguments"]["gen_args_0"]["arg_0"] for sample in shown)
    assert run("hans", out) == 0
    assert "lexical_overlap, non-entailment" in capsys.readouterr().out
    assert run("hans", out, "--json") == 0
    study = json.loads(capsys.readouterr().out)
    assert study == json.loads((out / "hans.json").read_bytes())
    assert study["shots_from"] == {"source": "any", "labels": "negative"}
    ET.fromstring((out / "hans.svg").read_text())  # noqa: S314  (we wrote it)
    assert list(study["shots"]) == ["0", "1", "2"]
    summary = json.loads((out / "summary.json").read_bytes())
    assert study["shots"]["1"]["whole"]["accuracy"] == summary["tasks"]["hans"]["1"]["value"]
    assert run("report", tmp_path) == 0
    assert 'id="hans"' in (tmp_path / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr("mtnlg_eval.scoring.harness.write_text", None)  # another run begins and does not end
    assert run("run", checkpoint.directory, "--data", OURS, "--out", out, "--tasks", "hans", "--shots", "0") == 1
    assert run("hans", out) == 1
    assert "results.json: missing: scoring has not finished" in capsys.readouterr().err


def test_a_layout_without_the_parallel_engine_says_what_to_install(
    run: Run,
    checkpoint: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("mtnlg_eval.scoring.open_model.find_spec", lambda _: None)
    assert run("run", checkpoint.directory, "--data", OURS, "--out", tmp_path, "--layout", "tp=2,pp=1,dp=1") == 2
    assert "pip install 'mtnlg-eval[parallel]'" in capsys.readouterr().err


def test_operators_are_asked_once_and_counted(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval"
    words = ("operators", checkpoint.directory, "--out", out, "--problems", 1)
    assert run(*words, "--shots", "few") == 2
    assert run(*words, "--shots", "1", "--json") == 0
    cells = json.loads(capsys.readouterr().out)
    counts = json.loads((out / "operators.json").read_bytes())
    assert (cells, counts["digest"]) == (counts["cells"], checkpoint.digest)
    assert len(cells) == 40
    ET.fromstring((out / "operators.svg").read_text())  # noqa: S314  (we wrote it)
    before = files_of(out)
    assert run(*words, "--shots", "1") == 0
    assert "add, hash" in capsys.readouterr().out
    assert files_of(out) == before
    assert run("report", tmp_path) == 0
    assert 'id="operators"' in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_newest_checkpoint_of_a_folder_is_scored(
    run: Run, write_checkpoint: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (3, 20):
        write_checkpoint(tmp_path / "checkpoints", step=step)
    words = ("--data", OURS, "--tasks", "wic", "--shots", "0", "--out", tmp_path / "eval")
    assert run("run", tmp_path / "checkpoints", *words) == 0
    assert json.loads((tmp_path / "eval" / "summary.json").read_bytes())["checkpoint"].endswith("step-20")
    assert run("run", tmp_path / "eval", *words) == 1
    assert "no checkpoint in it" in capsys.readouterr().err


def test_each_checkpoint_of_a_folder_is_scored_into_a_folder_of_its_own(
    run: Run, write_checkpoint: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (20, 3):
        write_checkpoint(tmp_path / "checkpoints", seed=step, step=step)
    words = ("--data", OURS, "--tasks", "wic", "--shots", "0", "--each")
    assert run("run", tmp_path / "checkpoints", *words, "--out", tmp_path / "eval") == 0
    stderr = capsys.readouterr().err
    assert stderr.index("step-3:") < stderr.index("step-20:")
    digests = {json.loads((tmp_path / f"eval/step-{n}/summary.json").read_bytes())["digest"] for n in (3, 20)}
    assert len(digests) == 2
    assert run("run", tmp_path / "eval", *words, "--out", tmp_path / "eval") == 1


def test_a_hugging_face_folder_scores_as_the_checkpoint_it_came_from_and_is_imported_once(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress("export", 1) as advance:
        export_gpt2(checkpoint, tmp_path / "gpt2", advance)
    words = ("--data", OURS, "--tasks", "wic,lambada", "--shots", "0")
    assert run("run", checkpoint.directory, *words, "--out", tmp_path / "ours") == 0
    assert run("run", tmp_path / "gpt2", *words, "--out", tmp_path / "theirs") == 0
    samples = [files(tmp_path / name) for name in ("ours", "theirs")]
    for name in ("samples/wic_0.jsonl", "samples/lambada_0.jsonl"):
        assert samples[0][name] == samples[1][name]
    monkeypatch.setattr("mtnlg_eval.scoring.open_model.import_gpt2", None)
    assert run("run", tmp_path / "gpt2", *words, "--out", tmp_path / "theirs") == 0
    assert files(tmp_path / "theirs") == samples[1]


def test_a_task_that_cannot_run_is_named_and_the_others_go_on(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "rows", tmp_path / "eval"
    shutil.copytree(OURS, data, ignore=shutil.ignore_patterns("hans"))
    with (data / "boolq" / "val.jsonl").open("a") as file:
        file.write('{"question": "is it", "passage": "It is.", "label": "perhaps"}\n')
    words = ("--data", data, "--tasks", "hans,wic,boolq", "--shots", "0", "--out", out)
    assert run("run", checkpoint.directory, *words) == 1
    stderr = capsys.readouterr().err
    assert f'boolq: not run: {data}/boolq/val.jsonl:3: label = "perhaps": unknown label' in stderr
    assert f"hans: not run: {data}/hans: no such folder" in stderr
    assert stderr.splitlines()[-1] == "mtnlg-eval: 2 of 3 tasks are missing: hans, boolq"
    summary = json.loads((out / "summary.json").read_bytes())
    assert list(summary["tasks"]) == ["wic"]
    assert [gap["task"] for gap in summary["not_run"]] == ["hans", "boolq"]
    assert run("run", checkpoint.directory, *words, "--tasks", "hans") == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_task_that_fails_halfway_takes_nothing_with_it(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "rows"
    shutil.copytree(OURS, data)
    row = {"goal": "g", "sol1": "word " * 200, "sol2": "b", "label": 0}
    (data / "piqa" / "valid.jsonl").write_text(json.dumps(row))
    (data / "piqa" / "valid-labels.lst").unlink()
    words = ("--data", data, "--tasks", "piqa,wic", "--shots", "0", "--out", tmp_path / "eval")
    assert run("run", checkpoint.directory, *words) == 1
    assert "tokens to score do not fit the model's context" in capsys.readouterr().err
    assert list(json.loads((tmp_path / "eval" / "results.json").read_bytes())["results"]) == ["wic_0"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--tasks", "boolq,squad"), 2, "no task squad; choose from lambada, race_h"),
        (("--tasks", ","), 2, "names no task"),
        (("--shots", "0,some"), 2, "'some' is neither a number of examples nor few"),
        (("--shots", "-1"), 2, "'-1' is neither"),
        (("--limit", "0"), 2, ""),
        (("--data", "nowhere"), 1, "nowhere: no such folder"),
    ],
)
def test_a_wrong_command_line_is_told_before_anything_is_read(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, words: tuple[str, str], status: int, message: str
) -> None:
    assert run("run", tmp_path / "no-checkpoint", "--out", tmp_path / "eval", *words) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "eval").exists()


def test_a_killed_run_goes_on_scores_nothing_twice_and_ends_the_same(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", checkpoint.directory, "--data", OURS, "--quiet", "--shots", "0,few", "--out"]
    assert run(*words, tmp_path / "whole") == 0
    killed = outside([*words, tmp_path / "killed", "--batch-tokens", "300"], tmp_path, KILLED)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "summary.json").exists()
    positions = count_scored_positions(monkeypatch)
    assert run(*words, tmp_path / "killed") == 0
    resumed = sum(positions)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    shutil.rmtree(tmp_path / "killed")
    positions.clear()
    assert run(*words, tmp_path / "killed") == 0
    assert 0 < resumed < sum(positions)
    positions.clear()
    assert run(*words, tmp_path / "killed") == 0
    assert not positions


def test_batches_and_a_limit_change_no_byte_of_a_sample(run: Run, checkpoint: Checkpoint, tmp_path: Path) -> None:
    words = ("run", checkpoint.directory, "--data", OURS, "--quiet", "--shots", "2", "--tasks")
    assert run(*words, "boolq,winogrande", "--out", tmp_path / "whole") == 0
    whole = files(tmp_path / "whole")
    assert run(*words, "boolq,winogrande", "--batch-tokens", 1, "--out", tmp_path / "by-rows") == 0
    assert files(tmp_path / "by-rows") == whole
    assert run(*words, "winogrande", "--limit", 1, "--out", tmp_path / "one") == 0
    name = "samples/winogrande_2.jsonl"
    assert files(tmp_path / "one")[name] == whole[name].splitlines(keepends=True)[0]


def count_scored_positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many positions each forward pass scores from now on."""
    from mtnlg_eval.scoring.decoder_lm import LocalEngine

    positions: list[int] = []
    forward = LocalEngine._score_batch

    def counted(self: LocalEngine, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        positions.append(len(batch.scored))
        return forward(self, batch)

    monkeypatch.setattr(LocalEngine, "_score_batch", counted)
    return positions


def test_the_folder_holds_the_samples_of_its_last_run_only(run: Run, checkpoint: Checkpoint, tmp_path: Path) -> None:
    words = ("run", checkpoint.directory, "--data", OURS, "--out", tmp_path, "--quiet", "--tasks")
    assert run(*words, "wic,boolq", "--shots", "0") == 0
    assert run(*words, "wic", "--shots", "1") == 0
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["wic_1.jsonl"]


def test_nothing_of_lm_eval_is_heard(checkpoint: Checkpoint, tmp_path: Path) -> None:
    words = ("run", checkpoint.directory, "--data", OURS, "--out", tmp_path / "eval", "--tasks", "race_h,lambada")
    process = outside(words, tmp_path)
    assert process.returncode == 0
    assert all(line.startswith("scoring: ") for line in process.stderr.splitlines()), process.stderr


def test_rows_longer_than_the_context_are_told_once_and_counted(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"question": "is it", "passage": "It is. " * 300, "idx": 7, "label": "true"}
    (tmp_path / "boolq").mkdir()
    (tmp_path / "boolq" / "val.jsonl").write_text(json.dumps(row))
    assert run("run", checkpoint.directory, "--data", tmp_path, "--out", tmp_path / "eval", "--tasks", "boolq") == 0
    message = "boolq: 1 rows are longer than the context of 256 tokens and lose their beginning, the first 7"
    assert capsys.readouterr().err.count(message) == 1
    summary = json.loads((tmp_path / "eval" / "summary.json").read_bytes())
    assert summary["tasks"]["boolq"]["few"]["truncated"] == 1


def test_without_rows_and_network_one_line_says_so(checkpoint: Checkpoint, tmp_path: Path) -> None:
    process = outside(
        ("run", checkpoint.directory, "--out", tmp_path / "eval"), tmp_path, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )
    assert process.returncode == 1
    assert process.stderr.count("\n") == 1
    assert "lambada: the rows cannot be fetched: " in process.stderr
    assert "pass a folder with --data DIR" in process.stderr


def test_texts_of_all_tasks_are_written(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("texts", "--data", OURS, "--out", tmp_path / "texts.jsonl") == 0
    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["task"] for row in rows} == set(ROWS)
    assert all(set(row) == {"task", "id", "text"} for row in rows)
    assert rows[-1] == {"task": "wic", "id": "1", "text": "A ring of gold lay in the grass."}
    assert run("texts", "--data", tmp_path, "--out", tmp_path / "none.jsonl") == 1
    assert not (tmp_path / "none.jsonl").exists()
    assert "no task can be read; lambada: " in capsys.readouterr().err


def test_help_waits_for_nothing_slow(tmp_path: Path) -> None:
    slow = "{'torch', 'lm_eval', 'datasets', 'matplotlib', 'mtnlg_eval.report'} & set(sys.modules)"
    process = outside((), tmp_path, f"import sys; from mtnlg_eval import cli; sys.exit(len({slow}))")
    assert process.returncode == 0, process.stderr
