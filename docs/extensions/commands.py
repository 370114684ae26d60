"""Directive ``commands PACKAGE``: a section for every command of a package, from the commands themselves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rich.markup import render
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from docutils import nodes
    from sphinx.application import Sphinx


def command_sections(package: str) -> Iterator[str]:
    """Lines of Markdown: usage, help, arguments and options of each command."""
    program = package.replace("_", "-")
    for name, command in get_command(import_module(f"{package}.cli").app).commands.items():  # type: ignore[attr-defined]
        # Stages make their options when they run, so the context's command is asked, not the listed one.
        context = command.make_context(f"{program} {name}", [], resilient_parsing=True)
        yield from (
            f"## {program} {name}\n",
            "```text",
            context.command.get_usage(context).removeprefix("Usage: "),
            "```\n",
        )
        yield from paragraphs(command.help)
        yield from ("| option | what | default |", "|---|---|---|")
        for parameter in context.command.get_params(context):
            default = parameter.default
            shown = "" if default is None or isinstance(default, bool) or callable(default) else f"`{default}`"
            shown = "required" if parameter.required else shown
            names = ", ".join([*parameter.opts, *parameter.secondary_opts])
            value = f"{names} {parameter.metavar}" if parameter.metavar and names.startswith("-") else names
            yield f"| {cell(f'`{value}`')} | {cell(as_text(parameter.help))} | {cell(shown)} |"
        yield ""
        yield from paragraphs(command.epilog)


def paragraphs(help_text: str | None) -> Iterator[str]:
    """Paragraphs of a help text; one that begins with the name of an option or a JSON object stays as it is written."""
    for paragraph in (help_text or "").split("\n\n"):
        yield f"{as_text(paragraph)}\n"


def as_text(help_text: str | None) -> str:
    """A help text without the terminal's markup, with Markdown's characters escaped."""
    plain = render(help_text or "").plain
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>|$#" else character for character in plain)


def cell(markdown: str) -> str:
    """Markdown for a cell of a table."""
    return " ".join(markdown.replace("\\|", "|").replace("|", "\\|").split())


class Commands(SphinxDirective):
    """The sections of `command_sections`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse the Markdown as part of the page."""
        text = "\n".join(command_sections(self.arguments[0]))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
