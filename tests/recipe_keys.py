"""docs/recipe-keys.md: every key of data.toml and train.toml, from the classes that read them.

``python tests/recipe_keys.py`` writes it; ``test_recipe_keys.py`` fails while it is out of date.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel, create_model

from mtnlg_data.commands.setting_options import Leaf
from mtnlg_data.recipe import Source, own_factories, recipe_schema
from mtnlg_data.sources.reader import all_readers
from mtnlg_parallel.recipe import Recipe as TrainRecipe

if TYPE_CHECKING:
    from collections.abc import Iterator

FACTORIES = own_factories()
TOP_LEVEL: dict[str, Any] = {
    key: (field.annotation, field)
    for cls, *_ in FACTORIES.values()
    for key, field in cls.Settings.model_fields.items()
    if key in cls.top_level
}
DataRecipe = create_model("DataRecipe", __base__=recipe_schema(FACTORIES, FACTORIES), **TOP_LEVEL)
PAGE = Path(__file__).parents[1] / "docs" / "recipe-keys.md"
HEAD = """# Keys of the recipes

Every key of `data.toml` (mtnlg-data) and `train.toml` (mtnlg-parallel). The settings of a stage are also the options of
its command: `deduplicate.shingle_length` is `mtnlg-data dedup --shingle-length`. Made by `tests/recipe_keys.py` from
the classes that read the recipes. A key without a default is required, except where its text says otherwise.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_section("data.toml", DataRecipe), *_section("train.toml", TrainRecipe)])


def _section(name: str, schema: type[BaseModel]) -> Iterator[str]:
    yield f"## {name}\n"
    for table, rows in _tables(schema, ()):
        yield f"### `{table}`\n" if table else "### Keys outside any table\n"
        yield "| key | what it does | default | type | unit | paper |"
        yield "|---|---|---|---|---|---|"
        for leaf in rows:
            default = "False" if leaf.field.default is False else leaf.default
            what = (leaf.field.description or "").replace("*", r"\*")
            cells = (f"`{leaf.path[-1]}`", what, _code(default))
            yield _row(*cells, f"`{_type(leaf.field.annotation)}`", leaf.note("unit"), leaf.note("paper"))
        yield ""


def _tables(schema: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, list[Leaf]]]:
    """The keys of each table of a recipe, the outer tables first; ``NAME`` stands for a key of one's own."""
    own: list[Leaf] = []
    inner: list[tuple[str, list[Leaf]]] = []
    for name, field in schema.model_fields.items():
        leaf = Leaf((*path, field.alias or name), field)
        if _is_model(leaf.type):
            inner += _tables(leaf.type, leaf.path)
        elif get_origin(leaf.type) is dict and _is_model(get_args(leaf.type)[1]):
            inner += _tables(get_args(leaf.type)[1], (*leaf.path, "NAME"))
        elif get_origin(leaf.type) is tuple and _is_model(get_args(leaf.type)[0]):
            inner += _tables(get_args(leaf.type)[0], leaf.path)
        else:
            own.append(leaf)
    if issubclass(schema, Source):
        fields = {name: field for reader in all_readers().values() for name, field in reader.model_fields.items()}
        own += [Leaf((*path, name), field) for name, field in fields.items()]
    return iter([*([(".".join(path), own)] if own else []), *inner])


def _is_model(annotation: Any) -> bool:  # noqa: ANN401  (any annotation)
    return inspect.isclass(annotation) and issubclass(annotation, BaseModel)


def _type(annotation: Any) -> str:  # noqa: ANN401  (any annotation)
    """A type as TOML's reader would say it."""
    arguments = [argument for argument in get_args(annotation) if argument not in {NoneType, ...}]
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin in {list, tuple}:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"table of {_type(arguments[1])}"
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    if arguments:
        return " or ".join(dict.fromkeys(map(_type, arguments)))
    return {"str": "string", "Path": "path"}.get(name := getattr(annotation, "__name__", str(annotation)), name)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def leaves(*recipes: type[BaseModel]) -> list[Leaf]:
    """Every key of these recipes, or of both."""
    return [leaf for recipe in recipes or (DataRecipe, TrainRecipe) for _, own in _tables(recipe, ()) for leaf in own]


def unknown(table: dict[str, Any], above: tuple[str, ...] = ()) -> list[str]:
    """Keys of a recipe, or of a part of one, that neither kind has."""
    known = [("model", "preset"), *(leaf.path for leaf in leaves())]  # a preset is replaced before the classes see it
    found = []
    for name, value in table.items():
        path = (*above, name)
        same_depth = (key for key in known if len(key) == len(path))
        if isinstance(value, dict) and ("use" in value or ":" in str(value.get("kind", ""))):
            continue  # a step or a reader of the user's own, with keys of its own
        if any(all(part in {own, "NAME"} for own, part in zip(path, key, strict=True)) for key in same_depth):
            continue
        tables = value if isinstance(value, list) and value else [value]
        found += (
            [each for table in tables for each in unknown(table, path)]
            if isinstance(tables[0], dict)
            else [".".join(path)]
        )
    return found


def undocumented() -> list[str]:
    """Keys without a description."""
    return [".".join(leaf.path) for leaf in leaves() if not leaf.field.description]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
