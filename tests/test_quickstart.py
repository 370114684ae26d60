"""The README's code blocks run unchanged and print what it shows, and its main job has the promised results.

``nox -s quickstart`` writes runs/quickstart; if a finished run is there already, the command returns at once.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_docs import Block, blocks, check_printed

ROOT = Path(__file__).parents[1]
RUN = ROOT / "runs" / "quickstart"
MAIN_JOB, *README = blocks("../README")  # the landing page of the site includes them
TASKS = {"lambada", "race_h", "boolq", "winogrande", "hellaswag", "piqa", "anli_r2", "hans", "wic"}


def run(*command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def run_block(block: Block) -> str:
    start = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    return run(*start, block.text)


@pytest.fixture(scope="module")
def main_job_output() -> str:
    return run_block(MAIN_JOB)


@pytest.fixture(scope="module")
def main_job(main_job_output: str) -> Path:
    assert "quickstart: " in main_job_output
    return RUN


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_blocks_of_the_readme_run_and_print_what_it_shows(main_job_output: str) -> None:
    for name in ("unique", "again", "scores"):
        shutil.rmtree(ROOT / "runs" / name, ignore_errors=True)
    printed = main_job_output
    for block in README:
        if block.language == "text":
            check_printed(block, printed)
        else:
            printed = run_block(block) or printed


@pytest.mark.usefixtures("main_job")
def test_commands_of_the_twelve_steps_print_what_the_page_shows() -> None:
    commands, *shown = blocks("explanation/twelve-steps")
    assert len(shown) > 8
    printed = run_block(Block("bash", {}, re.sub(r"^\$ ", "", commands.text, flags=re.MULTILINE)))
    for block in shown:
        check_printed(block, printed)


def test_every_stage_reports_kept_and_dropped(main_job: Path) -> None:
    stages = read_json(main_job / "data" / "summary.json")["stages"]
    for stage in stages:
        for source, counts in stage["sources"].items():
            dropped = sum(counts["dropped"].values())
            left = counts["documents_in"] - dropped
            cut = stage["name"] == "decontaminate"  # a cut splits a document in two
            assert counts["documents_out"] == left or (cut and counts["documents_out"] > left), (stage["name"], source)
    assert stages[0]["documents_in"] > 1000
    assert stages[-1]["documents_out"] > 500


def test_a_document_that_holds_a_text_of_the_tasks_is_cut(main_job: Path) -> None:
    assert read_json(main_job / "data" / "summary.json")["decontamination"]["cuts_by_task"]["boolq"] > 0


def test_the_loss_falls_well_below_the_unigram_entropy(main_job: Path) -> None:
    entropy = read_json(main_job / "data" / "summary.json")["unigram_entropy_nats"]
    last = [step["loss"] for step in metrics_of(main_job / "train")[-10:]]
    assert sum(last) / len(last) < entropy - 1.0
    assert read_json(main_job / "train" / "summary.json")["validation_loss"] < entropy - 1.0


def test_the_nine_tasks_are_scored_at_zero_one_and_few_shots(main_job: Path) -> None:
    results = read_json(main_job / "eval" / "results.json")
    scores = results["scores"].values()
    assert not results["not_run"]
    assert {(score["task"], score["shots"]["asked"]) for score in scores} == {
        (task, shots) for task in TASKS for shots in ("0", "1", "few")
    }
    assert all(0 <= score["metrics"]["acc"]["value"] <= 1 and score["differs"] for score in scores)


def test_every_answer_stands_beside_the_report(main_job: Path) -> None:
    assert len(list((main_job / "report/samples").glob("*.js"))) == 27
    assert read_json(main_job / "results.json")


def test_the_same_command_again_finds_everything_done(main_job: Path) -> None:
    names = [
        "report.html",
        "results.json",
        "data/report.html",
        "data/summary.json",
        "train/metrics.jsonl",
        "eval/results.json",
    ]
    before = [(main_job / name).read_bytes() for name in names]
    run(sys.executable, "-m", "nox", "-s", "quickstart")
    assert [(main_job / name).read_bytes() for name in names] == before
