"""Shared by the tests: hypothesis without deadlines, helper modules, and a finished curation."""

from __future__ import annotations

import importlib
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import settings

from mtnlg_data.engine import Local
from mtnlg_data.pipeline import curate
from mtnlg_data.recipe import load_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from mtnlg_data.engine import Summary

# Machines differ in speed, and the first example includes compilation and imports.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

# What a shell starts in the background ignores Ctrl-C; the processes that these tests interrupt must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def _modules_beside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        yield


@pytest.fixture(scope="session")
def units(_modules_beside: None) -> ModuleType:
    """``echo_units.py``, as a module that a spawned worker can import too."""
    return importlib.import_module("echo_units")


#: Samples of published files, where they are beside the repository.
PUBLISHED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(scope="session", params=["ours", *(["published"] if PUBLISHED.is_dir() else [])])
def samples(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _modules_beside: None) -> Path:
    """A folder of files in the published formats: written by us (``published.py``), and the published ones if here."""
    if request.param == "published":
        return PUBLISHED
    return Path(importlib.import_module("published").write_samples(tmp_path_factory.mktemp("samples")))


@pytest.fixture(scope="session")
def corpus(_modules_beside: None) -> ModuleType:
    """``small_corpus.py``."""
    return importlib.import_module("small_corpus")


@pytest.fixture(scope="session")
def sentences(_modules_beside: None) -> ModuleType:
    """``sentences_without_spaces.py``."""
    return importlib.import_module("sentences_without_spaces")


@pytest.fixture(scope="session")
def language_models(_modules_beside: None) -> ModuleType:
    """``language_model.py``."""
    return importlib.import_module("language_model")


class Run(NamedTuple):
    """A finished curation."""

    recipe: Path
    out: Path
    summary: Summary


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, corpus: ModuleType) -> Run:
    """An uninterrupted curation of the small corpus; read-only."""
    folder = tmp_path_factory.mktemp("run")
    recipe = corpus.write_run(folder)
    with closing(Local(1)) as engine:
        return Run(recipe, folder / "data", curate(load_recipe(recipe), folder / "data", engine))
