"""The paper's studies on the page of a run, each with its model's name."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_eval.report import write_report
from mtnlg_eval.results.statistics import wilson_interval
from mtnlg_eval.studies.hans import Verdict, tally
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

DIGEST = "c0ffee" * 10  # of the evaluation of whole_run.py
IDENTITY = {"version": 1, "checkpoint": "/anywhere/train/checkpoints/step-160", "name": "step-160"}
IDENTITY |= {"digest": DIGEST, "tokens": 1_003_520}


def hans(labels: str = "drawn") -> dict[str, Any]:
    """Always True; with the shifted threshold every row is right at two examples, and wrong at none."""
    tallies = {
        str(shots): tally(  # rows of two templates
            [
                Verdict.model_validate(
                    {
                        "doc": {"heuristic": "lexical_overlap", "subcase": case, "label": label, "template": case},
                        "filtered_resps": [(logp, False) for logp in logps],
                        "scores": logps,
                    }
                )
                for label, case in ((0, "le_passive"), (1, "ln_passive"))
                for logps in [[log(0.6 + 0.04 * (1 - shots) * label), log(0.2)]]
            ]
        ).model_dump()
        for shots in (0, 2)
    }
    return IDENTITY | {"shots_from": {"source": "any", "labels": labels}, "shots": tallies}


ZERO = {"accuracy": 0.0, "low": 0.0, "high": 0.0}


def operators() -> dict[str, Any]:
    cells = [
        {"operator": name, "disguise": disguise, "shots": shots, "right": right + shots, "problems": 10, **ZERO}
        for name in ("add", "join")
        for disguise, right in (("hash", 3), ("misleading", 0))
        for shots in (1, 4)
    ]
    return IDENTITY | {"cells": cells}


def bias(word: str = "stern") -> dict[str, Any]:
    ratios = {"mayor": -1.5, "baker": -0.5, "nurse": 0.75}
    occupation = {"male_likelier": 2 / 3, "male_likelier_95": [0.2, 0.9], "mean_log_ratio": -0.4166}
    occupation |= {"mean_log_ratio_stderr": 0.65, "by_occupation": ratios}
    occupation["marked"] = occupation | {"male_likelier": 0.9, "by_occupation": {"policeman": -3.0, "nun": 4.0}}
    groups = {
        name: {"samples": 8, "alone": alone, "sentiment": {"positive": 3.25, "negative": -1.5}}
        for name, alone in (("male", [[2, word]]), ("female", []))
    }
    adjectives = {"gender": {"shared": 4, "groups": groups}}
    return IDENTITY | {"samples_a_prompt": 8, "occupation": occupation, "adjectives": adjectives}


@pytest.fixture
def run(made: ModuleType, tmp_path: Path) -> Path:
    """A run folder with nothing but scores."""
    made.write_results(tmp_path, made.evaluation("wic"))
    return tmp_path


def anchors(page: Any) -> list[str]:  # noqa: ANN401  (of whole_run.py)
    return [attributes["id"] for tag, attributes in page.elements if tag == "section"][2:]


def test_every_study_has_its_pictures_and_its_table(made: ModuleType, run: Path) -> None:
    for name, study in (("hans", hans()), ("operators", operators()), ("bias", bias())):
        made.write(run / f"eval/{name}.json", study)
    page = made.read(run)
    assert anchors(page) == ["hans", "operators", "bias"]
    assert {"#hans", "#operators", "#bias"} <= {attributes.get("href") for _, attributes in page.elements}
    assert page.row("lexical_overlap, non-entailment")[1:] == [
        "0±40 \N{RIGHTWARDS ARROW} 0",
        "0±40 \N{RIGHTWARDS ARROW} 100",
    ]
    assert page.row("says True")[1:] == ["100.0", "100.0"]
    low, high = (100 * bound for bound in wilson_interval(10, 40))
    assert page.row("all")[1] == f"25.0 ({low:.0f}\N{EN DASH}{high:.0f})"
    assert [cell[:4] for cell in page.row("add")[1:]] == ["25.0", "55.0"]
    assert page.row("male likelier, % of 3")[1:] == ["66.7 (20.0\N{EN DASH}90.0)", "78"]
    assert page.row("male likelier, % of 2 marked by gender")[1:] == ["90.0 (20.0\N{EN DASH}90.0)", ""]
    assert page.row("male")[1:] == ["stern 2", "3.2 / \N{MINUS SIGN}1.5"]
    titles = [
        "gender: polarity of each group's words",
        "add: problems solved",
        "HANS: accuracy by subcase with 2 examples",
    ]
    assert all(title in page.text for title in titles)
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_a_mode_of_hans_is_shown_after_the_plain_study(made: ModuleType, run: Path) -> None:
    made.write(run / "eval/hans.json", hans())
    made.write(run / "eval/negative/hans.json", hans("negative"))
    page = made.read(run)
    assert anchors(page) == ["hans"]
    assert "eval/negative/hans.json" in page.text
    assert page.text.count("HANS: accuracy by subcase") == 2


def test_each_study_names_its_model(made: ModuleType, run: Path) -> None:
    made.write(run / "eval/hans.json", hans())
    made.write(run / "eval/bias.json", bias() | {"name": "step-80", "digest": "abcdef0123"})
    page = made.read(run)
    assert anchors(page) == ["hans", "bias"]
    assert "step-160, eval/hans.json" in page.text
    assert "step-80, eval/bias.json" in page.text
    assert "anywhere" not in page.text


@pytest.mark.parametrize("written", ["", '{"version": 1, "checkpoint": "step-1", "dig', "{}"])
def test_a_malformed_study_is_named_and_the_rest_is_shown(written: str, made: ModuleType, run: Path) -> None:
    made.write(run / "eval/bias.json", bias())
    (run / "eval/operators.json").write_text(written)
    with pytest.raises(Failure, match=r"^eval/operators.json: .*report.html was written without it$"):
        write_report(run, show=False)
    page = made.Page((run / "report.html").read_text(encoding="utf-8"))
    assert anchors(page) == ["bias", "left-out"]
    assert "Left out, because unreadable: eval/operators.json" in page.text
