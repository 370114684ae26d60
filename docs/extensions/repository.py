"""Links between the site and the rest of the repository.

Pages are written for readers of the repository too, so they link to its files by relative paths. A file that is a page
of the site is linked there; any other becomes a link to the repository once its address is known, and plain text until
then. A link that leads to no file at all stays as it is, and the build warns of it.

``path/module.py#Class.name`` names a definition: a link to the repository leads to its line.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    **{f"packages/mtnlg-{name}/README.md": f"packages/{name}.md" for name in ("data", "model", "parallel", "eval")},
    **{f"packages/mtnlg-{name}": f"packages/{name}.md" for name in ("data", "model", "parallel", "eval")},
}
"""Files of the repository that a page of the site includes."""
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
            return f"[{label}]({repository}/{name}{line_anchor(path, anchor)})" if repository else label
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


def line_anchor(path: Path, anchor: str) -> str:
    """``#L12`` for the definition that ``#name`` names in a module, nothing for any other file."""
    node = definition(path, anchor.removeprefix("#")) if anchor and path.suffix == ".py" else None
    return f"#L{node.lineno}" if node else ""


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
    return {"parallel_read_safe": True}
