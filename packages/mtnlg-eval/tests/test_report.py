"""The report of a run: all sections, the numbers of the files, no external resources, equal bytes for equal runs."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_eval.report import write_report
from mtnlg_eval.report.charts import SMALL
from mtnlg_eval.results.statistics import wilson_interval
from mtnlg_eval.tasks.published import SHOTS, TASKS

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    Page = Any  # of whole_run.py


@pytest.fixture(scope="module")
def complete_run(made: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run: Path = made.make_run(tmp_path_factory.mktemp("runs") / "quick & <small>")
    write_report(run, show=False)
    return run


@pytest.fixture(scope="module")
def page(made: ModuleType, complete_run: Path) -> Page:
    return made.Page((complete_run / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def run(made: ModuleType, tmp_path: Path) -> Path:
    folder: Path = made.make_run(tmp_path / "run", "winogrande", "wic")
    return folder


def test_page_has_every_section_and_every_picture(page: Page) -> None:
    assert not page.open
    anchors = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {"data", "training", "scores", "answers", "versions"} <= anchors
    for words in ("data/report.html", "Learning rate", "The blend", "frequencies alone give 6.41", "7,312"):
        assert words in page.text
    assert "7,147 \N{RIGHTWARDS ARROW} 5,288" in page.text
    described = sum(1 for _, attributes in page.elements if attributes.get("role") == "img")
    assert described == len(TASKS) + len(SMALL) + len(["loss"])


def test_page_refers_to_nothing_outside_itself(complete_run: Path, page: Page) -> None:
    content = (complete_run / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|@import|//[a-z]", content)
    assert not {"link", "img", "iframe", "object", "image"} & {tag for tag, _ in page.elements}
    anchors = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(anchors) == len(set(anchors)), "one name, one element"
    referred = [a[key] for _, a in page.elements for key in ("href", "src", "xlink:href") if key in a]
    referred += re.findall(r"url\(([^)]*)\)", content)
    assert referred
    beside = {target for target in map(str, referred) if not target.startswith("#")}
    assert all((complete_run / file).is_file() for file in beside)
    assert {file.rpartition("/")[0] for file in beside} <= {"data", "train", "report"}
    answers = {target for target in map(str, referred) if target.startswith("#task=")}
    assert {str(target) for target in referred} - beside - answers <= {f"#{anchor}" for anchor in anchors}


def test_page_runs_only_our_script(page: Page) -> None:
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "answers-index"}, {}]
    (policy,) = (str(a["content"]) for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    ours = files("mtnlg_eval.report").joinpath("answers.js").read_bytes()
    assert base64.b64encode(sha256(ours).digest()).decode() in policy
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("script-src")[2]


def test_same_run_gives_the_same_bytes_in_another_process(complete_run: Path, tmp_path: Path) -> None:
    copy = tmp_path / complete_run.name
    shutil.copytree(complete_run, copy)
    for name in ("report.html", "results.json"):
        (copy / name).unlink()
    code = "import sys, pathlib, mtnlg_eval; mtnlg_eval.write_report(pathlib.Path(sys.argv[1]), show=False)"
    environment = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, "-c", code, str(copy)], check=True, env=environment)
    for name in ("report.html", "results.json"):
        assert (copy / name).read_bytes() == (complete_run / name).read_bytes()


def test_page_scores_match_files(made: ModuleType, page: Page) -> None:
    scores = {(each.task, each.shots.asked): each for each in made.evaluation()}
    heads = ("task", "shots", "step-160", "95\N{NARROW NO-BREAK SPACE}%", "log P(right)", "bits/byte")
    (start,) = (n for n, row in enumerate(page.rows) if row[:6] == list(heads))
    assert page.rows[start][6:-1] == ["MT-NLG", "GPT-3", "GPT-2", "Gopher", "shown", "rows"]
    rows = [row for row in page.rows[start + 1 :] if len(row) == len(page.rows[start])][: len(TASKS) * len(SHOTS)]
    for number, row in enumerate(rows):
        task, shots = TASKS[number // len(SHOTS)], list(SHOTS)[number % len(SHOTS)]
        score = scores[task.name, shots]
        assert row[0] == (f"{task.title} acc" if shots == "0" else "")
        assert row[1] == (f"few ({task.few})" if shots == "few" else shots)
        low, high = (100 * bound for bound in wilson_interval(score.score * 14, 14))
        assert row[2:4] == [f"{100 * score.score:.1f}", f"{low:.1f}\N{EN DASH}{high:.1f}"]
        assert row[4:6] == ["-2.5 ± 0.49", "1.5 ± 0.24"]
        for model, cell in zip(("MT-NLG", "GPT-3", "GPT-2", "Gopher"), row[6:], strict=False):
            expected = task.figure(model, shots)
            assert cell.rstrip("\N{DAGGER}") == ("" if expected is None else f"{expected:.2f}")
        assert row[-3:-1] == ["4.4" if shots == "few" else "", str(score.rows.count)]


def test_checkpoints_make_curves_and_table_shows_newest(made: ModuleType, run: Path) -> None:
    shutil.rmtree(run / "eval")
    for step in (40, 160, 80):
        model = {"tokens": 6272 * step, "digest": f"{step}"}
        results = made.evaluation("boolq", step=step, model=model)
        wic = made.result("wic", "0", 0, "1" * (step // 20) + "0" * (10 - step // 20), step, model=model)
        own = wic.model_copy(update={"task": "own", "shots": wic.shots.model_copy(update={"asked": "5"})})
        made.write_results(run, [*results, wic, own])
    parsed = made.read(run)
    assert "Score against training tokens" in parsed.text
    assert parsed.row("WiC acc")[2] == "80.0"
    described = [attributes for _, attributes in parsed.elements if attributes.get("role") == "img"]
    scores = ["boolq by shots", "boolq by tokens", "wic by tokens", "own by tokens"]
    assert len(described) == len(scores) + len(SMALL) + len(["loss"])


def test_page_of_the_curation_is_linked_if_it_exists(run: Path) -> None:
    assert '<a href="data/report.html">' in write_report(run, show=False).read_text(encoding="utf-8")
    (run / "data/report.html").unlink()
    assert 'href="data/' not in write_report(run, show=False).read_text(encoding="utf-8")


def test_epochs_are_weighted_tokens_over_training_tokens(made: ModuleType, complete_run: Path) -> None:
    results = json.loads((complete_run / "results.json").read_text(encoding="utf-8"))
    code = next(source for source in results["data"]["blend"] if source["name"] == "code")
    assert code["epochs"] == pytest.approx(made.load("train/summary.json")["tokens"] * 0.2 / (3_987_120 * 0.98))


def test_results_json_holds_every_part(made: ModuleType, complete_run: Path) -> None:
    results = json.loads((complete_run / "results.json").read_text(encoding="utf-8"))
    assert results["version"] == 3
    assert results["not_run"] == []
    assert results["training"]["loss"] == made.load("train/summary.json")["loss"]
    assert results["versions"]["lm-eval"] == "0.4.13"
    score = next(each for each in made.evaluation() if (each.task, each.shots.asked) == ("boolq", "few"))
    row = results["evaluation"]["scores"][score.name]
    assert (row["metrics"]["acc"]["value"], row["differs"]) == (score.score, score.differs)
    assert tuple(row["interval_95"]) == pytest.approx(wilson_interval(score.score * 14, 14))
    assert results["evaluation"]["published"]["boolq"]["GPT-3"] == {"zero": 60.5, "one": 76.7, "few": 77.5}


def test_page_contains_no_absolute_path(page: Page) -> None:
    assert "step-160, digest" in page.text
    assert "anywhere" not in page.text


def test_console_shows_the_table_unless_show_is_false(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_report(run)
    output = capsys.readouterr().out
    assert "data:       7,147 documents, 5,288 kept, 6.81 M tokens" in output
    assert "WinoGrande" in output
    assert re.search(r"\d s in curation, training and scoring$", output, re.MULTILINE)  # not start-up
    write_report(run, show=False)
    assert capsys.readouterr().out == ""
