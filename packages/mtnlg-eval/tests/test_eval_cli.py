"""The command: what it writes and prints, and that a killed run resumes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.scoring.open_model import open_model
from mtnlg_eval.tasks.published import TASKS
from mtnlg_eval.tasks.rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from mtnlg_eval.results.result import Result
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
def score(run: Run, checkpoint: Checkpoint) -> Run:
    """Scores a model, ours by default, on our rows or others."""

    def command(out: Path, *words: object, model: Path = checkpoint.directory, data: Path = OURS) -> int:
        return run("run", model, "--data", data, "--out", out, *words)

    return command


def files(folder: Path) -> dict[str, bytes]:
    """Files of a finished evaluation, without the store, where the results come from and what a kill left half."""
    paths = [path for path in folder.rglob("*.json*") if path.suffix != ".tmp"]
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    results = json.loads(contents.pop("results.json"))
    for name, score in results["scores"].items():
        del score["provenance"]
        result = json.loads(contents[f"results/{name}.json"])
        contents[f"results/{name}.json"] = json.dumps(result | {"provenance": None}).encode()
    return contents | {"results.json": json.dumps(results).encode()}


def results_of(out: Path) -> dict[tuple[str, str], Result]:
    """Results by task and shots; the last of several."""
    return {(result.task, result.shots.asked): result for result in ResultFolder(out).results()}


def samples_of(out: Path, task: str, shots: str) -> bytes:
    return ResultFolder(out).samples(results_of(out)[task, shots]).read_bytes()


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.json*")}


def test_evaluation_writes_results_and_samples(
    score: Run, checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval"
    assert score(out) == 0
    output = capsys.readouterr()
    table = " ".join(output.out.split())
    assert all(title in table for title in ("LAMBADA", "RACE-h", "0-shot", "few-shot"))
    assert "Not the paper's setting: context of 256 tokens, not 2,048" in table
    assert "BoolQ: 2 rows, 3,270 published" in table
    assert "BoolQ: few-shot: 3 of 32 shots shown" in table
    results = json.loads((out / "results.json").read_bytes())
    parts = ("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples", "scores")
    names = {path.stem for path in (out / "results").iterdir()}
    assert {name.partition("-")[0] for name in names} == {f"{t}_{shots}" for t in ROWS for shots in ("0", "1", "few")}
    assert all(set(results[part]) == names == {path.stem for path in (out / "samples").iterdir()} for part in parts)
    by_key = results_of(out)
    assert {task: by_key[task, "few"].shots.count for task in ROWS} == {task.name: task.few for task in TASKS}
    few, race = by_key["boolq", "few"], by_key["race_h", "0"]
    assert (results["n-shot"][few.name], few.shots.mean, few.shots.least) == (3, 3, 3)
    assert race.metrics["acc"].stderr == results["results"][race.name]["acc_stderr,none"]
    assert (few.model.name, few.model.precision, few.model.tokens) == ("step-1", "float32", 768)
    assert few.model.digest == open_model(checkpoint.directory).record.digest
    assert (few.shots.pool, few.shots.pool_rows, few.shots.seed, few.rows.split) == ("train", 3, 1234, "validation")
    assert few.provenance.command.startswith("mtnlg-eval run ")
    assert by_key["lambada", "0"].rows.variant == "openai"
    assert sorted(Counter(race.clusters).values()) == [1, 3]  # questions of an article
    (sample, *_) = map(json.loads, samples_of(out, "hans", "1").splitlines())
    assert sample["doc"]["subcase"] == "ln_subject/object_swap"
    assert sample["shots"] == 1
    hans = by_key["hans", "1"]
    assert hans.score == results["results"][hans.name]["acc,none"] == sum(hans.values) / 2


def test_hans_study_uses_a_runs_samples(
    run: Run, score: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval"
    words = ("--shots", "0,1,2", "--shot-labels", "negative")
    assert score(out, *words) == 2
    assert "use them with --tasks hans" in capsys.readouterr().err
    assert score(out, *words, "--tasks", "hans") == 0
    shown = [json.loads(line) for line in samples_of(out, "hans", "2").splitlines()]
    assert all(" True\n" not in sample["arguments"]["gen_args_0"]["arg_0"] for sample in shown)
    assert run("hans", out) == 0
    assert "lexical_overlap, non-entailment" in capsys.readouterr().out
    assert run("hans", out, "--json") == 0
    study = json.loads(capsys.readouterr().out)["hans.json"]
    assert study == json.loads((out / "hans.json").read_bytes())
    assert study["shots_from"] == {"source": "any", "labels": "negative"}
    ET.fromstring((out / "hans.svg").read_text())  # noqa: S314  (we wrote it)
    assert list(study["shots"]) == ["0", "1", "2"]
    assert study["shots"]["1"]["whole"]["rows"] == results_of(out)["hans", "1"].rows.count
    assert run("report", tmp_path) == 0
    assert 'id="hans"' in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert run("hans", tmp_path) == 1
    assert "HANS was not scored here" in capsys.readouterr().err


def test_operators_are_asked_once_and_counted(
    run: Run, checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "eval"
    words = ("operators", checkpoint.directory, "--out", out, "--problems", 1)
    assert run(*words, "--shots", "few") == 2
    assert run(*words, "--shots", "1", "--json") == 0
    study = json.loads(capsys.readouterr().out)
    assert study == json.loads((out / "operators.json").read_bytes())
    assert (study["name"], len(study["cells"])) == ("step-1", 40)
    before = files_of(out)
    assert run(*words, "--shots", "1") == 0
    assert "ampersand" in capsys.readouterr().out
    assert files_of(out) == before
    assert run("report", tmp_path) == 0
    assert 'id="operators"' in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_each_checkpoint_of_a_folder_is_scored_beside_the_others(
    score: Run, write_checkpoint: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (20, 3):
        write_checkpoint(tmp_path / "checkpoints", seed=step, step=step)
    rows = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(OURS / "wic" / "val.jsonl")}}}
    own = {"task": "own", "test_split": "test", "doc_to_text": "{{sentence1}}", "output_type": "multiple_choice"}
    choices = {"doc_to_choice": ["no", "yes"], "doc_to_target": 0}
    (tmp_path / "own.yaml").write_text(json.dumps({**own, **choices, **rows}))
    out, words = tmp_path / "eval", ("--tasks", f"wic,{tmp_path / 'own.yaml'}", "--shots", "0", "--each")
    assert score(out, *words, model=tmp_path / "checkpoints") == 0
    output = capsys.readouterr()
    assert output.err.index("step-3:") < output.err.index("step-20:")
    heads = [line.split() for line in output.out.splitlines() if line.strip().startswith(("checkpoint", "step-"))]
    assert [words[0] for words in heads] == ["checkpoint", "step-3", "step-20"]  # one table
    assert heads[0] == ["checkpoint", "shots", "WiC", "own"]
    assert score(out, *words, "--json", model=tmp_path / "checkpoints") == 0
    assert [Path(summary["checkpoint"]).name for summary in json.loads(capsys.readouterr().out)] == [
        "step-3",
        "step-20",
    ]
    assert sorted((result.model.step, result.task) for result in ResultFolder(out).results()) == [
        *product((3, 20), ("own", "wic"))
    ]
    assert score(out, *words, model=out) == 1
    newest = tmp_path / "newest"
    assert score(newest, *words[:-1], model=tmp_path / "checkpoints") == 0
    assert results_of(newest)["wic", "0"].model.name == "step-20"


def test_killed_run_resumes_without_rescoring(
    score: Run, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = tmp_path / "killed", ["--shots", "0,few"]
    assert score(tmp_path / "whole", *words) == 0
    command: list[str | Path] = [sys.executable, "-c", KILLED, "run", checkpoint.directory, "--data", OURS]
    killed = subprocess.run([*command, "--out", out, "--batch-tokens", "300", *words], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (out / "results.json").exists()
    positions = count_scored_positions(monkeypatch)
    assert score(out, *words) == 0
    resumed = sum(positions)
    assert files(out) == files(tmp_path / "whole")
    shutil.rmtree(out)
    positions.clear()
    assert score(out, *words) == 0
    assert 0 < resumed < sum(positions)
    positions.clear()
    assert score(out, *words) == 0
    assert not positions


def count_scored_positions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many positions each forward pass scores from now on."""
    from mtnlg_eval.scoring.decoder_lm import LocalEngine

    positions: list[int] = []
    forward = LocalEngine._score_batch

    def counted(self: LocalEngine, batch: Batch) -> torch.Tensor:
        positions.append(len(batch.scored))
        return forward(self, batch)

    monkeypatch.setattr(LocalEngine, "_score_batch", counted)
    return positions


def test_second_command_adds_to_the_first(run: Run, score: Run, write_checkpoint: Write, tmp_path: Path) -> None:
    out = tmp_path / "eval"
    assert score(out, "--tasks", "boolq", "--shots", "0") == 0
    first = {path: path.read_bytes() for path in out.rglob("boolq_*.json*")}
    other = write_checkpoint(tmp_path / "other", seed=7)
    assert score(out, "--tasks", "wic", "--shots", "1") == 0
    assert score(out, "--tasks", "boolq", "--shots", "0", model=other) == 0
    for more in (["--style", "gpt3"], ["--limit", "1"], []):
        assert score(out, "--tasks", "boolq", "--shots", "0", *more) == 0
    assert {path: path.read_bytes() for path in first} == first
    results = ResultFolder(out).results()
    assert len(results) == len({result.name for result in results}) == 5
    assert set(json.loads((out / "results.json").read_bytes())["results"]) == {result.name for result in results}
    assert run("report", tmp_path) == 0
    assert "Runs compared" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_several_seeds_give_the_error_between_draws(
    score: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert score(tmp_path, "--tasks", "hans", "--shots", "0,1", "--seeds", "1,2,3", "--json") == 0
    scores = json.loads(capsys.readouterr().out)["tasks"]["hans"]
    assert (scores["1"]["seeds"], scores["0"]["seeds"]) == ([1, 2, 3], [])
    draws = [result for result in ResultFolder(tmp_path).results() if result.shots.count]
    values = [result.score for result in draws]
    assert [result.shots.seed for result in draws] == [1, 2, 3]
    assert scores["1"]["value"] == pytest.approx(mean(values))
    assert scores["1"]["between_draws"] == pytest.approx(stdev(values) / 3**0.5)
    (run_of_results,) = json.loads((tmp_path / "results.json").read_bytes())["comparison"]
    assert run_of_results["tasks"]["hans"] == scores
    for seeds in ("1,some", "", "-1"):
        assert score(tmp_path, "--seeds", seeds) == 2
    assert "needs numbers, such as 1,2,3" in capsys.readouterr().err


def test_rows_longer_than_the_context_are_counted(
    score: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"question": "is it", "passage": "It is. " * 300, "idx": 7, "label": "true"}
    (tmp_path / "boolq").mkdir()
    (tmp_path / "boolq" / "val.jsonl").write_text(json.dumps(row))
    assert score(tmp_path / "eval", "--tasks", "boolq", data=tmp_path) == 0
    message = (
        "boolq few: 1 prompts are longer than the context of 256 tokens and lose their beginning; the first is row 7"
    )
    output = capsys.readouterr()
    assert output.err.count(message) == 1
    assert "1 of 1 prompts cut at the beginning" in " ".join(output.out.split())
    assert results_of(tmp_path / "eval")["boolq", "few"].truncated == 1


def test_texts_of_all_tasks_are_written(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("texts", "--data", OURS, "--out", tmp_path / "texts.jsonl") == 0
    rows = [json.loads(line) for line in (tmp_path / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["task"] for row in rows} == set(ROWS)
    assert all(set(row) == {"task", "id", "text"} for row in rows)
    assert rows[-1] == {"task": "wic", "id": "1", "text": "A ring of gold lay in the grass."}
    assert run("texts", "--data", tmp_path, "--out", tmp_path / "none.jsonl") == 1
    assert not (tmp_path / "none.jsonl").exists()
    assert "lambada: no such folder" in capsys.readouterr().err
