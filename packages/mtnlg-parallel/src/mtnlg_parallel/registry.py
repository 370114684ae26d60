"""Finds what a user may add by a name or a reference: an engine, a schedule, and later a tracker.

    pipeline                 a name of ours, or of an entry point that an installed package declares
    package.module:name      an object of an importable module
    path/file.py:name        an object of a file

Names are listed without importing anything, so a command's help stays fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtnlg_model.console import UsageFailure

if TYPE_CHECKING:
    from collections.abc import Mapping


def references(group: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Name and reference of everything that can be had by name: ours, then the entry points of ``group``."""
    return {point.name: point.value for point in entry_points(group=group)} | dict(ours)


def load_object(group: str, ours: Mapping[str, str], name: str) -> Any:  # noqa: ANN401  (any object)
    """The object that a name or a reference stands for. Raises ``UsageFailure``, which lists the names."""
    known = references(group, ours)
    module, colon, attribute = known.get(name, name).rpartition(":")
    if not colon:
        choices = f"choose from {', '.join(sorted(known))}, or write package.module:name or file.py:name"
        raise UsageFailure(f"{name}: no such name; {choices}")
    try:
        return getattr(_import(module), attribute)
    except (ImportError, OSError, AttributeError) as error:
        raise UsageFailure(f"{name}: {error}") from error


def _import(module: str) -> Any:  # noqa: ANN401  (a module)
    """Import a module, or a file under a name made of its absolute path, so that another import finds the same one."""
    if not module.endswith(".py"):
        return importlib.import_module(module)
    path = Path(module).absolute()
    name = "mtnlg_file_" + "".join(c if c.isalnum() else "_" for c in str(path))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path}: not a Python file")
        sys.modules[name] = loaded = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(loaded)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
