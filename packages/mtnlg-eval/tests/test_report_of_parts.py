"""The report of an incomplete run or of one with unexpected content: a notice on the page or a one-line error."""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING

import pytest

from mtnlg_eval.report import write_report
from mtnlg_eval.report.charts import curves
from mtnlg_eval.report.run_files import read_run
from mtnlg_eval.results.statistics import wilson_interval
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def run(made: ModuleType, tmp_path: Path) -> Path:
    folder: Path = made.make_run(tmp_path / "run", "winogrande", "wic")
    return folder


@pytest.mark.parametrize(
    ("removed", "notices", "kept"),
    [
        (["data", "eval", "train/summary.json"], ["Still to be run: data: mtnlg-data run"], ["newest step is 8"]),
        (["train", "eval"], ["Still to be run: training: mtnlg-parallel train"], ["The blend"]),
        (["eval"], ["Still to be run: evaluation: mtnlg-eval run"], ["the last loss is 3.957", "The blend"]),
        (["data"], ["Still to be run: data: "], ["the last loss is 3.957", "WinoGrande"]),
        (["data", "train"], ["Scores of step-160."], ["WinoGrande"]),
        (["data/tokens"], ["not been tokenized"], ["documents were kept", "WinoGrande"]),
        (["train/summary.json"], ["Still to be run: training"], ["newest step is 8", "WinoGrande"]),
        (["eval/results.json", "eval/samples"], [], ["WinoGrande"]),
    ],
)
def test_page_names_missing_parts(
    made: ModuleType, run: Path, removed: list[str], notices: list[str], kept: list[str]
) -> None:
    for name in removed:
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
    content = made.read(run).text
    assert all(words in content for words in notices + kept)


@pytest.mark.parametrize(
    ("folder", "content", "line"),
    [
        (".", "", r"not a run, or no part of it has ended: no data/summary\.json"),
        (".", "data/notes.txt", "not a run, or no part of it has ended"),
        (".", "train/model.bin", "not a run, or no part of it has ended"),
        ("nowhere", "", "nowhere: no such run folder"),
        ("data", "data/summary.json", "not a run, or no part of it has ended"),
    ],
)
def test_other_folders_are_refused_unwritten(tmp_path: Path, folder: str, content: str, line: str) -> None:
    if content:
        (tmp_path / content).parent.mkdir()
        (tmp_path / content).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Failure, match=line):
        write_report(tmp_path / folder)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("rows_from", "documents", "caveat"),
    [
        ("/somewhere/recipes/quickstart/rows", 14, "were written for this project"),
        ("/data/published", 14, "not the benchmarks' published splits"),
        ("/data/published", 638, "The rows come from data/published."),
    ],
)
def test_page_names_scored_rows(made: ModuleType, run: Path, rows_from: str, documents: int, caveat: str) -> None:
    shutil.rmtree(run / "eval")
    tokens = 1_003_520 if documents == 14 else 0  # of an imported model they are not known
    result = made.result("wic", "0", 0, "1" * documents, rows={"source": rows_from}, model={"tokens": tokens})
    made.write_results(run, [result])
    content = made.read(run).text
    assert caveat in content
    assert "step-160 is tiny" in content
    assert ("were written for this project" in content) == caveat.startswith("were written")
    assert ("it was trained on" in content) == (documents == 14)


def test_a_task_that_could_not_run_is_named(made: ModuleType, run: Path) -> None:
    shutil.rmtree(run / "eval")
    made.write_results(run, made.evaluation("piqa"))
    made.write(run / "eval/not_run/wic.json", {"task": "wic", "why": "no rows", "checkpoint": "/any/step-7"})
    assert "Not run: wic of step-7, no rows." in made.read(run).text


def test_evaluation_alone_has_a_page(made: ModuleType, run: Path) -> None:
    before = (run / "eval/results.json").read_bytes()
    page = made.Page(write_report(run / "eval", show=False).read_text(encoding="utf-8"))
    assert [a["id"] for tag, a in page.elements if tag == "section"] == ["scores", "answers"]
    assert (run / "eval/results.json").read_bytes() == before


def test_empty_columns_are_dropped_and_tables_name_models(made: ModuleType, run: Path) -> None:
    shutil.rmtree(run / "eval")
    two = [
        made.result("wic", "2", 2, "10" * 7, step, model={"tokens": step, "digest": f"{step}"}) for step in (80, 160)
    ]
    made.write_results(run, two)
    page = made.read(run)
    heads = [row for row in page.rows if row[:2] == ["task", "shots"]]
    assert [head[:-1] for head in heads] == [
        ["task", "shots", "step-160", "95\N{NARROW NO-BREAK SPACE}%", "log P(right)", "bits/byte", "rows"]
    ]
    assert "Scores of step-160" in page.text
    assert "Differences to step-160" in page.text


def test_cloze_and_multiple_choice_forms_are_side_by_side(made: ModuleType, run: Path) -> None:
    shutil.rmtree(run / "eval")
    forms = {"mmlu_law": "1100", "mmlu_continuation_law": "1110", "other": "10"}
    results = [made.result("wic", "0", 0, correct).model_copy(update={"task": task}) for task, correct in forms.items()]
    made.write_results(run, results)
    page = made.read(run)
    low, high = (100 * bound for bound in wilson_interval(3, 4))
    assert page.row("task")[2:5] == ["step-160", "95\N{NARROW NO-BREAK SPACE}%", "cloze form"]
    assert page.row("mmlu_law acc")[2] == "50.0"
    assert page.row("mmlu_law acc")[4] == f"75.0 ({low:.1f}\N{EN DASH}{high:.1f})"
    assert page.row("other acc")[4] == ""


def test_loss_that_is_not_finite_is_reported(made: ModuleType, run: Path) -> None:
    made.change(run / "train/summary.json", loss=math.nan)
    assert "the last loss is not finite" in made.read(run).text
    assert json.loads((run / "results.json").read_text(encoding="utf-8"))["training"]["loss"] is None


def test_broken_file_is_named_with_its_key(made: ModuleType, run: Path) -> None:
    path = next((run / "eval/results").iterdir())
    made.change(path, truncated="soon")
    with pytest.raises(Failure, match=rf"eval/results/{path.name}: truncated = .*; remove it and"):
        write_report(run)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(Failure, match=rf"{path.name}: .*Invalid JSON"):
        write_report(run)


def test_report_of_training_alone_has_loss_curves(run: Path) -> None:
    page = write_report(run / "train").read_text(encoding="utf-8")
    for curve in ("Loss", "Learning rate", "Gradient norm", "Batch", "Throughput"):
        assert f'<text class="title" x="4" y="12">{curve}' in page


def test_loss_by_source_and_changes_of_the_run(made: ModuleType, run: Path) -> None:
    """Ten sources, of which the first ends at the change of data; of equal colours one is dashed."""
    steps = made.metrics()
    for step in steps[1::2]:
        names = [f"source {n}" for n in range(10) if n or step["step"] < 5]
        step["lr"] = 1.234e-5
        step["sources"] = {name: {"tokens": 9, "passes": 0.1, "loss": 3.5} for name in names} | {
            "unread": {"tokens": 0}
        }
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    (run / "train" / "metrics.jsonl").write_text(lines, encoding="utf-8")
    changes = "[[train.change]]\nat = 60\nlr = 5e-5\nfrozen = []\nskip = []\n[[train.change]]\nat = 999\ndata = '/x'\n"
    (run / "train" / "recipe.toml").write_text(f"[model]\nsequence = 32\n[train]\nlr = 1e-4\n{changes}")
    assert all(6 * len(label) <= each.left - 8 for each in curves(read_run(run)) for _, label in each.y.ticks)
    page = made.read(run)
    looks = [str(attributes["class"]) for tag, attributes in page.elements if tag == "path" and "class" in attributes]
    assert looks.count("source s0") == looks.count("source s0 dashed") == looks.count("source s7") == 2, (
        "line and legend"
    )
    assert "source 9" in page.text
    assert page.text.count("unread") == 0
    assert "step 8, source 0" not in page.text
    assert looks.count("muted dashed") >= 6, "the first change in each chart; the second is to come"
    assert "from 1.92\N{NARROW NO-BREAK SPACE}k tokens on: lr = 5e-05, frozen = []" in page.text
    (run / "train" / "recipe.toml").write_text("[model\n")
    with pytest.raises(Failure, match=r"recipe\.toml: "):
        write_report(run)


def test_few_and_equal_numeric_shots_share_a_table(made: ModuleType, run: Path) -> None:
    """WiC's few is 32 examples: both are scored, with different results."""
    made.write_results(run, [made.result("wic", "32", 4.357, "10" * 7)])
    assert "accuracy against" in write_report(run).read_text(encoding="utf-8")
