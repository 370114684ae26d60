"""The paper's studies on the page of a run, each with its model's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_eval.report import write_report
from mtnlg_eval.results.statistics import wilson_interval
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def run(made: ModuleType, tmp_path: Path) -> Path:
    """A run folder with nothing but scores."""
    made.write_results(tmp_path, made.evaluation("wic"))
    return tmp_path


def anchors(page: Any) -> list[str]:  # noqa: ANN401  (of whole_run.py)
    return [attributes["id"] for tag, attributes in page.elements if tag == "section"][2:]


def test_every_study_has_its_pictures_and_its_table(made: ModuleType, run: Path) -> None:
    for name, study in made.STUDIES.items():
        made.write(run / f"eval/{name}.json", study)
    page = made.read(run)
    assert anchors(page) == ["hans", "operators", "bias"]
    assert {"#hans", "#operators", "#bias"} <= {attributes.get("href") for _, attributes in page.elements}
    assert page.row("lexical_overlap, non-entailment")[1:] == [
        "0±40 \N{RIGHTWARDS ARROW} 0±40",
        "0±40 \N{RIGHTWARDS ARROW} 100±40",
    ]
    assert page.row("says True, %")[1:] == ["100±33", "100±33"]
    low, high = (100 * bound for bound in wilson_interval(10, 40))
    assert page.row("all")[1] == f"25.0 ({low:.0f}\N{EN DASH}{high:.0f})"
    assert [cell[:4] for cell in page.row("add")[1:]] == ["25.0", "55.0"]
    assert page.row("male likelier, % of 3")[1:] == ["66.7 (20.0\N{EN DASH}90.0)", "78"]
    assert page.row("male")[1:] == ["stern 2", "3.2 ± 0.2 / \N{MINUS SIGN}1.5 ± 0.2"]
    assert "HANS: accuracy against the examples" in page.text
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_a_mode_of_hans_is_shown_after_the_plain_study(made: ModuleType, run: Path) -> None:
    made.write(run / "eval/hans.json", made.STUDIES["hans"])
    modes = {"shots_from": {"source": "any", "labels": "negative"}}
    made.write(run / "eval/negative/hans.json", made.STUDIES["hans"] | modes)
    page = made.read(run)
    assert anchors(page) == ["hans"]
    assert "eval/negative/hans.json" in page.text
    assert page.text.count("HANS: accuracy against the examples") == 2


def test_each_study_names_its_model(made: ModuleType, run: Path) -> None:
    made.write(run / "eval/hans.json", made.STUDIES["hans"])
    made.write(run / "eval/bias.json", made.STUDIES["bias"] | {"name": "step-80", "digest": "abcdef0123"})
    page = made.read(run)
    assert anchors(page) == ["hans", "bias"]
    assert "step-160, eval/hans.json" in page.text
    assert "step-80, eval/bias.json" in page.text
    assert "anywhere" not in page.text


@pytest.mark.parametrize("written", ["", '{"version": 1, "checkpoint": "step-1", "dig', "{}"])
def test_a_malformed_study_is_named(written: str, run: Path) -> None:
    (run / "eval/operators.json").write_text(written)
    with pytest.raises(Failure, match=r"^eval/operators.json: "):
        write_report(run, show=False)
