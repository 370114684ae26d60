"""Find what a user adds by name or reference: a family of decoders, an engine, a schedule.

A name is one of ours, or that of an entry point of an installed package; a reference is ``package.module:name``, of an
importable module, or ``path/file.py:name``. Listing the names imports nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import UsageFailure

if TYPE_CHECKING:
    from collections.abc import Mapping


def references(group: str, ours: Mapping[str, str]) -> dict[str, str]:
    """References by name: ours, then those of the entry points of ``group``."""
    return {**ours, **{point.name: point.value for point in entry_points(group=group) if point.name not in ours}}


def load(name: str, names: Mapping[str, str], what: str) -> Any:  # noqa: ANN401  (any object)
    """Import the object of a reference, or of a name that ``names`` have one of.

    Raises ``UsageFailure``, which begins with ``what``, if there is none.
    """
    module, _, attribute = names.get(name, name).rpartition(":")
    if not module:
        raise UsageFailure(f"{what}: unknown; {', '.join(names)}, package.module:name or file.py:name")
    try:
        return getattr(_import(module), attribute)
    except Exception as error:  # a user's module raises anything
        raise UsageFailure(f"{what}: {error}") from error


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
        spec.loader.exec_module(loaded)
    return sys.modules[name]
