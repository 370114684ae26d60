"""TOML recipes read into frozen pydantic models; each mistake is reported in one line: file, key, value, valid choices.

``mtnlg_data`` and ``mtnlg_model`` must not import one another, so each has a copy of this file; a test keeps the copies
byte-equal.
"""

from __future__ import annotations

import json
import tomllib
from contextlib import suppress
from difflib import get_close_matches
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model, field_validator
from pydantic.fields import FieldInfo

from .console import Failure, UsageFailure
from .files import read_small

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


INTEGERS = 1 << 63  # bound of either sign, in TOML and in the code that computes with them
MISTAKES = 20  # of one recipe that are listed
LIST_ERRORS = {"list_type", "tuple_type", "missing", "too_long", "too_short"}


class Settings(BaseModel):
    """Base of all recipe sections: frozen, strict, no unknown keys, integers of 64 bits as TOML has them."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _check_integers(cls, value: Any) -> Any:  # noqa: ANN401  (any field)
        numbers = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else (value,)
        for number in numbers:
            if isinstance(number, int) and not -INTEGERS <= number < INTEGERS:
                raise ValueError(f"the integer {number} does not fit in 64 bits")
        return value


S = TypeVar("S", bound=Settings)


def setting(
    default: Any,  # noqa: ANN401
    description: str,
    *,
    unit: str = "",
    paper: str = "",
    option: str = "",
    keyed: bool = True,
    **constraints: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """A field and its documentation, from which its command-line option and its row in docs/recipe-keys.md are made.

    ``unit`` is what a number counts, ``paper`` the value that the paper used, where it states one; ``option`` the name
    of its option, where that is not the field's. A field that is not ``keyed`` changes no byte of any output.
    """
    notes: Any = {"unit": unit, "paper": paper, "option": option, "keyed": keyed}
    return Field(default, description=description, json_schema_extra=notes, **constraints)


def note(field: FieldInfo, name: str) -> str:
    """The ``unit``, ``paper`` or ``option`` of a `setting`; empty if it has none."""
    extra = field.json_schema_extra
    return str(extra.get(name, "")) if isinstance(extra, dict) else ""


def is_keyed(field: FieldInfo) -> bool:
    """Whether an output's bytes may depend on the field."""
    return note(field, "keyed") != "False"


def toml_content(path: Path, kind: str) -> dict[str, Any]:
    """Content of a TOML file. Raises ``Failure`` if there is no such ``kind``, ``UsageFailure`` if it is not TOML."""
    try:
        return tomllib.loads(read_small(path, follow=True).decode("utf-8-sig"))
    except FileNotFoundError:
        raise Failure(f"{path}: no such {kind}") from None
    except ValueError as error:  # TOML, UTF-8, or an integer of thousands of digits
        raise UsageFailure(f"{path}: not TOML: {error}") from None


def read_toml(recipe: Path, name: str, overrides: Sequence[str] = ()) -> tuple[Path, dict[str, Any]]:
    """Path and content of ``recipe``, a TOML file or a folder that holds ``name``, with ``key=value`` overrides.

    Raises ``Failure`` if the file does not exist, ``UsageFailure`` if it is not TOML or an override is none.
    """
    path = recipe / name if recipe.is_dir() else recipe
    content = toml_content(path, "recipe")
    for each in overrides:
        override(content, each)
    return path, content


def validate(content: Mapping[str, Any], schema: type[S], place: str) -> S:
    """``content`` as a ``schema``. Raises ``UsageFailure`` with one line per mistake, each beginning with ``place``."""
    try:
        # JSON mode, in which strict pydantic accepts a list for a tuple and a string for a path or an enumeration.
        return schema.model_validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
        lines = [_explain(mistake, content, schema, place) for mistake in mistakes[:MISTAKES]]
        lines += [f"{place}: {len(mistakes) - MISTAKES} more mistakes"] * (len(mistakes) > MISTAKES)
        raise UsageFailure("\n".join(dict.fromkeys(lines))) from None
    except ValueError as error:  # json's, of an integer of thousands of digits
        raise UsageFailure(f"{place}: {error}") from None


def partial_settings(schema: type[Settings]) -> type[Settings]:
    """The same settings, all optional."""
    fields: dict[str, Any] = {
        name: (field.annotation, FieldInfo.merge_field_infos(field, default=None))
        for name, field in schema.model_fields.items()
    }
    return create_model(f"Partial{schema.__name__}", __base__=Settings, **fields)


def dump(settings: Settings) -> str:
    """The settings as TOML with every default written out; `read_toml` and `validate` read back an equal object."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True, by_alias=True))


def override(content: dict[str, Any], written: str) -> None:
    """Set a value of ``content`` by ``key=value``. Raises ``UsageFailure`` if ``written`` is none."""
    key, equals, text = written.partition("=")
    if not equals or not all(parts := key.strip().split(".")):
        raise UsageFailure(f"--set {written}: expected key=value, such as table.key=3")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text
    table = content
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UsageFailure(f"--set {written}: {part} is not a table")
    table[parts[-1]] = value


def did_you_mean(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The part of a message that offers the nearest of these names; empty if none is near."""
    near = get_close_matches(name, names, n=1, cutoff=cutoff)
    return f"did you mean {near[0]}? " if near else ""


def _explain(detail: Any, content: Any, schema: type[BaseModel], place: str) -> str:  # noqa: ANN401  (pydantic's ErrorDetails)
    path = [part for part in detail["loc"] if not str(part).startswith("function-")]
    key = ".".join(str(part) for part in path)
    if detail["type"] == "extra_forbidden":
        models = _models_at(schema, path[:-1])
        valid = sorted({field.alias or name for model in models for name, field in model.model_fields.items()})
        hint = did_you_mean(str(path[-1]), valid)
        return f"{place}: {key} = {detail['input']!r:.200}: unknown key; {hint}valid keys: {', '.join(valid)}"
    if detail["type"] == "missing" and isinstance(path[-1], str):
        return f"{place}: {key}: required key is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "literal_error":
        message = message.replace("True", "true").replace("False", "false")  # as TOML has them
    message = message.replace("should be a valid boolean", "should be true or false")
    depth = max((number for number, part in enumerate(path, 1) if isinstance(part, str)), default=0)
    shown = "" if isinstance(detail["input"], dict) else f" = {detail['input']!r:.200}"
    if detail["type"] in LIST_ERRORS or (depth < len(path) and detail["type"].endswith("_type")):
        key = ".".join(map(str, path[:depth]))
        written = content
        for part in path[:depth]:
            with suppress(LookupError, TypeError):  # the name of a class among several
                written = written[part]
        shown, message = f" = {written!r:.200}", f"write a list{_example(path[:depth], schema, written)}"
    return f"{place}: {key}{shown}: {message}" if key else f"{place}: {message}"


def _example(path: Sequence[int | str], schema: type[BaseModel], written: Any) -> str:  # noqa: ANN401  (what the file holds)
    """A valid value of the list at ``path``, as text: ``written`` in a list, the default, or one of its types."""
    key = str(path[-1])
    for model in _models_at(schema, path[:-1]):
        if field := model.model_fields.get(key):
            kind = TypeAdapter(field.annotation, config=ConfigDict(strict=True))
            for example in filter(None, ([written], field.default, _sample(field.annotation))):
                text = json.dumps(example, default=str, ensure_ascii=False)
                with suppress(ValidationError):
                    kind.validate_json(text)
                    return f", as in {key} = {text}"
    return ""


def _sample(annotation: Any, number: int = 1) -> Any:  # noqa: ANN401  (any annotation)
    """A value of a type, as JSON."""
    arguments = [argument for argument in get_args(annotation) if argument not in {NoneType, ...}]
    if get_origin(annotation) in {tuple, list}:
        return [_sample(argument, count) for count, argument in enumerate(arguments, 1)]
    if arguments:
        return _sample(arguments[0], number)
    return {int: number, float: number / 10}.get(annotation, {} if _models_within(annotation) else "name")


def _models_at(schema: type[BaseModel], path: Sequence[int | str]) -> list[Any]:
    """Models of the table at ``path``."""
    models: list[Any] = [schema]
    for part in path:
        if isinstance(part, int):
            continue
        inner = [m.model_fields[part].annotation for m in models if part in getattr(m, "model_fields", {})]
        within = [leaf for annotation in inner for leaf in _models_within(annotation)]
        models = within or [m for m in models if m.__name__ == part] or models
    return models


def _models_within(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401  (any annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [leaf for argument in get_args(annotation) for leaf in _models_within(argument)]
