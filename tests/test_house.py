"""Rules across packages: imports, circles, public names, files that exist twice."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "mtnlg_data": set(),
    "mtnlg_model": set(),
    "mtnlg_parallel": {"mtnlg_data", "mtnlg_model"},
    "mtnlg_eval": {"mtnlg_model", "mtnlg_parallel"},
}
# Rooms in the order in which data flows: a room imports from those before it, never from those behind it.
FLOW = {
    "mtnlg_data": (
        "transfer",
        "sources",
        "extract",
        "quality",
        "filters",
        "dedup",
        "exact",
        "decontaminate",
        "tokens",
        "steps",
        "stream",
    ),
    "mtnlg_model": ("config", "families", "functional", "decoder", "checkpoint", "convert"),
    "mtnlg_parallel": ("layout", "model", "engine", "record", "training", "launch"),
    "mtnlg_eval": ("tasks", "results", "scoring", "sharded", "studies", "report"),
}
NEVER = {"mtnlg_data": {"torch"}, "mtnlg_model": {"torch.distributed", "megatron", "deepspeed"}}
NEVER_ANYWHERE = {"pickle", "dill", "cloudpickle"}
TWINS = {
    ("mtnlg_data", "mtnlg_model"): ("console.py", "files.py", "sandbox.py", "settings.py"),
    ("mtnlg_data", "mtnlg_eval"): ("report/style.css",),
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


def test_the_machines_cores_are_counted_within_its_quotas() -> None:
    found = {path.name for package in MAY_IMPORT for path in modules_of(package) if "cpu_count" in path.read_text()}
    assert found == {"machine.py"}


def test_eval_imports_parallel_only_behind_its_extra() -> None:
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


def test_one_module_reads_the_variables_of_launchers() -> None:
    names = re.compile(
        r"[\"'](?:RANK|WORLD_SIZE|(?:LOCAL|GROUP|MASTER|TORCHELASTIC|SLURMD?|OMPI|MV2|PMI|MPI)_\w+)[\"']"
    )
    modules = [*modules_of("mtnlg_parallel"), *modules_of("mtnlg_eval")]
    found = [path for path in modules if names.search(path.read_text(encoding="utf-8"))]
    assert found == [source_of("mtnlg_parallel") / "environment.py"]


@pytest.mark.parametrize(("pair", "name"), [(pair, name) for pair, names in TWINS.items() for name in names])
def test_duplicated_modules_of_two_packages_are_identical(pair: tuple[str, str], name: str) -> None:
    one, other = (source_of(package) / name for package in pair)
    assert one.read_bytes() == other.read_bytes()


def test_tokenizer_bounds_are_equal_in_both_packages() -> None:
    texts = [source_of("mtnlg_model") / "tokenizer_file.py", source_of("mtnlg_data") / "tokens" / "tokenizer_file.py"]
    one, other = (path.read_text(encoding="utf-8").partition("from __future__")[2] for path in texts)
    assert one == other.replace("from mtnlg_data.", "from .")


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_has_what_a_package_needs(package: str) -> None:
    folder = ROOT / "packages" / package.replace("_", "-")
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    changes = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert project["name"] == folder.name
    assert f"## {project['version']}\n" in changes
    assert (folder / "README.md").read_text(encoding="utf-8").startswith(f"# {folder.name}\n")
    assert (source_of(package) / "py.typed").exists()
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert not [d for d in project["dependencies"] if d.startswith("mtnlg-") and "==" in d], "siblings go by range"


def dotted(path: Path, package: str) -> str:
    parts = path.relative_to(source_of(package).parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def import_graph(package: str) -> dict[str, frozenset[str]]:
    """Module → modules of the same package that it imports at its top; not for types alone, or inside functions."""
    paths = {dotted(path, package): path for path in modules_of(package)}
    graph = {}
    for name, path in paths.items():
        room = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = set()
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                start = f"{room}.{node.module}" if node.module and node.level else node.module or room
                found |= {
                    f"{start}.{alias.name}" if f"{start}.{alias.name}" in paths else start for alias in node.names
                }
        graph[name] = frozenset(found & set(paths))
    return graph


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    try:
        TopologicalSorter(import_graph(package)).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("package", FLOW)
def test_data_flows_one_way_through_the_rooms(package: str) -> None:
    place = {f"{package}.{room}": number for number, room in enumerate(FLOW[package])}

    def room_of(module: str) -> int | None:
        return next((number for room, number in place.items() if f"{module}.".startswith(f"{room}.")), None)

    backwards = [
        f"{module} imports {imported}"
        for module, imports in import_graph(package).items()
        for imported in imports
        if (here := room_of(module)) is not None and (there := room_of(imported)) is not None and there > here
    ]
    assert not backwards


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_every_public_name_exists_and_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    names = module.__all__
    assert names
    assert names == sorted(names)
    public = {name: getattr(module, name) for name in names}
    assert not [name for name, value in public.items() if (callable(value)) and not value.__doc__]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_importing_a_package_imports_no_library(package: str) -> None:
    """So an import takes milliseconds, and what is slow is loaded with the first name that needs it."""
    code = (
        f"import sys, {package}; print(*{{name.partition('.')[0] for name in sys.modules}} - sys.stdlib_module_names)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    slow = {"torch", "numpy", "pyarrow", "numba", "pydantic", "typer", "rich", "lm_eval", "deepspeed", "megatron"}
    assert not slow & set(done.stdout.split())


def requirements_of(package: str) -> list[Requirement]:
    """Everything that a package's pyproject.toml asks for, its extras and its build included."""
    content = tomllib.loads((ROOT / "packages" / package.replace("_", "-") / "pyproject.toml").read_text("utf-8"))
    project = content["project"]
    extras = [word for words in project["optional-dependencies"].values() for word in words]
    return [Requirement(word) for word in (*content["build-system"]["requires"], *project["dependencies"], *extras)]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_requirements_are_bounded_and_met(package: str) -> None:
    for requirement in requirements_of(package):
        operators = {bound.operator for bound in requirement.specifier}
        assert operators >= {">=", "<"} or operators == {"=="}, (
            f"{requirement}: give the least and the next major version"
        )
        with suppress(PackageNotFoundError):  # an extra that the tests do without
            assert requirement.specifier.contains(version(requirement.name), prereleases=True), requirement


def test_ci_runs_the_nox_that_the_types_are_checked_with() -> None:
    ci, sessions = ((ROOT / name).read_text(encoding="utf-8") for name in (".ci/run", "noxfile.py"))
    assert re.findall(r"pip install --quiet (nox==[\d.]+)", ci) == re.findall(r'"(nox==[\d.]+)"', sessions) != []


def test_slow_checks_depend_on_files_that_exist() -> None:
    """A renamed folder would leave a slow check that nothing makes run again."""
    checks = json.loads((ROOT / "tests" / "slow.json").read_text(encoding="utf-8"))
    patterns = {pattern for name, check in checks.items() for pattern in (name, *check["depends"])} - {"release"}
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []


def test_every_test_that_promises_safety_exists() -> None:
    """SECURITY.md and the table of findings name tests; a renamed one would leave a promise that nothing shows."""
    named = {
        name
        for document in ("SECURITY.md", "docs/security-findings.md")
        for name in re.findall(r"`(test_\w+)`", (ROOT / document).read_text(encoding="utf-8"))
    }
    files = [*ROOT.glob("packages/*/tests/test_*.py"), *ROOT.glob("tests/**/test_*.py")]
    defined = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
    assert len(named) > 20
    assert not named - defined
