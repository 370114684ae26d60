"""What reruns a step: its version, its settings, the libraries that its output depends on, and nothing else."""

from __future__ import annotations

import shutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from shards import curate_here

from mtnlg_data import Clean, Extract, Step
from mtnlg_data.recipe import own_factories

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Run

libraries = import_module("mtnlg_data.fingerprint")  # the package has a function of this name


@pytest.fixture
def upgrade(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Changes the versions of libraries, as this process sees them."""
    installed = libraries.version

    def change(**versions: str) -> None:
        monkeypatch.setattr(libraries, "version", lambda name: versions.get(name) or installed(name))
        libraries.library_version.cache_clear()

    yield change
    monkeypatch.undo()
    libraries.library_version.cache_clear()


@pytest.mark.parametrize(
    ("changed", "moved"),
    [
        ("nothing", set()),
        ("version", {"03-clean"}),
        ("library", {"03-clean"}),
        ("setting", {"05-decontaminate", "tokens"}),
    ],
)
def test_change_reruns_its_step_and_what_depends_on_its_bytes(  # noqa: PLR0917
    finished: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    upgrade: Callable[..., None],
    changed: str,
    moved: set[str],
) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.parent != out}

    out = shutil.copytree(finished.out, tmp_path / "data")
    before = times()
    if changed == "version":
        monkeypatch.setattr(Clean, "version", 99)
    elif changed == "library":
        upgrade(ftfy="6.99")
    summary = curate_here(finished.recipe, out, *(["decontaminate.window=100"] if changed == "setting" else []))
    assert {path.relative_to(out).parts[0] for path, time in times().items() if before.get(path) != time} == moved
    assert (summary["tokens"] == finished.summary["tokens"]) is (changed != "setting")


def key(cls: type[Step[Any, Any]], **settings: Any) -> str:  # noqa: ANN401
    return cls(
        sources={"own": {"weight": 1.0} if "weight" in cls.SourceKeys.model_fields else {}}, **settings
    ).run_key()


def test_step_depends_on_versions_of_its_libraries(upgrade: Callable[..., None]) -> None:
    def keys() -> dict[str, str]:
        return {name: key(cls, **SETTINGS.get(name, {})) for name, (cls, *_) in own_factories().items()}

    before, upgraded = keys(), {}
    for library in ("jusText", "lxml", "pycld2", "resiliparse", "ftfy", "tokenizers", "pyarrow"):
        upgrade(**{library: "99"})
        upgraded[library] = {name for name, own in keys().items() if own != before[name]}
    assert upgraded == {
        "jusText": {"extract"},
        "lxml": {"extract"},
        "pycld2": {"extract", "clean"},
        "resiliparse": {"extract"},
        "ftfy": {"clean"},
        "tokenizers": {"tokenize"},
        "pyarrow": set(),
    }


SETTINGS: dict[str, dict[str, Any]] = {"tokenize": {"vocabulary": 400}}


def test_an_extra_counts_where_a_setting_chooses_it(upgrade: Callable[..., None]) -> None:
    methods = ("justext", "trafilatura")
    before = [key(Extract, method=method) for method in methods]
    upgrade(trafilatura="99")
    assert [key(Extract, method=method) == old for method, old in zip(methods, before, strict=True)] == [True, False]


def test_unicode_version_is_part_of_the_step_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Extract)
    monkeypatch.setattr("mtnlg_data.step.unidata_version", "99.0.0")
    assert key(Extract) != before


def test_the_version_of_a_library_that_is_missing_is_none() -> None:
    assert libraries.library_version("no-such-library-anywhere") is None
