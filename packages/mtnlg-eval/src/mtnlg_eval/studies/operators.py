"""Hidden operators (paper.md 5.5): can a model infer from examples the arithmetic behind a strange sign?

    17 # 5 = 22
    31 # 4 = 35
    11 # 2 =                    add, disguised as #, two examples: 13 is right

The paper shows such prompts without scores; here they are generated, and greedy decoding up to the end of the line is
scored. A prompt is a function of (seed, operator, disguise, number). All operators differ on each of its pairs, so one
example is enough in principle. The prompt with fewer examples is the same question after the last of them.
"""

from __future__ import annotations

import json
import operator
from itertools import groupby, product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from lm_eval.api.instance import Instance

from mtnlg_eval.evaluation import model_on_ranks, silence_lm_eval
from mtnlg_eval.results.statistics import wilson_interval
from mtnlg_model.console import progress
from mtnlg_model.files import write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mtnlg_eval.scoring.decoder_lm import DecoderLM

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.floordiv,
    "remainder": operator.mod,
    "maximum": max,
    "minimum": min,
    "join": lambda a, b: int(f"{a}{b}"),
}
SIGNS = {"add": "-", "subtract": "*", "multiply": "+", "divide": "-"}
"""For the misleading disguise: the sign of another operator; + for operators without a sign of their own."""

SEED = 1234
DISGUISES = ("hash", "ampersand", "word", "function", "misleading")
NEW_TOKENS = 8


class Problem(NamedTuple):
    """One prompt, its answer and how it was made."""

    operator: str
    disguise: str
    shots: int
    number: int
    prompt: str
    answer: str


def make_problem(hidden: str, disguise: str, shots: int, number: int) -> Problem:
    """Problem ``number`` of an operator in a disguise, with ``shots`` examples before the question."""
    random = Random(f"{SEED}/operators/{hidden}/{disguise}/{number}")
    pairs: list[tuple[int, int]] = []
    while len(pairs) <= shots:
        if (pair := _draw_pair(hidden, random)) not in pairs:
            pairs.append(pair)
    question, *examples = pairs
    apply = OPERATORS[hidden]
    lines = [f"{_format_term(hidden, disguise, *pair)} {apply(*pair)}\n" for pair in reversed(examples)]
    prompt = "".join(lines) + _format_term(hidden, disguise, *question)
    return Problem(hidden, disguise, shots, number, prompt, str(apply(*question)))


def _draw_pair(hidden: str, random: Random) -> tuple[int, int]:
    """Two numbers on which all operators disagree; the first is a multiple of the second only for division."""
    while True:
        b = random.randint(2, 12)
        a = b * random.randint(2, 12) if hidden == "divide" else random.randint(b + 1, 99)
        even = a % b == 0
        if even == (hidden == "divide") and len({apply(a, b) for apply in OPERATORS.values()}) == len(OPERATORS):
            return a, b


def _format_term(hidden: str, disguise: str, a: int, b: int) -> str:
    match disguise:
        case "function":
            return f"f({a}, {b}) ="
        case "misleading":
            return f"{a} {SIGNS.get(hidden, '+')} {b} ="
        case _:
            return f"{a} { {'hash': '#', 'ampersand': '&', 'word': 'blick'}[disguise] } {b} ="


class Cell(NamedTuple):
    """Problems solved for one operator, disguise and number of shots; ``low`` to ``high`` is Wilson's 95 % interval."""

    operator: str
    disguise: str
    shots: int
    right: int
    problems: int
    accuracy: float
    low: float
    high: float


def study_operators(
    checkpoint: str, out: Path | str, shots: Sequence[int], problems: int, model_args: Mapping[str, Any]
) -> list[Cell] | None:
    """Answer every problem; write ``out/operators.jsonl`` (one problem per line) and ``out/operators.json`` (counts).

    ``problems`` is their number per operator, disguise and number of shots. Every answer goes to the model's store at
    once, so a killed run resumes. Returns None on a rank other than 0.
    """
    silence_lm_eval()
    from mtnlg_eval.scoring.open_model import ModelOptions, open_model  # noqa: PLC0415  (slow to import)

    out, options = Path(out), ModelOptions.parse(model_args)
    model = open_model(checkpoint, options)
    arguments = {
        "checkpoint": checkpoint,
        "out": str(out),
        "shots": shots,
        "problems": problems,
        "model_args": model_args,
    }
    with model_on_ranks(model, options, out, f"{__name__}:study_operators", arguments) as (lm, leads):
        cells = run_operators_study(lm, model.identity, out if leads else None, shots, problems)
    return cells if leads else None


def run_operators_study(
    lm: DecoderLM, identity: Mapping[str, Any], out: Path | None, shots: Sequence[int], problems: int
) -> list[Cell]:
    """The study with a model that is loaded; ``identity`` names it in what is written to ``out``."""
    posed = [make_problem(*settings) for settings in product(OPERATORS, DISGUISES, shots, range(problems))]
    lines = [
        problem._asdict() | {"given": answer, "right": answer == problem.answer}
        for problem, answer in zip(posed, _generate_answers(lm, posed), strict=True)
    ]
    cells = list(_count_cells([line["right"] for line in lines], shots, problems))
    if out is None:
        return cells
    write_text(out / "operators.jsonl", "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
    write_json(out / "operators.json", {"version": 1, **identity, "cells": [cell._asdict() for cell in cells]})
    return cells


def _generate_answers(lm: DecoderLM, problems: Sequence[Problem]) -> list[str]:
    """The first generated line of each problem."""
    options = {"until": ["\n"], "max_gen_toks": NEW_TOKENS}
    with progress("operators", len(problems), "problems") as advance:
        lm.on_scored = advance
        requests = [Instance("generate_until", {}, (p.prompt, dict(options)), n) for n, p in enumerate(problems)]
        return [answer.strip() for answer in lm.generate_until(requests)]


def _count_cells(rights: Sequence[bool], shots: Sequence[int], problems: int) -> Iterator[Cell]:
    for n, (hidden, disguise, count) in enumerate(product(OPERATORS, DISGUISES, shots)):
        right = sum(rights[n * problems : (n + 1) * problems])
        yield Cell(hidden, disguise, count, right, problems, right / problems, *wilson_interval(right, problems))


def table_rows(cells: Sequence[Cell]) -> Iterator[tuple[str, ...]]:
    """Rows of a table: operator and disguise, then percent solved at each number of shots."""
    for (hidden, disguise), group in groupby(cells, key=lambda cell: cell[:2]):
        yield (f"{hidden}, {disguise}", *(f"{100 * cell.accuracy:.0f}" for cell in group))
