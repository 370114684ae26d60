"""The rules of the house that no single package can check: who imports whom, what stands twice, what is never used."""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "mtnlg_data": set(),
    "mtnlg_model": set(),
    "mtnlg_parallel": {"mtnlg_data", "mtnlg_model"},
    "mtnlg_eval": {"mtnlg_model", "mtnlg_parallel"},
}
NEVER = {"mtnlg_data": {"torch"}, "mtnlg_model": {"torch.distributed", "megatron", "deepspeed"}}
NEVER_ANYWHERE = {"pickle", "dill", "cloudpickle"}
TWINS = {
    ("mtnlg_data", "mtnlg_model"): ("console.py", "files.py", "settings.py"),
    ("mtnlg_data", "mtnlg_eval"): ("report/markup.py", "report/style.css"),
}


def source_of(package: str) -> Path:
    return ROOT / "packages" / package.replace("_", "-") / "src" / package


def modules_of(package: str) -> list[Path]:
    return sorted(source_of(package).rglob("*.py"))


@cache
def imports_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    inner = {f"{node.module}.{alias.name}" for node in froms for alias in node.names}
    return frozenset(plain | inner | {str(node.module) for node in froms})


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_the_siblings_that_it_may(package: str) -> None:
    siblings = set(MAY_IMPORT) - MAY_IMPORT[package] - {package}
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules_of(package)
        for name in imports_of(path)
        if name.split(".")[0] in siblings
    }
    assert not found


def test_evaluation_imports_the_parallel_engine_behind_its_extra_alone() -> None:
    inside = source_of("mtnlg_eval") / "sharded"
    outside = [path for path in modules_of("mtnlg_eval") if not path.is_relative_to(inside)]
    assert not [path for path in outside for name in imports_of(path) if name.startswith("mtnlg_parallel")]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_keeps_away_from_what_it_must_never_use(package: str) -> None:
    forbidden = NEVER.get(package, set()) | NEVER_ANYWHERE
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules_of(package)
        for name in imports_of(path)
        if any(name == word or name.startswith(f"{word}.") for word in forbidden)
    }
    assert not found


@pytest.mark.parametrize(("pair", "name"), [(pair, name) for pair, names in TWINS.items() for name in names])
def test_what_stands_in_two_packages_is_one_text(pair: tuple[str, str], name: str) -> None:
    one, other = (source_of(package) / name for package in pair)
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_has_what_a_package_needs(package: str) -> None:
    folder = ROOT / "packages" / package.replace("_", "-")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changes = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert project["name"] == folder.name
    assert f"## {project['version']}\n" in changes
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# {folder.name}\n")
    assert (source_of(package) / "py.typed").exists()
    assert not [d for d in project["dependencies"] if d.startswith("mtnlg-") and "==" in d], "siblings go by range"


def test_no_module_outgrows_a_sitting() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for package in MAY_IMPORT
        for path in modules_of(package)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert not long
