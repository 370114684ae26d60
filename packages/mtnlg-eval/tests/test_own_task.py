"""A task of one's own from a YAML file: scored beside the nine, kept, compared and reported like them."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_eval import cli
from mtnlg_eval.report import write_report
from mtnlg_eval.results.compare import group_runs
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.tasks.own_task import OwnTask
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mtnlg_model.checkpoint.reader import Checkpoint

CAPITALS = [("France", 0), ("Italy", 1), ("Spain", 2), ("France", 0), ("Italy", 1)]


@pytest.fixture
def write_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a task on capitals with some keys changed, and its rows, into the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"country": country, "capital": capital} for country, capital in CAPITALS]
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def write(**keys: Any) -> Path:  # noqa: ANN401
        config = {
            "task": "capitals",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": "capitals.jsonl"}},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "The capital of {{country}} is",
            "doc_to_choice": ["Paris", "Rome", "Madrid"],
            "doc_to_target": "capital",
            "num_fewshot": 2,
        }
        path = tmp_path / "capitals.yaml"
        path.write_text(json.dumps({key: value for key, value in (config | keys).items() if value is not None}))
        return path

    return write


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["mtnlg-eval", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_a_task_file_is_scored_beside_the_nine_and_reported(
    checkpoint: Checkpoint,
    write_task: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run" / "eval"
    assert run(monkeypatch, "run", checkpoint.directory, "--task-file", write_task(), "--out", out) == 0
    output = capsys.readouterr().out
    assert "capitals" in output
    assert "LAMBADA" not in output
    results = ResultFolder(out).results()
    assert [(r.task, r.shots.asked, r.shots.count, r.rows.count) for r in results] == [
        ("capitals", "0", 0, 5),
        ("capitals", "1", 1, 5),
        ("capitals", "few", 2, 5),
    ]
    assert results[0].metrics.keys() == {"acc", "acc_norm"}
    assert results[0].differs == [
        "not a task of the paper: prompts, shots and score are its YAML's",
        "context of 256 tokens, not 2,048",
    ]
    samples = [json.loads(line) for line in ResultFolder(out).samples(results[2]).read_text().splitlines()]
    assert all(
        prompt.count("The capital of") == 3 for prompt in (s["arguments"]["gen_args_0"]["arg_0"] for s in samples)
    )
    for sample in samples:  # the same row stands in the file twice, and is no shot of either
        *shots, question = sample["arguments"]["gen_args_0"]["arg_0"].split("\n\n")
        assert not any(shot.startswith(question) for shot in shots)
    (main,) = group_runs(results)
    assert main.tasks() == ["capitals"]
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "Other tasks" in page
    assert "capitals" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "results.json").read_text())["evaluation"]["tasks"]["capitals"]["0"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"output_type": "generate_until"}, "output_type = generate_until: not multiple_choice; for such a task: "),
        ({"task": "boolq"}, "task = boolq: is one of the nine"),
        ({"task": "../up"}, "needs one name of letters"),
        ({"task": None}, "task = None: needs one name"),
        ({"metric_list": [{"metric": "acc_norm"}]}, "metric_list has no acc"),
        ({"fewshot_config": {"sampler": "first_n"}}, "fewshot_config: shots are drawn with --seeds"),
        ({"doc_to_choice": ["Paris", "Rome"]}, "row 3: doc_to_target = 2: neither a choice nor the number of one"),
        ({"test_split": "dev"}, "not a task that lm-eval can read: KeyError"),
        ({"banana": 1}, "not a task that lm-eval can read: TypeError"),
    ],
)
def test_a_file_that_is_no_such_task_is_one_line(
    keys: dict[str, Any], message: str, write_task: Callable[..., Path]
) -> None:
    path = write_task(**keys)
    with pytest.raises(Failure) as raised:
        OwnTask(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_few_needs_a_number_in_the_file(
    checkpoint: Checkpoint,
    write_task: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write_task(num_fewshot=None)
    assert run(monkeypatch, "run", checkpoint.directory, "--task-file", path, "--out", tmp_path / "eval") == 2
    assert "capitals: few needs num_fewshot in its YAML; or pass --shots 0,1" in capsys.readouterr().err


def test_metrics_that_are_no_mean_of_rows_have_no_standard_error(
    checkpoint: Checkpoint, write_task: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_task(metric_list=[{"metric": "acc"}, {"metric": "mcc"}])
    assert run(monkeypatch, "run", checkpoint.directory, "--task-file", path, "--shots", "0", "--out", tmp_path) == 0
    (result,) = ResultFolder(tmp_path).results()
    assert (result.metrics["acc"].stderr is None, result.metrics["mcc"].stderr) == (False, None)
    assert result.rows.source == str(path)


def test_a_sample_of_rows_with_numbers_for_ids_has_its_size(write_task: Callable[..., Path], tmp_path: Path) -> None:
    rows = [{"country": country, "capital": capital, "id": 7} for country, capital in CAPITALS]
    path = write_task()
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = OwnTask(path)
    task.take(2)
    assert len(task.eval_docs) == 2


def test_the_whole_of_another_split_may_be_shown(write_task: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "shots.jsonl").write_text('{"country": "Chad", "capital": 1}\n{"country": "Peru", "capital": 2}\n')
    files = {"test": "capitals.jsonl", "train": "shots.jsonl"}
    task = OwnTask(write_task(dataset_kwargs={"data_files": files}, fewshot_split="train"))
    task.set_shots(2)
    assert task.config.num_fewshot == 2
