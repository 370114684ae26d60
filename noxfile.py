# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.5.1"]
# ///
"""Sessions that compose the four packages into whole runs, and sessions that check them.

All sessions but ``lint``, ``alone`` and ``wheels`` share one environment, ``.nox/house``, since each environment with
CUDA wheels costs gigabytes. It is installed once, and again when a pyproject.toml changes (decision 0002).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tomllib
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.sessions = ["quickstart"]

# Relative paths: nox runs in the folder of this file.
HOUSE = Path(".nox/house")
DIST = Path("dist")
PACKAGES = ("data", "model", "parallel", "eval")
ROWS = "recipes/quickstart/rows"
COMMANDS = {
    "data": ("extract", f"{ROWS}/boolq/train.jsonl", "--field", "passage", "--out", f"{DIST}/extracted"),
    "model": ("info", "mt-nlg-530b"),
    "parallel": ("plan", "mt-nlg-530b", "--cluster", "selene"),
    "eval": ("texts", "--data", ROWS, "--out", f"{DIST}/texts.jsonl"),
}
"""A real command of each package, by which `wheels` shows that its wheel brings what it needs."""
SIBLINGS = {"data": (), "model": (), "parallel": ("data", "model"), "eval": ("model",)}
TORCH = "torch==2.13.0"
# The Triton that this torch requires when built for CUDA; docs/kernels lists what it compiles.
TRITON = "triton==3.7.1; platform_system == 'Linux'"
RUFF = "ruff==0.17.6"
# Fuzzes in tests/fuzz; its wheels are for Linux alone.
FUZZER = "atheris==3.0.0; platform_system == 'Linux' and platform_machine == 'x86_64' and python_version < '3.14'"
CHECKERS = ("mypy==2.4.1", "nox==2026.10.20", "types-docutils")


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
    if not (out / "train" / "summary.json").exists():
        session.error("training stopped on request; run the same command again to continue from its checkpoint")
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
    """Run all suites in one environment; arguments after -- go to pytest."""
    install_house(session)
    run_in_house(session, "python", "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none", default=False)
def fuzz(session: nox.Session) -> None:
    """Fuzz the readers of foreign bytes: nox -s fuzz -- [TARGET ...] [--minutes N]; the result is in runs/fuzz."""
    install_house(session)
    run_in_house(session, "python", "tests/fuzz/harness.py", *session.posargs)


@nox.session(venv_backend="none", default=False)
def kernels(session: nox.Session) -> None:
    """Compile every kernel for sm_80, sm_90 and sm_100, or the targets after --; docs/kernels lists their resources."""
    install_house(session)
    targets = session.posargs or ["sm_80", "sm_90", "sm_100"]
    tables = [Path(f"docs/kernels/{target}.csv") for target in targets]
    before = [table.read_bytes() if table.exists() else b"" for table in tables]
    options = [word for target in targets for word in ("--target", target)]
    run_in_house(session, "mtnlg-parallel", "build-kernels", *options, "--table", "docs/kernels")
    changed = [str(table) for table, text in zip(tables, before, strict=True) if table.read_bytes() != text]
    if changed:
        session.error(f"the kernels' resources changed: {', '.join(changed)} rewritten; review the diff and commit")


@nox.session(venv_backend="none", default=False)
@nox.parametrize("end", ("oldest", "newest"), ids=("oldest", "newest"))
def versions(session: nox.Session, end: str) -> None:
    """Test training on the oldest and on the newest megatron-core and DeepSpeed that mtnlg-parallel declares."""
    install_house(session)
    project = tomllib.loads(Path("packages/mtnlg-parallel/pyproject.toml").read_text(encoding="utf-8"))["project"]
    ranges = [word for word in project["dependencies"] if word.startswith(("deepspeed", "megatron-core"))]
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
    run_in_house(session, "mypy", *sources, "recipes", "benchmarks", "packages/conftest.py", "noxfile.py")
    # Each folder of tests alone, since several have a conftest.py.
    for folder in ("tests", *(f"packages/mtnlg-{package}/tests" for package in PACKAGES)):
        run_in_house(session, "mypy", folder)


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Run ruff: every rule but a short commented list, and the format."""
    session.install(RUFF)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(venv_backend="none", default=False)
def wheels(session: nox.Session) -> None:
    """Build the four wheels; install each by Python's own pip, load every public name, run a real command.

    ``python -m venv`` brings the pip of that Python (3.11: 23.2), which misses some requirements that a new pip finds.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        pip(session, sys.executable, "wheel", "--no-deps", "--wheel-dir", str(DIST), f"packages/mtnlg-{package}")
    for package in PACKAGES:
        bare = bare_environment(package)
        session.run(sys.executable, "-m", "venv", "--clear", str(bare))
        install_wheel(session, package)
        session.run(str(bare / "bin" / "python"), "-c", f"from mtnlg_{package} import *")
        for words in (("--version",), ("--help",), COMMANDS[package]):
            session.run(str(bare / "bin" / f"mtnlg-{package}"), *words)


@nox.session(venv_backend="none", default=False, requires=["wheels"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def alone(session: nox.Session, package: str) -> None:
    """Run a package's tests against its wheel, with only its declared dependencies installed."""
    install_wheel(session, package, "[test]")
    python = bare_environment(package) / "bin" / "python"
    session.run(str(python), "-m", "pytest", f"packages/mtnlg-{package}/tests", *session.posargs)


def bare_environment(package: str) -> Path:
    """Return the folder of the environment that holds one package alone."""
    return Path(f".nox/bare-{package}")


def install_wheel(session: nox.Session, package: str, extra: str = "") -> None:
    """Install the package's wheel and its dependencies; siblings are given as files, never looked up."""
    python = str(bare_environment(package) / "bin" / "python")
    if package != "data":
        pip(session, python, "install", TORCH)
    siblings = [str(built_wheel(sibling)) for sibling in SIBLINGS[package]]
    pip(session, python, "install", *siblings, f"{built_wheel(package)}{extra}")


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
        pip(session, python, "install", *editable, TRITON, FUZZER, *CHECKERS)
        stamp.write_text(state)


def run_in_house(session: nox.Session, command: str, *words: str) -> None:
    """Run a command of the shared environment, which is first on its PATH."""
    path = f"{HOUSE.absolute() / 'bin'}{os.pathsep}{os.environ['PATH']}"
    session.run(str(HOUSE / "bin" / command), *words, env={"PATH": path})


def pip(session: nox.Session, python: str, verb: str, *words: str) -> None:
    """Run pip quietly: its output is shown only if it fails."""
    session.log(f"pip {verb} {' '.join(words)}")
    session.run(python, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *words, silent=True, log=False)


if __name__ == "__main__":
    nox.main()
