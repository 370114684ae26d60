"""Our own steps, one per file: step and class are named after the file, whose docstring is the command's help."""

from __future__ import annotations

import ast
from pathlib import Path

HERE = Path(__file__).parent
#: Name → "module:class", without importing anything.
OWN_STEPS = {
    path.stem: f"{__name__}.{path.stem}:{path.stem.title().replace('_', '')}"
    for path in sorted(HERE.glob("*.py"))
    if not path.stem.startswith("_")
}


def step_help(name: str) -> str:
    """The docstring of a step's file."""
    return ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))) or ""
