"""Shared by the tests: hypothesis without deadlines, helper modules, and a finished curation."""

from __future__ import annotations

import importlib
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import fsspec
import pytest
from hypothesis import settings

from mtnlg_data import Local, curate, load_recipe
from mtnlg_data.transfer.urls import MAX_ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from object_store import Store

    from mtnlg_data.engine import Summary

sys.path.insert(0, str(Path(__file__).parent))  # for what test modules share

# Machines differ in speed, and the first example includes compilation and imports.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

# What a shell starts in the background ignores Ctrl-C; the processes that these tests interrupt must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: Samples of published files, where they are beside the repository.
PUBLISHED = Path(__file__).parents[4] / "shared" / "data"


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of published files."""
    if not PUBLISHED.is_dir():
        pytest.skip("the published files are not beside the repository")
    return PUBLISHED


@pytest.fixture(scope="session")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with GPT-2's two files, or with two files like them if those are not here."""
    if PUBLISHED.is_dir():
        return PUBLISHED / "gpt2"
    return Path(importlib.import_module("tokenizer_kinds").write_gpt2(tmp_path_factory.mktemp("gpt2")))


class Run(NamedTuple):
    """A finished curation."""

    recipe: Path
    out: Path
    summary: Summary


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted curation of the small corpus; read-only."""
    folder = tmp_path_factory.mktemp("run")
    recipe = importlib.import_module("small_corpus").write_run(folder)
    return Run(recipe, folder / "data", curate(load_recipe(recipe), folder / "data", Local(1)))


@contextmanager
def without_waits() -> Iterator[None]:
    """Attempts at a URL follow one another at once."""
    import stamina

    stamina.set_testing(True, attempts=MAX_ATTEMPTS)
    try:
        yield
    finally:
        stamina.set_testing(False)


@pytest.fixture
def no_waits() -> Iterator[None]:
    """``without_waits`` for a test."""
    with without_waits():
        yield


@pytest.fixture(scope="module")
def running_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The S3 server behind its proxy, and this process set up for it."""
    object_store = importlib.import_module("object_store")
    options = {"config_kwargs": {"read_timeout": 0.5, "connect_timeout": 2}}
    with (
        object_store.running_moto() as port,
        importlib.import_module("loopback").serving(object_store.Store(port)) as store,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("AWS_ENDPOINT_URL", store.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", object_store.SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        patch.setitem(fsspec.config.conf, "s3", options)
        with without_waits():
            yield store
        fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def store(running_store: Store, request: pytest.FixtureRequest) -> Store:
    """The server, without faults, and with a bucket for this test: ``store.bucket``."""
    running_store.faults.clear()
    running_store.requests.clear()
    running_store.bucket = f"b{abs(hash(request.node.name))}"
    running_store.put(f"{running_store.bucket}/.keep", b"")
    return running_store
