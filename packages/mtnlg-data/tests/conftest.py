"""What the tests share: hypothesis without a clock, and the modules beside them that are no tests."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

# Machines differ, and the first example pays for what is compiled or imported.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")


@pytest.fixture(scope="session")
def _modules_beside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield


@pytest.fixture(scope="session")
def units(_modules_beside: None) -> ModuleType:
    """``echo_units.py``, as a module that a spawned worker can import too."""
    return importlib.import_module("echo_units")


@pytest.fixture(scope="session")
def corpus(_modules_beside: None) -> ModuleType:
    """``small_corpus.py``."""
    return importlib.import_module("small_corpus")
