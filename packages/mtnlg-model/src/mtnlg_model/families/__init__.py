"""Families of decoders, one file per family: what Hugging Face's config.json calls model_type.

A file in this folder, named after the model_type, defines ``FAMILY``. An installed package adds a family by an entry
point of the group ``mtnlg_model.families``, named after the model_type; ``package.module:name`` or
``path/file.py:name`` refers to any other. Listing the names imports no family.
"""

from __future__ import annotations

import pkgutil
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from mtnlg_model import registry
from mtnlg_model.console import UsageFailure

from .family import Family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mtnlg_model.config import ModelConfig

GROUP: Final = "mtnlg_model.families"
_OURS: Final = {
    module.name: f"{__name__}.{module.name}:FAMILY"
    for module in pkgutil.iter_modules(__path__)
    if module.name != "family"
}


def references() -> dict[str, str]:
    """References of all named families, by name: ours in alphabetical order, then those of entry points."""
    return registry.references(GROUP, _OURS)


def load_family(name: str) -> Family:
    """The family of a name or a reference. Raises ``UsageFailure`` listing the names if it is neither."""
    names = _OURS if name in _OURS else references()  # which searches all installed packages
    family = registry.load(name, names, what := f"family {name:.100}")
    if not isinstance(family, Family):
        raise UsageFailure(f"{what}: a {type(family).__name__}, not a Family")
    return family


PRESETS: Final[Mapping[str, ModelConfig]] = MappingProxyType(
    {name: config for family in _OURS for name, config in load_family(family).presets.items()}
)
"""Published models of our own families by name."""


def preset(name: str) -> ModelConfig:
    """The preset of this name, of any family that is installed. Raises ``UsageFailure`` listing the names of ours."""
    if name in PRESETS:
        return PRESETS[name]
    for family in references().keys() - _OURS.keys():
        if name in (others := load_family(family).presets):
            return others[name]
    raise UsageFailure(f"preset {name}: unknown; choose from {', '.join(PRESETS)}")
