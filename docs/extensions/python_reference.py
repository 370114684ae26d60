"""Directive ``public-names PACKAGE``: the reference of a package's public names, from their docstrings.

The names are those of the stub ``__init__.pyi``, which also says where each is defined: a constant's docstring stands
only there. Classes of settings show their keys with the descriptions that the recipes' page has.
"""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docutils import nodes
    from sphinx.application import Sphinx


def public_names(package: str) -> Iterator[tuple[str, str]]:
    """Each public name with the module that defines it, in alphabetical order."""
    stub = Path(str(import_module(package).__file__)).with_suffix(".pyi")
    for node in ast.parse(stub.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{package}.{node.module}") for alias in node.names)


def directives(package: str) -> Iterator[str]:
    """Lines of reStructuredText: one of autodoc's directives for each name."""
    for name, module in sorted(public_names(package), key=lambda pair: pair[0].lower()):
        value = getattr(import_module(package), name)
        if inspect.isclass(value):
            yield f".. autoclass:: {package}.{name}"
        elif callable(value):
            yield f".. autofunction:: {package}.{name}"
        else:
            yield from (f".. autodata:: {module}.{name}", "   :no-value:")
        yield ""


class PublicNames(SphinxDirective):
    """The entries of `directives`, parsed as reStructuredText, which docstrings are written in."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Wrap the lines for MyST, whose pages are Markdown."""
        lines = ["```{eval-rst}", *directives(self.arguments[0]), "```"]
        return self.parse_text_to_nodes("\n".join(lines))


def settings_signature(*event: Any) -> tuple[str, str] | None:  # noqa: ANN401  (what Sphinx passes)
    """Leave a settings class without a signature: its keys follow, with their descriptions."""
    return ("", "") if is_settings(event[3]) else None


def settings_keys(*event: Any) -> None:  # noqa: ANN401  (what Sphinx passes)
    """Add the keys of a settings class to its docstring."""
    value, lines = event[3], event[5]
    if not is_settings(value):
        return
    lines.append("")
    for key, field in value.model_fields.items():
        known = field.default is not PydanticUndefined and not isinstance(field.default, BaseModel)
        default = f" Default: ``{field.default!r}``." if known else ""
        lines.append(f":param {key}: {(field.description or '').replace('*', chr(92) + '*')}{default}")
    lines.append("")


def is_settings(value: object) -> bool:
    """Whether this is a class whose fields are keys of a recipe."""
    return inspect.isclass(value) and issubclass(value, BaseModel)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and what changes the entries of settings classes."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-signature", settings_signature)
    app.connect("autodoc-process-docstring", settings_keys)
    return {"parallel_read_safe": True}
