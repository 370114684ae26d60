"""Hidden operators (paper.md 5.5): can a model infer from examples the arithmetic behind a strange sign?

    17 # 5 = 22
    31 # 4 = 35
    11 # 2 =                    add, disguised as #, two examples: 13 is right

The paper shows such prompts without scores; here they are generated, and greedy decoding up to the end of the line is
scored. A prompt is a function of (seed, operator, disguise, number). All operators differ on each of its pairs, so one
example is enough in principle. A prompt with fewer examples has the same question after the last of the examples.
"""

from __future__ import annotations

import json
import operator
from itertools import product
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from lm_eval.api.instance import Instance
from pydantic import Field

from mtnlg_eval.markup import DASH
from mtnlg_eval.records import Record
from mtnlg_eval.results.statistics import Estimate, wilson_interval
from mtnlg_eval.table import Table
from mtnlg_model.console import progress
from mtnlg_model.files import write_text

from .study import Study

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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
DISGUISES = {
    "hash": "{a} # {b} =",
    "ampersand": "{a} & {b} =",
    "word": "{a} blick {b} =",
    "function": "f({a}, {b}) =",
    "misleading": "{a} {sign} {b} =",
}
SIGNS = {"add": "-", "subtract": "*", "multiply": "+", "divide": "-"}
"""Signs in the misleading disguise: that of another operator; + for operators without a usual sign."""

SEED = 1234
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
    return DISGUISES[disguise].format(a=a, b=b, sign=SIGNS.get(hidden, "+"))


class Cell(Record):
    """Problems solved for one operator, disguise and number of shots, with Wilson's 95 % interval of their share."""

    operator: str
    disguise: str
    shots: int
    right: int
    problems: int = Field(ge=1)
    accuracy: Estimate


class Operators(Study):
    """The counts of every operator in every disguise."""

    TITLE = "Hidden operators"
    READING = (
        "17 # 5 = 22, 31 # 4 = 35, 11 # 2 = ? A model that infers the rule from the examples solves more problems with "
        "more examples; a model that goes by the sign does not."
    )

    cells: list[Cell] = Field(min_length=1)

    @classmethod
    def measure(  # type: ignore[override]  # its settings
        cls, lm: DecoderLM, out: Path | None, shots: Sequence[int], problems: int
    ) -> Operators:
        """Answer ``problems`` per operator, disguise and number of shots; writes them to ``out/operators.jsonl``."""
        posed = [make_problem(*settings) for settings in product(OPERATORS, DISGUISES, shots, range(problems))]
        options = {"until": ["\n"], "max_gen_toks": NEW_TOKENS}
        with progress("operators", len(posed), "problems") as lm.on_scored:
            answers = lm.generate_until(
                [Instance("generate_until", {}, (p.prompt, dict(options)), n) for n, p in enumerate(posed)]
            )
        lines = [
            problem._asdict() | {"given": answer.strip(), "right": answer.strip() == problem.answer}
            for problem, answer in zip(posed, answers, strict=True)
        ]
        if out is not None:
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            write_text(out / "operators.jsonl", text)
        cells = []
        for start in range(0, len(posed), problems):
            hidden, disguise, count, *_ = posed[start]
            right = sum(line["right"] for line in lines[start : start + problems])
            accuracy = Estimate(right / problems, *wilson_interval(right, problems))
            found = {"right": right, "problems": problems, "accuracy": accuracy}
            cells.append(Cell(operator=hidden, disguise=disguise, shots=count, **found))
        return cls(version=2, **lm.model.record.identity, cells=cells)

    def tables(self) -> list[Table]:
        """Percent solved at each number of examples, by operator, by disguise and in total."""
        shots = list(dict.fromkeys(cell.shots for cell in self.cells))

        def row(head: str, cells: Sequence[Cell]) -> list[str]:
            return [head, *(_solved([cell for cell in cells if cell.shots == number]) for number in shots)]

        rows = [
            row(name, [cell for cell in self.cells if getattr(cell, part) == name])
            for part in ("operator", "disguise")
            for name in dict.fromkeys(getattr(cell, part) for cell in self.cells)
        ]
        rows.append(row("all", self.cells))
        return [Table(["solved, % (95 %); examples:", *map(str, shots)], rows)]


def _solved(cells: Sequence[Cell]) -> str:
    right, total = sum(cell.right for cell in cells), sum(cell.problems for cell in cells)
    if not total:
        return DASH
    low, high = (100 * bound for bound in wilson_interval(right, total))
    return f"{100 * right / total:.1f} ({low:.0f}{DASH}{high:.0f})"


STUDY = Operators
