"""Results: what differs from the paper, a folder that many commands add to, and paired differences."""

from __future__ import annotations

import json
import threading
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_eval.results import folder as folders
from mtnlg_eval.results.compare import Cell, common_tasks, compared, difference, group_runs, macro
from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.results.statistics import Estimate, clustered_variance, holm, mean_estimate, paired, wilson_interval
from mtnlg_eval.table import differences_by_task, print_checkpoints, print_scores
from mtnlg_eval.tasks.published import TASKS
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"rows": {"count": 10_153}}, ["10,153 rows, 5,153 published"]),
        ({"rows": {"split": "validation"}}, ["the validation split, not test"]),
        ({"rows": {"variant": "original"}}, ["original variant, not openai"]),
        ({"style": "gpt3"}, ["GPT-3's prompts"]),
        ({"shots": {"mean": 12.84}}, ["12.8 of 15 shots shown"]),
        ({"truncated": 30}, ["30 of 5,153 prompts cut at the beginning"]),
        ({"shots": {"pool": "validation"}}, ["shots from the validation split"]),
        ({"shots": {"pool": "test"}}, ["shots from the scored rows"]),
        ({"shots": {"labels": "negative"}}, ["shots of non-entailment only"]),
        ({"model": {"context": 256}}, ["context of 256 tokens, not 2,048"]),
        ({"label_tokens": [1, 2]}, ["label words of 1 and 2 tokens"]),
        ({"rows": {"failed": [{"number": 3, "why": "why"}]}}, ["1 rows left out, the first row 3: why"]),
    ],
)
def test_differences_from_the_paper_are_listed(changed: dict[str, Any], words: list[str], made: ModuleType) -> None:
    parts = changed | {"rows": {"count": 5153} | changed.get("rows", {}), "values": [], "clusters": []}
    parts["model"] = {"context": 2048} | changed.get("model", {})
    assert made.result("lambada", "few", 15, "10", **parts).differs == words


def test_shared_differences_are_listed_once() -> None:
    differs = {"wic": {"0": ["a", "b"], "few": ["a", "b", "c"]}, "piqa": {"0": ["a"], "few": ["a", "d"]}}
    assert differences_by_task(differs) == {
        "Not the paper's setting": ["a"],
        "wic": ["b", "few-shot: c"],
        "piqa": ["few-shot: d"],
    }
    assert differences_by_task({"wic": {"0": []}}) == {"wic": []}


def test_scores_fit_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    score = {"value": 0.617, "interval_95": (0.49, 0.73), "between_draws": 0.012, "rows": 30_000, "differs": []}
    score |= {"metric": "acc", "is_share": True}
    tasks = {task: dict.fromkeys(("0", "1", "few"), score) for task in ("winogrande", "hans")}
    print_scores({"tasks": tasks, "not_run": []})
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line.split() for line in lines if "WinoGrande" in line)
    assert line == ["WinoGrande", *["61.7", "(49\N{EN DASH}73)", "\N{PLUS-MINUS SIGN}", "1.2"] * 3, "30000"]
    assert "…" not in "".join(lines)
    scores = {task.name: {"0": score | {"value": 1.0, "interval_95": (0.97, 1.0)}} for task in TASKS}
    print_checkpoints({name: {"tasks": scores} for name in ("step-1000", "step-2000")})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    start = [line.split() for line in lines].index(["step-2000", "0", *["100.0"] * 9])
    assert lines[start + 1].split() == ["97\N{EN DASH}100"] * 9
    assert lines[start + 2].split() == ["\N{PLUS-MINUS SIGN}", "1.2"] * 9


def test_repeated_result_keeps_bytes_and_new_score_replaces(made: ModuleType, tmp_path: Path) -> None:
    folder, first = ResultFolder(tmp_path), made.result("wic", "0", 0, "10")
    path = tmp_path / "results" / f"{folder.add(first, ['{}']).name}.json"
    before = path.read_bytes()
    later = first.model_copy(update={"provenance": first.provenance.model_copy(update={"date": "later"})})
    assert folder.add(later, ["{}"]) == first
    assert path.read_bytes() == before
    path.write_bytes(before[:99])
    folder.add(first, ["{}"])
    assert path.read_bytes() == before
    folder.samples(first).unlink()
    assert folder.add(later, ["{}"]) == later
    changed = first.model_copy(update={"values": [0.0, 1.0]})
    folder.add(changed, ["{}"])
    assert folder.results() == [changed]


def test_concurrent_commands_keep_all_results(
    made: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One adds a result while the other, which has read the results already, makes results.json of them."""

    def add(task: str) -> None:
        folder = ResultFolder(tmp_path)
        folder.add(made.result(task, "0", 0, "10"), [])
        folder.collect()

    other, gaps = threading.Thread(target=add, args=("boolq",)), ResultFolder.gaps

    def meanwhile(folder: ResultFolder) -> Any:  # noqa: ANN401
        if other.ident is None:
            other.start()
            other.join(0.5)
        return gaps(folder)

    monkeypatch.setattr(ResultFolder, "gaps", meanwhile)
    add("wic")
    other.join()
    results = json.loads((tmp_path / "results.json").read_bytes())["results"]
    assert {name.partition("_")[0] for name in results} == {"wic", "boolq"}


def test_task_run_by_another_command_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ResultFolder(tmp_path)
    for task in ("boolq", "wic"):
        folder.add_gap(task, "no rows", "model")

    def meanwhile(path: Path, *rest: Any) -> Any:  # noqa: ANN401
        folder.clear_gap("wic")
        return read(path, *rest)

    read = folders._read
    monkeypatch.setattr(folders, "_read", meanwhile)
    assert [gap.task for gap in folder.gaps()] == ["boolq"]


def test_every_part_of_the_identity_is_in_the_name(made: ModuleType) -> None:
    one = made.result("wic", "1", 1, "10")
    others = [
        made.result("wic", "few", 1, "10"),
        made.result("wic", "1", 1, "10", model={"digest": "other"}),
        one.model_copy(update={"style": "gpt3"}),
        one.model_copy(update={"requests_digest": "0" * 64}),
        one.model_copy(update={"shots": one.shots.model_copy(update={"seed": 2})}),
    ]
    others.append(one.model_copy(update={"shots": one.shots.model_copy(update={"labels": "negative"})}))
    assert len({result.name for result in [one, *others]}) == 7


def test_a_result_that_does_not_fit_its_rows_is_refused(made: ModuleType, tmp_path: Path) -> None:
    folder, result = ResultFolder(tmp_path), made.result("wic", "0", 0, "10")
    folder.add(result, [])
    path = tmp_path / "results" / f"{result.name}.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"values": [1.0]}))
    with pytest.raises(Failure, match="values has 1 scores for 2 rows; remove it"):
        folder.results()


def cell(made: ModuleType, *corrects: str, digest: str | None = None) -> Cell:
    results = [made.result("wic", "1", 1, correct) for correct in corrects]
    rows = results[0].rows if digest is None else results[0].rows.model_copy(update={"digest": digest})
    return Cell(tuple(result.model_copy(update={"rows": rows}) for result in results))


def change(ours: Cell, base: Cell) -> Estimate:
    found = difference(ours, base)
    assert found is not None
    return found.estimate


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_a_paired_interval_is_bonett_and_prices(made: ModuleType, pairs: list[tuple[bool, bool]]) -> None:
    ours, base = ("".join(str(int(pair[n])) for pair in pairs) for n in (0, 1))
    estimate = change(cell(made, ours), cell(made, base))
    n = len(pairs) + 2
    up, down = ((sum(pair == want for pair in pairs) + 1) / n for want in ((True, False), (False, True)))
    half = 1.959964 * ((up + down - (up - down) ** 2) / n) ** 0.5
    assert estimate.value == pytest.approx((ours.count("1") - base.count("1")) / len(pairs))
    assert (estimate.low, estimate.high) == pytest.approx(
        (max(-1, up - down - half), min(1, up - down + half)), abs=1e-6
    )


def test_runs_of_several_seeds_are_one_cell(made: ModuleType) -> None:
    both = cell(made, "1100", "1110")
    assert both.value == 0.625
    assert both.between_draws == pytest.approx(0.125)
    assert (both.estimate.low, both.estimate.high) == wilson_interval(2.5, 4)
    assert list(both.values) == [1, 1, 0.5, 0]
    (one, other), mean = (result.metrics["log_likelihood"] for result in both.results), both.metrics["log_likelihood"]
    assert mean.value == fmean([one.value, other.value])
    assert mean.stderr == fmean([one.stderr or 0, other.stderr or 0])
    assert cell(made, "10").between_draws is None


def test_other_rows_styles_and_checkpoints_are_never_merged(made: ModuleType) -> None:
    results = [made.result("wic", "0", 0, "10" * n, model={"digest": d}) for n, d in product((7, 20), "ab")]
    results.append(made.result("wic", "0", 0, "10", style="gpt3", model={"digest": "a"}))
    results.append(made.result("boolq", "0", 0, "1100", model={"digest": "a"}))
    runs = group_runs(results)
    assert [(run.model.digest, run.setting[0], len(run.results)) for run in runs] == [
        ("a", "paper", 3),
        ("b", "paper", 2),
        ("a", "gpt3", 1),
    ]
    assert runs[0].cells["wic", "0"].first.rows.count == 40  # the largest set of rows, not 54
    assert len({run.label for run in runs}) == 3
    assert common_tasks(runs[:1], "0") == ["boolq", "wic"]
    assert macro(runs[0], ["boolq", "wic"], "0").value == 0.5
    assert macro(runs[0], ["wic"], "0") == pytest.approx(runs[0].cells["wic", "0"].estimate)
    assert [row["difference"].get("wic_0") is None for row in compared(runs)] == [False, False, True]


def test_rows_of_a_group_count_as_one_where_they_agree() -> None:
    """Each row twice: the interval is that of the rows once; opposite twins have no variance at all."""
    once, twice = [1.0, 0.0, 0.0, 1.0, 1.0] * 8, [x for x in [1.0, 0.0, 0.0, 1.0, 1.0] * 8 for _ in range(2)]
    apart = mean_estimate(0.6, once, range(40))
    assert tuple(mean_estimate(0.6, twice, [n // 2 for n in range(80)])) == pytest.approx(tuple(apart), abs=5e-3)
    assert clustered_variance(once, range(40)) == pytest.approx(0.6 * 0.4 / 39)
    assert clustered_variance([1.0, 0.0] * 20, [n // 2 for n in range(40)]) == pytest.approx(0)
    assert clustered_variance([1.0, 0.0], [0, 0]) is None


def test_paired_rows_of_a_group_have_the_variance_of_their_sums() -> None:
    d = np.array([1.0, 1.0, 1.0, 0.0, 0.0, -1.0])
    mean, variance = paired(d, [0, 1, 2, 3, 4, 5])
    assert mean == 0.25
    assert variance == pytest.approx(((4 + 2) / 8 - 0.25**2) / 8)
    assert paired(d, [0, 0, 0, 1, 1, 1])[1] > variance


def test_holm_rejects_by_step_down_levels() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == {"a", "d"}
    assert holm({"a": 0.04, "b": 0.001}) == {"a", "b"}
    assert holm({}) == set()


def test_non_share_score_uses_its_standard_error(made: ModuleType) -> None:
    result = made.result("wic", "0", 0, "10", metric="log_likelihood", values=[], clusters=[])
    assert not result.is_share
    assert tuple(result.estimate) == pytest.approx((-2.5, -2.5 - 1.96 * 0.25, -2.5 + 1.96 * 0.25), abs=1e-3)
    base = made.result("wic", "0", 0, "10", metric="log_likelihood", values=[-3.0, -2.0])
    better = made.result("wic", "0", 0, "10", metric="log_likelihood", values=[-1.0, -1.0], model={"digest": "b"})
    change = compared(group_runs([base, better]))[1]["difference"]["wic_0"]
    assert tuple(change[1:]) == pytest.approx((1.5 - 1.96 * 0.3536, 1.5 + 1.96 * 0.3536), abs=1e-3)
