"""Hidden operators (paper.md 5.5): can a model tell from examples which arithmetic stands behind a strange sign?

    17 # 5 = 22
    31 # 4 = 35
    11 # 2 =                    add, disguised as #, two examples: 13 is right

The paper shows such prompts without scores; here they are made in numbers, and greedy decoding up to the end of the
line is scored. A prompt is a function of (seed, operator, disguise, number): every operator gives another result on
each of its pairs, so that one example is enough in principle, and a prompt with fewer examples is the same question
behind the last of them.
"""

from __future__ import annotations

import json
import operator
from itertools import groupby, product
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from lm_eval.api.instance import Instance

from mtnlg_eval.table import wilson
from mtnlg_eval.tasks.paper_task import SEED
from mtnlg_model.console import progress
from mtnlg_model.files import write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

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
"""Another operator's sign, for the misleading disguise; + where the operator has no sign of its own."""

DISGUISES = ("hash", "ampersand", "word", "function", "misleading")
NEW_TOKENS = 8


class Problem(NamedTuple):
    """One prompt and what stands behind it."""

    operator: str
    disguise: str
    shots: int
    number: int
    prompt: str
    answer: str


def problem(hidden: str, disguise: str, shots: int, number: int) -> Problem:
    """Problem ``number`` of an operator in a disguise, with so many examples before the question."""
    random = Random(f"{SEED}/operators/{hidden}/{disguise}/{number}")
    pairs: list[tuple[int, int]] = []
    while len(pairs) <= shots:
        if (pair := _pair(hidden, random)) not in pairs:
            pairs.append(pair)
    question, *examples = pairs
    apply = OPERATORS[hidden]
    lines = [f"{_shown(hidden, disguise, *pair)} {apply(*pair)}\n" for pair in reversed(examples)]
    prompt = "".join(lines) + _shown(hidden, disguise, *question)
    return Problem(hidden, disguise, shots, number, prompt, str(apply(*question)))


def _pair(hidden: str, random: Random) -> tuple[int, int]:
    """Two numbers on which all operators disagree; only division divides them evenly."""
    while True:
        b = random.randint(2, 12)
        a = b * random.randint(2, 12) if hidden == "divide" else random.randint(b + 1, 99)
        even = a % b == 0
        if even == (hidden == "divide") and len({apply(a, b) for apply in OPERATORS.values()}) == len(OPERATORS):
            return a, b


def _shown(hidden: str, disguise: str, a: int, b: int) -> str:
    match disguise:
        case "function":
            return f"f({a}, {b}) ="
        case "misleading":
            return f"{a} {SIGNS.get(hidden, '+')} {b} ="
        case _:
            return f"{a} { {'hash': '#', 'ampersand': '&', 'word': 'blick'}[disguise] } {b} ="


class Cell(NamedTuple):
    """How many problems of an operator in a disguise were solved; ``low`` to ``high`` is Wilson's 95 % interval."""

    operator: str
    disguise: str
    shots: int
    right: int
    problems: int
    accuracy: float
    low: float
    high: float


def measure(lm: DecoderLM, about: Mapping[str, Any], out: Path, shots: Sequence[int], problems: int) -> list[Cell]:
    """Ask every problem, keep the answers in ``out``: operators.jsonl a line a problem, operators.json the counts.

    ``about`` is what the counts say of whom was asked.

    Answers are kept in the model's store as they come, so that a killed run goes on.
    """
    asked = [
        problem(hidden, disguise, count, number)
        for hidden, disguise, count, number in product(OPERATORS, DISGUISES, shots, range(problems))
    ]
    answers = _answers(lm, asked)
    told = [p._asdict() | {"given": given, "right": given == p.answer} for p, given in zip(asked, answers, strict=True)]
    write_text(out / "operators.jsonl", "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in told))
    cells = list(_cells(told, shots, problems))
    write_json(out / "operators.json", {"version": 1, **about, "cells": [cell._asdict() for cell in cells]})
    return cells


def _answers(lm: DecoderLM, asked: Sequence[Problem]) -> list[str]:
    """The first line behind each prompt."""
    options = {"until": ["\n"], "max_gen_toks": NEW_TOKENS}
    with progress("operators", len(asked), "problems") as advance:
        lm.scored = advance
        requests = [Instance("generate_until", {}, (p.prompt, dict(options)), n) for n, p in enumerate(asked)]
        return [text.strip() for text in lm.generate_until(requests)]


def _cells(told: Sequence[dict[str, Any]], shots: Sequence[int], problems: int) -> Iterator[Cell]:
    rights = iter(line["right"] for line in told)
    for hidden, disguise, count in product(OPERATORS, DISGUISES, shots):
        right = sum(next(rights) for _ in range(problems))
        yield Cell(hidden, disguise, count, right, problems, right / problems, *wilson(right, problems))


def rows(cells: Sequence[Cell]) -> Iterator[tuple[str, ...]]:
    """The counts as rows of a table: percent right at each number of shots, by operator and disguise."""
    for (hidden, disguise), group in groupby(cells, key=lambda cell: cell[:2]):
        yield (f"{hidden}, {disguise}", *(f"{100 * cell.accuracy:.0f}" for cell in group))
