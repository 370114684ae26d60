"""What a user adds is found by its name or by a reference, and a wrong one is refused with what there is."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING

import pytest

from mtnlg_data.console import UsageFailure
from mtnlg_data.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = Registry("mtnlg_data.readers", {"first": "json:loads", "second": "no_such_module:thing"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe's folder with a file of a user's, and an installed package with an entry point of each kind."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("class Tar:\n    class Inner: ...\n_private = 1\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    packages = tmp_path / "packages"
    info = packages / "theirs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mtnlg_data.readers]\ntar = theirs_module:Tar\nfirst = theirs_module:Tar\n")
    (packages / "theirs_module.py").write_text("class Tar: ...\n")
    monkeypatch.syspath_prepend(packages)
    return tmp_path


def test_names_are_listed_without_an_import(folder: Path) -> None:
    del folder
    assert REGISTRY.names() == ["first", "second", "tar"]
    assert "theirs_module" not in sys.modules


@pytest.mark.parametrize(
    ("name", "module", "attribute"),
    [
        ("first", "json", "loads"),
        ("tar", "theirs_module", "Tar"),
        ("theirs_module:Tar", "theirs_module", "Tar"),
        ("code/mine.py:Tar", "mtnlg_file_code_2f_mine", "Tar"),
        ("code/mine.py:Tar.Inner", "mtnlg_file_code_2f_mine", "Tar.Inner"),
    ],
)
def test_names_and_references_load(folder: Path, name: str, module: str, attribute: str) -> None:
    loaded = REGISTRY.load(name, folder)
    assert (loaded.__module__, loaded.__qualname__) == (module, attribute)
    assert pickle.loads(pickle.dumps(loaded)) is REGISTRY.load(name, folder) is loaded  # noqa: S301


def test_equal_paths_in_two_folders_are_two_files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "code").mkdir()
    (other / "code" / "mine.py").write_text("Tar = 2\n")
    assert REGISTRY.load("code/mine.py:Tar", folder) != 2
    assert REGISTRY.load("code/mine.py:Tar", other) == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("frist", ["no such reader", "did you mean first?", "first, second, tar"]),
        ("package.module", ["no such reader", "package.module:name"]),
        ("json:", ["no such reader"]),
        ("json:load_s", ["'load_s'", "did you mean loads?"]),
        ("second", ["no_such_module", "ModuleNotFoundError"]),
        ("code/mine.py:tar", ["'tar'", "it has Tar"]),
        ("broken.py:Tar", ["broken.py", "ZeroDivisionError"]),
        ("missing.py:Tar", ["missing.py", "FileNotFoundError"]),
    ],
)
def test_wrong_references_are_refused(folder: Path, name: str, said: list[str]) -> None:
    with pytest.raises(UsageFailure) as refusal:
        REGISTRY.load(name, folder)
    assert [part for part in [name, *said] if part not in str(refusal.value)] == []
