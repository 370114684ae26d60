"""Links between the site and the rest of the repository.

Pages are written for readers of the repository too, so they link to its files by relative paths. A file that is a page
of the site is linked there. Any other becomes a link to the repository once its address is known; until then a module
or a recipe is linked as a page of its source, which the build adds, and any other file is plain text. A link that leads
to no file at all stays as it is, and the build warns of it.

``path/module.py#Class.name`` and ``path/recipe.toml#table.key`` name a definition: their links lead to its line.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.highlighting import PygmentsBridge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    **{f"packages/mtnlg-{name}/README.md": f"packages/{name}.md" for name in ("data", "model", "parallel", "eval")},
    **{f"packages/mtnlg-{name}": f"packages/{name}.md" for name in ("data", "model", "parallel", "eval")},
}
"""Files of the repository that a page of the site includes."""
HAS_SOURCE_PAGE = {".py": "python", ".toml": "toml"}
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s#]+)(#[^()\s]*)?\)")


def rewrite(text: str, folder: Path, page: Path, repository: str) -> str:
    """The text of a file in ``folder`` with its links as seen from ``page``, a file of the site that shows it."""

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = Path(os.path.normpath(folder / target))
        if "://" in target or not path.exists() or not path.is_relative_to(ROOT):
            return match[0]
        name = path.relative_to(ROOT).as_posix()
        if name in PAGES:
            path = DOCS / PAGES[name]
        elif not (path.is_relative_to(DOCS) and path.is_file()):
            if repository:
                return f"[{label}]({repository}/{name}{line_anchor(path, anchor)})"
            source = os.path.relpath(DOCS / "source" / f"{name}.html", page.parent)
            return (
                f'<a href="{source}{line_anchor(path, anchor)}">{label}</a>'
                if path.suffix in HAS_SOURCE_PAGE
                else label
            )
        return f"[{label}]({os.path.relpath(path, page.parent)}{anchor})"

    return LINK.sub(replace, text)


def definition(path: Path, name: str) -> ast.stmt | None:
    """The statement of a module that defines ``name``, such as ``Class.field``, without importing it."""
    body, found = ast.parse(path.read_text("utf-8")).body, None
    for part in name.split("."):
        found = next((node for node in body if part in names_defined(node)), None)
        body = found.body if isinstance(found, ast.ClassDef) else []
    return found


def names_defined(node: ast.stmt) -> list[str]:
    """Names that a statement defines at its level."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def line_of(path: Path, name: str) -> int | None:
    """The line of a module's definition, or of a recipe's key such as ``table.key``."""
    if path.suffix == ".py":
        node = definition(path, name)
        return node.lineno if node else None
    table, _, key = name.rpartition(".")
    header = ""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("["):
            header = line[1:].partition("]")[0]
        elif (header, line.partition("=")[0].strip()) == (table, key):
            return number
    return line_of(path, table) if table else None  # a key of an inline table


def line_anchor(path: Path, anchor: str) -> str:
    """``#L12`` for what ``#name`` names in a module or recipe, nothing for any other file."""
    line = line_of(path, anchor.removeprefix("#")) if anchor and path.suffix in HAS_SOURCE_PAGE else None
    return f"#L{line}" if line else ""


def add_source_pages(_app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page with numbered lines for each module and recipe that a page links to."""
    pages = [*DOCS.rglob("*.md"), *(ROOT / name for name in PAGES if name.endswith(".md"))]
    links = {page.parent / target for page in pages for _, target, _ in LINK.findall(page.read_text("utf-8"))}
    for path in sorted({path.resolve() for path in links if path.suffix in HAS_SOURCE_PAGE and path.is_file()}):
        name = path.relative_to(ROOT).as_posix()
        text, language = path.read_text("utf-8"), HAS_SOURCE_PAGE[path.suffix]
        code = PygmentsBridge().highlight_block(text, language, linenos="inline", linespans="L")
        code = code.replace('id="L-', 'id="L')
        yield f"source/{name}", {"title": name, "body": f"<h1>{name}</h1>{code}"}, "page.html"


def on_read(app: Sphinx, name: str, content: list[str]) -> None:
    """Rewrite the links of a page."""
    page = DOCS / f"{name}.md"
    content[0] = rewrite(content[0], page.parent, page, app.config.repository_url)


def on_include(app: Sphinx, path: Path, _parent: str, content: list[str]) -> None:
    """Rewrite the links of a file that a page includes."""
    folder = (DOCS / path).resolve().parent
    content[0] = rewrite(content[0], folder, DOCS / f"{app.env.docname}.md", app.config.repository_url)


def setup(app: Sphinx) -> dict[str, Any]:
    """Rewrite what is read."""
    app.add_config_value("repository_url", "", "env", types=[str])
    app.connect("source-read", on_read)
    app.connect("include-read", on_include)
    app.connect("html-collect-pages", add_source_pages)
    return {"parallel_read_safe": True}
