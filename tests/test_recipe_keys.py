"""docs/recipe-keys.md says what the recipes' classes say."""

from __future__ import annotations

import importlib

recipe_keys = importlib.import_module("recipe_keys")


def test_the_table_of_recipe_keys_is_current() -> None:
    assert recipe_keys.PAGE.read_text(encoding="utf-8") == recipe_keys.page(), "run python tests/recipe_keys.py"


def test_every_key_is_explained() -> None:
    assert recipe_keys.undocumented() == []
