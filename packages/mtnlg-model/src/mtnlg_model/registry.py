"""Loads what a user may add by a reference: a family of decoders, an engine, a schedule.

package.module:name      an object of an importable module
path/file.py:name        an object of a file
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from .console import UsageFailure


def load_reference(reference: str, what: str) -> Any:  # noqa: ANN401  (any object)
    """The object of a reference. Raises ``UsageFailure``, which begins with ``what`` it is, where there is none."""
    module, _, attribute = reference.rpartition(":")
    try:
        return getattr(_import(module), attribute)
    except (ImportError, OSError, AttributeError) as error:
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
        try:
            spec.loader.exec_module(loaded)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
