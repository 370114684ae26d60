"""The digest of the code that makes an output: when it changes, the output is made again.

It covers the module that defines a unit and, over their imports, every module of this package that it uses, each as the
statements that Python runs: neither comments nor docstrings nor line breaks count, nor what is imported for types only,
nor the fields of settings, whose values are in the keys of those who use them.
It further covers the versions of those libraries that these modules import and whose results the outputs keep.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]
#: Rooms and modules that decide who runs a unit, what is said of it and how its input comes here, but no byte of its
#: output.
WITHOUT_INFLUENCE = ("mtnlg_data.engine", "mtnlg_data.console", "mtnlg_data.settings", "mtnlg_data.transfer")
#: Libraries whose results are kept, by the name that is imported: another version may give another text, language,
#: signature, classifier or token. What others compute (NumPy, SciPy, numba) is exact, and what they read and write
#: (pyarrow, fastwarc, zstandard) is the same content in any version. Extras that a setting chooses are in the keys of
#: the units that use them.
KEPT_LIBRARIES = {
    "datasketch": "datasketch",
    "ftfy": "ftfy",
    "justext": "jusText",
    "lxml": "lxml",
    "pycld2": "pycld2",
    "sklearn": "scikit-learn",
    "tokenizers": "tokenizers",
}


class Code(NamedTuple):
    """A module: digest of its statements, modules of this package that it imports, libraries of which results stay."""

    digest: str
    imports: frozenset[str]
    libraries: frozenset[str]


@cache
def code_digest(module: str) -> str:
    """Digest of a module and of all that it uses, by its dotted name."""
    modules: dict[str, Code] = {}
    waiting = {module}
    while waiting:
        name = waiting.pop()
        modules[name] = _read_module(name)
        waiting |= modules[name].imports - set(modules)
    libraries = sorted({library for code in modules.values() for library in code.libraries})
    parts = [f"{name} {modules[name].digest}" for name in sorted(modules)]
    versions = [f"{library} {library_version(KEPT_LIBRARIES[library])}" for library in libraries]
    return hashlib.sha256("\n".join([*parts, *versions]).encode()).hexdigest()


@cache
def library_version(distribution: str) -> str | None:
    """The installed version of a library; None where it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def _read_module(name: str) -> Code:
    tree = ast.parse(read_source(name))
    lines: list[str] = []
    _write_statements(tree, lines)
    imported = _imported_names(tree, name)
    inside = {module for module in map(_module_of, imported) if module is not None and not _has_no_influence(module)}
    libraries = {imported_name.partition(".")[0] for imported_name in imported} & set(KEPT_LIBRARIES)
    return Code(hashlib.sha256("\n".join(lines).encode()).hexdigest(), frozenset(inside), frozenset(libraries))


def read_source(module: str) -> str:
    """The source of a module of this package; of another, such as a script with units of its own, that of its file."""
    path = _path_of(module) or Path(str(sys.modules[module].__file__))
    return path.read_text(encoding="utf-8")


def _path_of(module: str) -> Path | None:
    """The file of a module of this package, if there is such a module."""
    path = PACKAGE.parent / module.replace(".", "/")
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found if found.is_relative_to(PACKAGE) and found.exists() else None


def _write_statements(node: object, lines: list[str]) -> None:
    """Write a syntax tree, a line per node. Empty fields are left out: newer Pythons have more of them."""
    if isinstance(node, ast.AST):
        lines.append(type(node).__name__)
        for field, value in ast.iter_fields(node):
            if value is not None and value != []:
                lines.append(field)
                _write_statements(value, lines)
    elif isinstance(node, list):
        lines.append("[")
        for item in node:
            if not (_is_text(item) or _is_for_types(item) or _is_setting(item)):
                _write_statements(item, lines)
        lines.append("]")
    else:
        lines.append(repr(node))


def _is_text(node: object) -> bool:
    """Whether this is a docstring, or another string that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_for_types(node: object) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _is_setting(node: object) -> bool:
    """Whether this is a field of a settings class, made by ``setting(default, description, …)``."""
    call = node.value if isinstance(node, ast.AnnAssign) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "setting"


def _imported_names(node: ast.AST, module: str) -> set[str]:
    """Dotted names that the module imports when it runs, at its top or in a function; of ``from x import y`` x.y."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        path = _path_of(module)
        parts = module.split(".")[: None if path is not None and path.name == "__init__.py" else -1]
        start = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
        base = ".".join(filter(None, (start, node.module)))
        return {f"{base}.{alias.name}" for alias in node.names}
    inner = (child for child in ast.iter_child_nodes(node) if not _is_for_types(child))
    return {name for child in inner for name in _imported_names(child, module)}


def _module_of(name: str) -> str | None:
    """The module of this package that a dotted name, of a module or of something in one, stands for."""
    parent = name.rpartition(".")[0]
    return next((module for module in (name, parent) if module and _path_of(module) is not None), None)


def _has_no_influence(module: str) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in WITHOUT_INFLUENCE)
