"""The HANS study on verdicts counted by hand, its modes of shots, and its command."""

from __future__ import annotations

import json
from itertools import pairwise
from math import exp, log, sqrt
from statistics import stdev
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.results.result import Metric
from mtnlg_eval.results.statistics import Estimate, wilson_interval
from mtnlg_eval.studies.hans import Hans, SubsetScore, Verdict, run_hans_study, tally
from mtnlg_eval.tasks.shots import ShotChoice, ShotPool
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def verdict(heuristic: str, subcase: str, label: int, true: float, false: float) -> Verdict:
    doc = {"heuristic": heuristic, "subcase": subcase, "label": label, "template": f"{label}{true}"}
    return answered(doc, log(true), log(false))


def answered(doc: dict[str, Any], *logps: float, scores: tuple[float, ...] = ()) -> Verdict:
    sample = {"doc": doc, "filtered_resps": [(logp, False) for logp in logps], "scores": list(scores or logps)}
    return Verdict.model_validate(sample)


DOC = {"heuristic": "constituent", "subcase": "ce_adverb", "label": 0}


def share(value: float, rows: int) -> Estimate:
    return Estimate(value, *wilson_interval(value * rows, rows))


def score(rows: int, accuracy: float, shifted: float) -> SubsetScore:
    return SubsetScore(rows=rows, accuracy=share(accuracy, rows), shifted=share(shifted, rows))


def test_a_tally_equals_one_counted_by_hand() -> None:
    result = tally(
        [
            verdict("lexical_overlap", "le_passive", 0, 0.8, 0.1),  # says True, right, 8/9
            verdict("lexical_overlap", "ln_preposition", 1, 0.6, 0.2),  # says True, wrong, 3/4
            verdict("subsequence", "se_adjective", 0, 0.2, 0.3),  # says False, wrong, 2/5
            verdict("subsequence", "sn_NP/S", 1, 0.1, 0.7),  # says False, right, 1/8
        ]
    )
    assert result.threshold == pytest.approx((8 / 9 + 3 / 4 + 2 / 5 + 1 / 8) / 4)  # 0.541
    assert result.mass.value == pytest.approx((0.9 + 0.8 + 0.5 + 0.8) / 4)
    assert result.mass[1:] == pytest.approx(wilson_interval(4 * result.mass.value, 4))
    assert result.said_true == share(0.5, 4)
    assert result.whole == score(4, 0.5, 0.5)
    assert result.labels["lexical_overlap"] == {
        "entailment": score(1, 1.0, 1.0),
        "non-entailment": score(1, 0.0, 0.0),
    }
    assert result.labels["subsequence"] == {
        "entailment": score(1, 0.0, 0.0),
        "non-entailment": score(1, 1.0, 1.0),
    }
    assert result.subcases["subsequence"] == {
        "se_adjective": score(1, 0.0, 0.0),
        "sn_NP/S": score(1, 1.0, 1.0),
    }


def test_shifted_threshold_removes_a_constant_bias() -> None:
    result = tally([verdict("constituent", "ce_adverb", label, 0.9 - 0.2 * label, 0.1) for label in (0, 1) * 50])
    assert result.said_true == share(1.0, 2)
    assert (result.whole.rows, result.whole.accuracy.value, result.whole.shifted) == (100, 0.5, share(1.0, 2))
    assert result.whole.accuracy.high - result.whole.accuracy.low > 0.8  # two templates, each answered alike


def test_the_answer_is_the_one_that_run_decides_for() -> None:
    """By the mean per token, where True has two tokens: its log P is lower, its mean is not."""
    one = answered(DOC, -3.0, -2.0, scores=(-1.5, -2.0))
    assert one.right(0.5)
    assert one.mass == pytest.approx(exp(-3) + exp(-2))


def test_extreme_probabilities_do_not_overflow() -> None:
    assert answered(DOC, 0.0, -2000.0).probability == 1.0
    assert answered(DOC, -2000.0, 0.0).probability == pytest.approx(0.0)


def documents(labels: list[int]) -> list[dict[str, object]]:
    return [{"id": str(n), "group": str(n), "label": x, "subcase": f"s{n % 3}"} for n, x in enumerate(labels)]


@given(st.lists(st.integers(0, 1), max_size=24), st.integers(0, 9), st.sampled_from(["0", "7"]))
def test_shot_modes(labels: list[int], count: int, name: str) -> None:
    pool, own = ShotPool(documents(labels)), {"id": name, "group": "own", "label": 0, "subcase": "s1"}
    drawn = pool.draw(own, 24, "seed")
    other = pool.draw(own, count, "seed", ShotChoice(source="other_subcases"))
    assert other == [shot for shot in drawn if shot["subcase"] != "s1"][:count]
    negative = pool.draw(own, count, "seed", ShotChoice(labels="negative"))
    assert negative == [shot for shot in drawn if shot["label"] == 1][:count]
    turns = pool.draw(own, count, "seed", ShotChoice(labels="interleaved"))
    assert turns[:1] == drawn[: min(count, 1)]
    assert all(one["label"] != two["label"] for one, two in pairwise(turns))
    for label in (0, 1):
        of_label = [shot for shot in drawn if shot["label"] == label]
        shown = [shot for shot in turns if shot["label"] == label]
        assert shown == of_label[: len(shown)]
    if len(turns) < count and labels:  # it ends where the label whose turn it is has run out
        spent = 1 - turns[-1]["label"]
        assert sum(x == spent for x in labels) == sum(shot["label"] == spent for shot in turns)


def sample_of(doc: dict[str, object], true: float = 0.6) -> dict[str, object]:
    scores = [log(true), log(0.4)]
    return {"doc": doc, "filtered_resps": [[each, False] for each in scores], "scores": scores}


def rows_of(study: Hans) -> dict[str, list[str]]:
    (table,) = study.tables()
    return {head: list(cells) for head, *cells in table.rows}


def test_missing_and_malformed_files_are_named(made: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="HANS was not scored here"):
        run_hans_study(tmp_path)
    (result,) = (each for each in made.evaluation("hans") if each.shots.asked == "0")
    ResultFolder(tmp_path).add(result, ['{"doc": {}}'])
    with pytest.raises(Failure, match=rf"{result.name}.jsonl:1: doc.heuristic: required key is missing"):
        run_hans_study(tmp_path)


def test_several_seeds_are_averaged(made: ModuleType, tmp_path: Path) -> None:
    (drawn,) = (each for each in made.evaluation("hans") if each.shots.asked == "1")
    folder = ResultFolder(tmp_path)
    for seed, true in ((1, 0.6), (2, 0.2), (3, 0.8)):
        sample = sample_of(DOC, true)
        metrics = {"acc": Metric(value=float(true > 0.4), stderr=None)}
        result = drawn.model_copy(update={"shots": drawn.shots.model_copy(update={"seed": seed}), "metrics": metrics})
        folder.add(result, [json.dumps(sample)] * 2)
    study = run_hans_study(tmp_path)["hans.json"]
    tally_of_draws = study.model_dump()["shots"]["1"]
    assert tally_of_draws["draws"] == 3
    assert tally_of_draws["whole"]["accuracy"] == tally_of_draws["said_true"] == pytest.approx(share(2 / 3, 2))
    assert tally_of_draws["subcases"]["constituent"]["ce_adverb"]["rows"] == 2
    assert tally_of_draws["mass"][0] == pytest.approx((1.0 + 0.6 + 1.2) / 3)
    assert tally_of_draws["between_draws"] == pytest.approx(stdev([1, 0, 1]) / sqrt(3))
    assert rows_of(study)["standard error between draws"] == ["33.3"]


def test_shots_scored_over_different_rows_have_empty_cells(made: ModuleType, tmp_path: Path) -> None:
    subcases = {"ce_adverb": "constituent", "ln_passive": "lexical_overlap", "sn_NP/S": "subsequence"}
    folder = ResultFolder(tmp_path)
    for asked, names in (("0", ["ce_adverb"]), ("1", list(subcases)), ("2", ["ce_adverb"])):
        docs = [{"heuristic": subcases[name], "subcase": name, "label": 0} for name in names]
        samples = [json.dumps(sample_of(doc)) for doc in docs]
        folder.add(made.result("hans", asked, int(asked), "1" * len(docs)), samples)
    rows = rows_of(run_hans_study(tmp_path)["hans.json"])
    assert rows["number of rows"] == ["1", "3", "1"]
    assert [bool(text) for text in rows["  ln_passive"]] == [False, True, False]
    assert rows["  ce_adverb"] == rows["constituent, entailment"] == ["100±40 → 0±40"] * 3


def test_every_model_and_mode_is_studied_by_name(made: ModuleType, tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    sample = json.dumps(sample_of(DOC))
    drawn = made.result("hans", "1", 1, "1")
    interleaved = {"shots": drawn.shots.model_copy(update={"labels": "interleaved"})}
    moved = {"model": drawn.model.model_copy(update={"checkpoint": "/elsewhere/checkpoints/step-160"})}
    in_half = {"model": drawn.model.model_copy(update={"name": "half", "digest": "another"})}
    for digest, parts in {"a": {}, "b": interleaved | moved, "c": in_half}.items():
        folder.add(drawn.model_copy(update={"requests_digest": digest, **parts}), [sample])
    studies = run_hans_study(tmp_path)
    assert sorted(study.name for study in studies.values()) == ["half", "step-160", "step-160 interleaved"]
    assert "hans-step-160-interleaved.json" in studies
