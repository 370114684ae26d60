"""Finds an engine or a schedule by its name or a reference (`mtnlg_model.registry`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mtnlg_model.console import UsageFailure
from mtnlg_model.registry import load_reference, references

if TYPE_CHECKING:
    from collections.abc import Mapping


def load_object(kind: str, group: str, ours: Mapping[str, str], name: str) -> Any:  # noqa: ANN401  (any object)
    """Load the ``kind`` of object of a name or a reference. Raises ``UsageFailure`` that lists the names."""
    names = references(group, ours)
    reference = names.get(name, name)
    if ":" not in reference:
        choices = f"choose from {', '.join(sorted(names))}, or write package.module:name or file.py:name"
        raise UsageFailure(f'train.{kind} = "{name}": no such {kind}; {choices}')
    return load_reference(reference, f'train.{kind} = "{name}"')
