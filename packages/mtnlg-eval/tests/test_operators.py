"""Hidden operators: a problem has one explanation, fewer examples are the same question, answers are counted."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from mtnlg_eval.results.statistics import wilson_interval
from mtnlg_eval.studies.operators import DISGUISES, OPERATORS, Operators, make_problem

if TYPE_CHECKING:
    from pathlib import Path

    from lm_eval.api.instance import Instance

EVERY = st.tuples(
    st.sampled_from(list(OPERATORS)), st.sampled_from(list(DISGUISES)), st.integers(0, 9), st.integers(0, 999)
)


def numbers(line: str) -> list[int]:
    return [int(word) for word in "".join(c if c.isdigit() else " " for c in line).split()]


@given(EVERY)
def test_examples_have_one_explanation(which: tuple[str, str, int, int]) -> None:
    problem = make_problem(*which)
    *examples, question = problem.prompt.split("\n")
    assert len(examples) == problem.shots
    explained = [numbers(line) for line in examples]
    for name, apply in OPERATORS.items():
        fits = all(apply(a, b) == c for a, b, c in explained)
        assert fits == (name == problem.operator or not examples)
    assert problem.answer == str(OPERATORS[problem.operator](*numbers(question)))
    assert len({tuple(row[:2]) for row in [*explained, numbers(question)]}) == problem.shots + 1


@given(EVERY)
def test_fewer_examples_are_a_suffix_of_the_prompt(which: tuple[str, str, int, int]) -> None:
    hidden, disguise, shots, number = which
    longer = make_problem(hidden, disguise, shots + 1, number).prompt
    assert longer.endswith("\n" + make_problem(*which).prompt)


def test_a_prompt_reads_as_documented() -> None:
    prompts = [make_problem("multiply", disguise, 0, 0).prompt for disguise in DISGUISES]
    a, b = numbers(prompts[0])
    assert prompts[0] == f"{a} # {b} ="
    assert [prompt.translate({48 + n: None for n in range(10)}) for prompt in prompts] == [
        " #  =",
        " &  =",
        " blick  =",
        "f(, ) =",
        " +  =",
    ]


class Adder:
    """Answers every problem as if its operator were addition."""

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return [f" {sum(numbers(request.args[0].rsplit(chr(10))[-1]))}" for request in requests]


def test_answers_are_counted_by_operator_disguise_and_shots(tmp_path: Path) -> None:
    lm: Any = Adder()
    identity = {"checkpoint": "c", "name": "n", "digest": "d", "tokens": 1}
    lm.model = SimpleNamespace(record=SimpleNamespace(identity=identity))
    study = Operators.measure(lm, tmp_path, shots=[1, 2], problems=5)
    cells = study.cells
    assert len(cells) == len(OPERATORS) * len(DISGUISES) * 2
    assert all(cell.right == (5 if cell.operator == "add" else 0) for cell in cells)
    lines = [json.loads(line) for line in (tmp_path / "operators.jsonl").read_text().splitlines()]
    assert len(lines) == 5 * len(cells)
    assert sum(line["right"] for line in lines) == 5 * len(DISGUISES) * 2
    (table,) = study.tables()
    assert [row[0] for row in table.rows] == [*OPERATORS, *DISGUISES, "all"]
    assert table.rows[0][1].startswith("100.0 (")


@pytest.mark.parametrize(("right", "total"), [(0, 1), (0, 20), (7, 20), (50, 50), (1, 3)])
def test_intervals_are_scipys(right: int, total: int) -> None:
    expected = binomtest(right, total).proportion_ci(0.95, "wilson")
    assert wilson_interval(right, total) == pytest.approx((expected.low, expected.high), abs=1e-12)
