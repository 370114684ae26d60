"""docs/recipe-keys.md says what the recipes' classes say."""

from __future__ import annotations

import importlib
import tomllib
from typing import Any

import pytest
from markdown_it import MarkdownIt

from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import validate
from mtnlg_parallel.recipe import Recipe

recipe_keys = importlib.import_module("recipe_keys")


def test_the_table_of_recipe_keys_is_current() -> None:
    assert recipe_keys.PAGE.read_text(encoding="utf-8") == recipe_keys.page(), "run python tests/recipe_keys.py"


def test_globs_of_a_description_are_not_read_as_emphasis() -> None:
    page = MarkdownIt().enable("table").render(recipe_keys.PAGE.read_text(encoding="utf-8"))
    assert "own/**/*.jsonl.gz or s3://bucket/*.parquet." in page
    assert "<em>" not in page


def test_every_key_is_explained() -> None:
    assert recipe_keys.undocumented() == []


def test_keys_that_run_code_of_others_or_trust_their_files_say_so() -> None:
    keys = [line for line in recipe_keys.page().splitlines() if line.startswith("| `setup`") or "fastText .bin" in line]
    assert len(keys) == 4
    assert all("runs as you" in line or "from people whom you trust" in line for line in keys)


def test_a_key_that_no_recipe_has_is_named() -> None:
    shown = {
        "exact": {"kindz": []},
        "sources": {"crawl": {"weight": 1.0, "weigth": 1.0}},
        "slurm": {"sbatch": {"x": 1}},
    }
    assert recipe_keys.unknown(shown) == ["exact.kindz", "sources.crawl.weigth"]


def mistakes(path: tuple[str, ...], value: object) -> list[str]:
    """The lines about a recipe in which the key at ``path`` has this value."""
    content: dict[str, Any] = {"model": {"preset": "tiny"}, "train": {"samples": 8, "batch": 8, "lr": 1e-3}}
    table = content
    for part in path[:-1]:
        inner = table.setdefault(part, [{"at": 1}] if part in {"change", "by_layer"} else {})
        table = inner[0] if isinstance(inner, list) else inner
    table[path[-1]] = value
    try:
        validate(content, Recipe, "train.toml")
    except UsageFailure as failure:
        return str(failure).splitlines()
    return []


@pytest.mark.parametrize("value", ["word", 3.5, True, [3, 5], [0.9], ["a"], [[True]], {"a": 1}], ids=str)
def test_value_of_a_wrong_type_has_one_line_per_mistake_and_a_valid_example(value: object) -> None:
    """At every key of train.toml."""
    for leaf in recipe_keys.leaves(recipe_keys.TrainRecipe):
        lines = mistakes(leaf.path, value)
        assert len({*lines}) == len(lines)
        for line in lines:
            assert line.startswith("train.toml: ")
            assert "tuple" not in line
            example = line.partition(", as in ")[2]
            if example.startswith(f"{leaf.path[-1]} = "):
                again = mistakes(leaf.path, tomllib.loads(example)[leaf.path[-1]])
                assert not [other for other in again if f"{leaf.path[-1]} = " in other and ", as in" in other]
