"""The sandbox of templates that strangers wrote, such as a model's chat template.

A template reaches neither Python's objects behind its values nor a way to change them (Jinja's immutable sandbox), and
one rendering has a budget, in characters: each value that a template names or computes, constants and text included,
costs `STEP` and its size. What grows out of arguments (``"x" * 10**9``) is refused before it is computed. A regular
expression has no bound but the text that it runs over.

`chat_environment` has what chat templates expect. mtnlg_data and mtnlg_model have a copy of this file each, since
neither may import the other; a test keeps them equal.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from functools import lru_cache, partial, wraps
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, cast

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2.parser import Parser
    from jinja2.runtime import Context

BUDGET = 10_000_000
"""Characters per rendering; the longest prompts use a tenth."""
STEP = 32
MOST = 1 << 28
"""Bytes that one call could make of its arguments, before its result is charged."""

MARKS = ("\ue0f0\ue0f1", "\ue0f1\ue0f0")
"""Private-use characters around the parts that a template marks as an answer."""


class _Rendering(Template):
    def render(self, *args: Any, **kwargs: Any) -> str:  # noqa: ANN401  (Jinja's signature)
        cast("Sandbox", self.environment).spent = 0
        return super().render(*args, **kwargs)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with a budget for each rendering; what exceeds it raises ``SecurityError``."""

    intercepted_binops = frozenset({"*", "%", "**"})
    template_class = _Rendering

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (Jinja's own)
        super().__init__(**options)
        self.spent = 0
        self.globals.pop("lipsum")
        self.filters = {name: self._bounded(function) for name, function in self.filters.items()}
        self.filters["charged"] = self._charged
        self.compiled = lru_cache(maxsize=256)(super().from_string)

    def from_string(self, source: Any, *_: Any, **__: Any) -> Template:  # noqa: ANN401  (Jinja's signature)
        """The template of this text, compiled once."""
        return self.compiled(source)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Charging().visit(super()._parse(source, name, filename))
        return tree

    @pass_context  # so that it is not computed when the template is compiled
    def _charged(self, context: Context, value: Any) -> Any:  # noqa: ANN401
        del context
        self.spent += STEP + _length(value)
        if self.spent > BUDGET:
            raise SecurityError(f"more than {BUDGET:,} steps and characters")
        return value

    def _check(self, *arguments: object) -> None:
        if prod(max(1, _size(argument)) for argument in arguments) > MOST:
            raise SecurityError(f"a call that could make more than {MOST:,} characters")

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self._check(*args, *kwargs.values(), _width(function, args[0]))
            return function(*args, **kwargs)

        return bounded

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """The result of an operator whose results can grow."""
        if operator == "**":
            self._check(_length(left), right)
        elif not (isinstance(left, int | float) and isinstance(right, int | float)):
            self._check(left, right, _width(str.format, left))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The result of a call."""
        text = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        self._check(text, *args, *kwargs.values(), _width(called, text))
        return super().call(context, called, *args, **kwargs)


def _length(value: object) -> int:
    """Characters or items of a value, bits of a number."""
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, str | list | tuple | dict | range) else 0


def _size(value: object) -> int:
    """How many times a value can multiply another: a number, or the length of a text put between all characters."""
    if isinstance(value, list | tuple):
        return sum(max(1, _size(each)) for each in value)
    return abs(value) if isinstance(value, int) else _length(value)


def _width(function: object, text: object) -> int:
    """The largest number in a text that this function takes as a format, which may be a width."""
    if not isinstance(text, str) or "format" not in getattr(function, "__name__", ""):
        return 0
    return max(map(int, re.findall("[0-9]{1,12}", text)), default=0)


class _Charging(NodeTransformer):
    """Has every value charged, where it is named or computed."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:  # noqa: ANN401
        super().generic_visit(node, *args, **kwargs)
        if isinstance(node, nodes.CallBlock):  # Jinja wants the call itself
            node.call = cast("nodes.Call", cast("nodes.Filter", node.call).node)
        stored = getattr(node, "ctx", "load") != "load" or isinstance(node, nodes.NSRef | nodes.Slice)
        if stored or not isinstance(node, nodes.Expr):
            return node
        return nodes.Filter(node, "charged", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """``{% generation %}``, which marks an answer for training: by `MARKS`, or by nothing in a prompt."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's)
    marks = ("", "")

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        begin, end = (nodes.Output([nodes.TemplateData(mark, lineno=line)], lineno=line) for mark in self.marks)
        return [begin, *parser.parse_statements(("name:endgeneration",), drop_needle=True), end]


class _Marking(_Generation):
    marks = MARKS


def chat_environment(*, marked: bool = False) -> Sandbox:
    """The environment that templates expect: trimmed blocks, loop controls, plain JSON, a way to refuse a chat.

    If ``marked``, `MARKS` stand around what is within ``{% generation %}``.
    """
    extensions = [_Marking if marked else _Generation, "jinja2.ext.loopcontrols"]
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().astimezone().strftime(form),
    }
    return environment


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
