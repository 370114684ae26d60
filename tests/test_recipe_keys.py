"""docs/recipe-keys.md says what the recipes' classes say."""

from __future__ import annotations

import importlib

from markdown_it import MarkdownIt

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
