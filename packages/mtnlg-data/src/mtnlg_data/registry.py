"""Finds steps, readers and rules by name or by reference; a user adds one with a single file.

    jsonl                    a name of our own, or of an entry point that an installed package declares
    package.module:name      an object of an importable module
    path/file.py:name        an object of a file; a relative path starts at the recipe's folder

Names are listed without importing what they stand for, so ``--help`` stays fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import UsageFailure
from .settings import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import ModuleType


#: Base folder of the paths in references while a recipe is read: the recipe's own. None for the working directory.
_recipe_folder: ContextVar[Path | None] = ContextVar("recipe_folder", default=None)


@contextmanager
def references_from(folder: Path) -> Iterator[None]:
    """Within the block, paths in references are relative to this recipe's folder, which `recipe_folder` returns."""
    token = _recipe_folder.set(folder)
    try:
        yield
    finally:
        _recipe_folder.reset(token)


def recipe_folder() -> Path | None:
    """The folder of the recipe being read, to be stored with each reference and passed to ``Registry.load``."""
    return _recipe_folder.get()


class Registry:
    """The names of one entry point group: our own, given as name → "module:attribute", and those of other packages.

    A name of our own cannot be taken by another package.
    """

    def __init__(self, group: str, own: Mapping[str, str]) -> None:
        self._group = group
        self._own = dict(own)

    def references(self) -> dict[str, str]:
        """Name → "module:attribute" of everything that has a name, our own first."""
        return self._own | {p.name: p.value for p in entry_points(group=self._group) if p.name not in self._own}

    def names(self) -> list[str]:
        """All names, our own first, in the order in which they are declared."""
        return list(self.references())

    def load(self, name: str, folder: Path | None = None) -> Any:  # noqa: ANN401  (any object)
        """The object that a name or a reference stands for; paths start at ``folder``, or at the working directory.

        The same file is loaded once per process, as ``file_module_name(path)``. Raises ``UsageFailure`` for an unknown
        name, a module or file that cannot be imported, and an attribute that it lacks.
        """
        reference = name if ":" in name else self._own.get(name) or self.references().get(name, "")
        place, _, attribute = (f"{name}:" if name.endswith(".py") else reference).rpartition(":")
        if not place:
            kind, names = self._group.rpartition(".")[2].removesuffix("s"), self.names()
            raise UsageFailure(
                f"{name}: no such {kind}; {did_you_mean(name, names)}choose from {', '.join(names)}, "
                "or write package.module:name or path/file.py:name"
            )
        try:
            module = _load_file(place, folder) if place.endswith(".py") else importlib.import_module(place)
        except Exception as error:  # a module may raise anything
            raise UsageFailure(f"{name}: {place} cannot be imported: {type(error).__name__}: {error}") from error
        try:
            return reduce(getattr, attribute.split("."), module)
        except AttributeError:
            public = [key for key in vars(module) if not key.startswith("_")]
            hint = f"{did_you_mean(attribute, public)}it has {', '.join(public) or 'no public name'}"
            lacks = f"{place} has no {attribute!r}" if attribute else f"write {place}:NAME"
            raise UsageFailure(f"{name}: {lacks}; {hint}") from None


def file_module_name(path: str) -> str:
    """The module name of a file, from its path as written in the reference: equal on all machines that read the recipe.

    Different paths have different names.
    """
    stem = path.removesuffix(".py")
    return "mtnlg_file_" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in stem)


def _load_file(path: str, folder: Path | None) -> ModuleType:
    """The module of a file, imported unless it already is."""
    name, location = file_module_name(path), (folder or Path()).joinpath(path).resolve()
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(location):  # else the file of another recipe
        return known
    spec = importlib.util.spec_from_file_location(name, location)
    assert spec is not None and spec.loader is not None  # noqa: PT018, S101  (the suffix is .py)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
