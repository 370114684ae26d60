"""The sandbox of templates that strangers wrote: chat templates, and the prompts of lm-eval's YAML.

A template reaches neither Python's objects behind its values nor a way to change them (Jinja's immutable sandbox), and
one rendering has a budget, in characters: an iteration or macro costs `STEP` and the text and nodes of its body; a
call, a filter, an operator, a slice, what is compared and what is printed cost `STEP` and their size. What grows out of
arguments (``"x" * 10**9``) is refused before it is computed. A regular expression has no bound but the text that it
runs over.
"""

from __future__ import annotations

import re
from functools import lru_cache, wraps
from math import prod
from typing import TYPE_CHECKING, Any, cast

from jinja2 import StrictUndefined, Template, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from lm_eval.utils import regex_replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from jinja2.runtime import Context

BUDGET = 10_000_000
"""Of one rendering; the longest prompts have a tenth."""
STEP = 32
MOST = 1 << 28
"""Bytes that one call could make of its arguments, before its result is charged."""


class _Rendering(Template):
    def render(self, *args: Any, **kwargs: Any) -> str:  # noqa: ANN401  (Jinja's signature)
        cast("Sandbox", self.environment).spent = 0
        return super().render(*args, **kwargs)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with a budget for each rendering; what exceeds it raises ``SecurityError``."""

    intercepted_binops = frozenset({"+", "*", "%", "**"})
    template_class = _Rendering

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (Jinja's own)
        super().__init__(finalize=self._charged, **options)
        self.spent = 0
        self.globals.pop("lipsum")
        self.filters = {name: self._bounded(function) for name, function in self.filters.items()}
        self.filters |= {
            "budgeted": self._iterate,
            "joined": self._join,
            "charged": self._charged,
            "spent": self._spend,
        }
        self.compiled = lru_cache(maxsize=256)(super().from_string)

    def from_string(self, source: Any, *_: Any, **__: Any) -> Template:  # noqa: ANN401  (Jinja's signature)
        """The template of this text, compiled once."""
        return self.compiled(source)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        self.spent = 0
        tree: nodes.Template = _Budgeted().visit(super()._parse(source, name, filename))
        return tree

    def _charged(self, value: Any, cost: int = STEP) -> Any:  # noqa: ANN401
        self.spent += cost + _length(value)
        if self.spent > BUDGET:
            raise SecurityError(f"a template of more than {BUDGET:,} steps and characters")
        return value

    def _iterate(self, items: Iterable[Any], cost: int) -> Iterator[Any]:
        for item in items:
            self._charged(None, cost)
            yield item

    @pass_context  # so that it is not computed when the template is compiled
    def _spend(self, context: Context, value: str, cost: int) -> Any:  # noqa: ANN401
        del context
        return self._charged(value, cost)

    def _join(self, values: Iterable[Any]) -> Any:  # noqa: ANN401
        return "".join(self._charged(str(value)) for value in values)

    def _check(self, *arguments: object) -> None:
        if prod(max(1, _size(argument)) for argument in arguments) > MOST:
            raise SecurityError(f"a call that could make more than {MOST:,} characters")

    def _bounded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self._check(*args, *kwargs.values(), _width(function, args[0]))
            return self._charged(function(*args, **kwargs))

        return bounded

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """The result of an operator whose results can grow."""
        if operator == "**":
            self._check(_length(left), right)
        elif operator != "+" and not (isinstance(left, int | float) and isinstance(right, int | float)):
            self._check(left, right, _width(str.format, left))
        return self._charged(super().call_binop(context, operator, left, right))

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """The result of a call."""
        text = getattr(getattr(called, "__wrapped__", called), "__self__", None)
        self._check(text, *args, *kwargs.values(), _width(called, text))
        return self._charged(super().call(context, called, *args, **kwargs))


def _length(value: object) -> int:
    """Characters or items of a value, bits of a number."""
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, str | list | tuple | dict) else 0


def _size(value: object) -> int:
    """What a value can make of another: as many copies as a number says, a copy of itself between all characters."""
    if isinstance(value, list | tuple):
        return sum(max(1, _size(each)) for each in value)
    return abs(value) if isinstance(value, int) else _length(value)


def _width(function: object, text: object) -> int:
    """The largest number in a text that this function takes as a format, which may be a width."""
    if not isinstance(text, str) or "format" not in getattr(function, "__name__", ""):
        return 0
    return max(map(int, re.findall("[0-9]{1,12}", text)), default=0)


class _Budgeted(NodeTransformer):
    """Charges what a template does without a call: iterations, macros, ``a ~ b``, comparisons and slices."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802  (Jinja's)
        cost = _cost(node.body)
        self.generic_visit(node)
        node.iter = _filter(node.iter, "budgeted", nodes.Const(cost))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802
        cost = nodes.Const(_cost(node.body))
        self.generic_visit(node)
        node.body.insert(0, nodes.Output([_filter(nodes.Const(""), "spent", cost)], lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "joined")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filter(node.expr, "charged")
        for operand in node.ops:
            operand.expr = _filter(operand.expr, "charged")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter(node, "charged") if isinstance(node.arg, nodes.Slice) else node


def _filter(node: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


def _cost(body: list[nodes.Node]) -> int:
    """Of one run through these nodes, beside what is charged where it happens."""
    texts = sum(len(text.data) for part in body for text in part.find_all(nodes.TemplateData))
    return STEP + texts + sum(1 for part in body for _ in part.find_all(nodes.Node))


PROMPTS = Sandbox(undefined=StrictUndefined, keep_trailing_newline=True)
PROMPTS.filters["regex_replace"] = regex_replace
"""What lm-eval renders prompts with, but bounded."""
