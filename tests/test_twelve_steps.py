"""docs/explanation/twelve-steps.md: links lead to lines, figures are the code's; test_quickstart.py compares output."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "extensions"))

from measurements import PICTURE, draw_picture  # noqa: E402
from repository import definition, line_of  # noqa: E402

from mtnlg_data.sources.corpus import CORPUS  # noqa: E402

PAGE = ROOT / "docs" / "explanation" / "twelve-steps.md"
TEXT = PAGE.read_text(encoding="utf-8")
REFERENCES = sorted(set(re.findall(r"\]\(([^)#\s]+\.(?:py|toml))#([\w.-]+)\)", TEXT)))
FIGURES = re.findall(r"^\| ([^|]+) \| ([\d.,e-]+)( B)? \| \[[^]]*\]\(([^)#]+)#([\w.-]+)\) \|$", TEXT, re.MULTILINE)
COMPUTED = {"data sets": float(len(CORPUS)), "their tokens, in billions": sum(dataset.tokens for dataset in CORPUS)}
LENGTH = re.compile(r"([\d.]+)([BM]?) tokens")
SCALE = {"": 1.0, "M": 1e6, "B": 1e9}


def value_of(path: Path, name: str) -> Any:  # noqa: ANN401  (whatever stands there)
    """A key of a recipe, or the literal of a module's definition: a constant, or a setting's default."""
    if path.suffix == ".toml":
        value: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        for part in name.split("."):
            value = value[part]
        return value
    node = definition(path, name)
    assert node is not None, f"{path}: no {name}"
    literal = getattr(node, "value", None)
    if isinstance(literal, ast.Call):
        literal = literal.args[0]
    return ast.literal_eval(literal) if isinstance(literal, ast.Constant) else node


def as_number(value: Any) -> float:  # noqa: ANN401  (as above)
    length = LENGTH.fullmatch(value) if isinstance(value, str) else None
    return float(length[1]) * SCALE[length[2]] if length else float(value)


@pytest.mark.parametrize(("path", "name"), REFERENCES)
def test_reference_leads_to_its_line(path: str, name: str) -> None:
    file = (PAGE.parent / path).resolve()
    assert value_of(file, name) is not None
    line = line_of(file, name)
    assert line
    assert {*re.findall(r"\w+", file.read_text("utf-8").splitlines()[line - 1])} & {*name.split(".")[1:], name}


@pytest.mark.parametrize(("what", "figure", "billions", "path", "name"), FIGURES)
def test_figure_matches_recipe_or_code(what: str, figure: str, billions: str, path: str, name: str) -> None:
    actual = COMPUTED.get(what) or as_number(value_of((PAGE.parent / path).resolve(), name))
    assert float(figure.replace(",", "")) * (1e9 if billions else 1.0) == pytest.approx(actual, rel=1e-3)


def test_there_are_twelve_steps_with_a_section_of_the_paper_each() -> None:
    steps = re.split(r"^## (\d+)\. ", TEXT, flags=re.MULTILINE)
    assert steps[1::2] == [str(number) for number in range(1, 13)]
    assert all("](../paper.md#" in step and "](../../packages/" in step for step in steps[2::2])
    assert len(FIGURES) > 30


def test_sections_of_the_paper_that_the_code_cites_exist() -> None:
    headings = re.findall(r"^#+ (\d(?:\.\d)?)", (ROOT / "docs" / "paper.md").read_text("utf-8"), re.MULTILINE)
    cited = re.compile(r"\bpaper(?:\.md)?(?: sections?)? (\d(?:\.\d)?)\b")
    files = [
        *ROOT.glob("packages/*/src/**/*.py"),
        *ROOT.glob("packages/*/src/**/*.yaml"),
        *ROOT.glob("benchmarks/*.py"),
    ]
    found = {section for file in files for section in cited.findall(file.read_text(encoding="utf-8"))}
    assert len(found) > 10
    assert found - set(headings) == set()


def test_chart_of_the_readme_is_drawn_from_the_results() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw_picture(), "run python docs/extensions/measurements.py"
