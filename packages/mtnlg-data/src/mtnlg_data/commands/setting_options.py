"""Settings as command-line options: name, value, default, unit and the paper's value of each, from its field.

Fields are made by ``settings.setting``.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

from mtnlg_data.console import UsageFailure
from mtnlg_data.settings import note
from mtnlg_data.transfer.urls import FilePath

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from mtnlg_data.settings import Settings

METAVARS: dict[Any, str] = {int: "NUMBER", float: "NUMBER", FilePath: "PATH", str: "TEXT"}


class Leaf(NamedTuple):
    """A setting: the keys that lead to it, and its field."""

    path: tuple[str, ...]
    field: FieldInfo

    @property
    def option(self) -> str:
        """The name of its option; a flag is named after the value that is not the default."""
        prefix = "--no-" if self.field.default is True else "--"
        return self.note("option") or prefix + "-".join(self.path).replace("_", "-")

    @property
    def type(self) -> Any:  # noqa: ANN401  (a type, such as int or list[str])
        """Its type, without None."""
        options = [option for option in get_args(self.field.annotation) if option is not type(None)]
        return options[0] if type(None) in get_args(self.field.annotation) else self.field.annotation

    @property
    def metavar(self) -> str:
        """The placeholder for its value: the unit of a number, or the kind of value."""
        if self.type is bool:
            return ""
        arguments = () if self.type is FilePath else get_args(self.type)
        if get_origin(self.type) is Literal:
            return "NAME"
        unit = self.note("unit").upper().replace(" ", "-")
        if get_origin(self.type) is dict:
            return f"NAME={unit or METAVARS[arguments[1]]},..."
        return f"{unit or METAVARS.get(arguments[0], 'NAME')},..." if arguments else unit or METAVARS[self.type]

    @property
    def default(self) -> str:
        """The default as text, as the option takes it; empty where there is none."""
        return _text(self.field.get_default(call_default_factory=True)) if not self.field.is_required() else ""

    @property
    def help(self) -> str:
        """Its description, choices, default and the paper's value."""
        choices = ", ".join(map(str, get_args(self.type))) if get_origin(self.type) is Literal else ""
        figures = {"one of": choices, "default": self.default, "paper": self.note("paper")}
        limits = "; ".join(f"{name} {value}" for name, value in figures.items() if value)
        return " ".join(filter(None, (self.field.description, f"({limits})" if limits else "")))

    def note(self, name: str) -> str:
        """The ``unit``, ``paper`` or ``option`` of a `setting`."""
        return note(self.field, name)

    @property
    def is_list(self) -> bool:
        """Whether it takes several values."""
        return get_origin(self.type) in {list, tuple}

    def parse(self, text: str | bool) -> Any:  # noqa: ANN401  (pydantic validates it)
        """The value of the option, for pydantic to convert: elements of lists and tables are separated by commas."""
        if isinstance(text, bool):
            return not self.field.default
        elements = [element for element in text.split(",") if element]
        if get_origin(self.type) is dict:
            return dict(element.partition("=")[::2] for element in elements)
        return elements if self.is_list else text


def _text(value: Any) -> str:  # noqa: ANN401  (the default of a setting)
    if isinstance(value, dict):
        return ",".join(f"{name}={number}" for name, number in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return "" if value is None or value is False else str(value)


def leaves(schema: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Every setting of a class, those of nested classes included."""
    from pydantic import BaseModel  # noqa: PLC0415

    for name, field in schema.model_fields.items():
        leaf = Leaf((*path, name), field)
        if inspect.isclass(leaf.type) and issubclass(leaf.type, BaseModel):
            yield from leaves(leaf.type, leaf.path)
        else:
            yield leaf


def parse_settings(schema: type[Settings], options: Mapping[Leaf, str | bool]) -> Settings:
    """Settings from the options that were given. Raises ``UsageFailure`` with a line for every mistake."""
    from pydantic import ValidationError  # noqa: PLC0415

    content: dict[str, Any] = {}
    for leaf, value in options.items():
        table = content
        for part in leaf.path[:-1]:
            table = table.setdefault(part, {})
        table[leaf.path[-1]] = leaf.parse(value)
    try:
        return schema.model_validate(content, strict=False)
    except ValidationError as error:
        lines = [_explain(detail["loc"], detail["msg"], options) for detail in error.errors(include_url=False)]
        raise UsageFailure("\n".join(dict.fromkeys(lines))) from None


def _explain(place: Sequence[int | str], message: str, options: Mapping[Leaf, str | bool]) -> str:
    message = message.removeprefix("Value error, ")
    leaf = next((leaf for leaf in options if leaf.path == tuple(place[: len(leaf.path)])), None)
    return f"{leaf.option} {options[leaf]}: {message}" if leaf else message
