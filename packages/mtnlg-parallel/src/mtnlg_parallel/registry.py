"""Finds what a user may add by a name or a reference: an engine, a schedule, and later a tracker.

    pipeline                 a name of ours, or of an entry point that an installed package declares
    package.module:name      an object of an importable module
    path/file.py:name        an object of a file

Names are listed without importing anything, so a command's help stays fast.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from mtnlg_model.console import UsageFailure
from mtnlg_model.registry import load_reference

if TYPE_CHECKING:
    from collections.abc import Mapping


def references(group: str, ours: Mapping[str, str]) -> dict[str, str]:
    """Name and reference of everything that can be had by name: ours, then the entry points of ``group``."""
    return {point.name: point.value for point in entry_points(group=group)} | dict(ours)


def load_object(group: str, ours: Mapping[str, str], name: str) -> Any:  # noqa: ANN401  (any object)
    """The object that a name or a reference stands for. Raises ``UsageFailure``, which lists the names."""
    known = references(group, ours)
    reference = known.get(name, name)
    if ":" not in reference:
        choices = f"choose from {', '.join(sorted(known))}, or write package.module:name or file.py:name"
        raise UsageFailure(f"{name}: no such name; {choices}")
    return load_reference(reference, name)
