# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.5.1"]
# ///
"""The sessions that compose the four packages into whole runs, and those that check them.

One environment, ``.nox/house``, serves every session but ``lint``, ``alone`` and ``wheels``: with CUDA wheels each
environment costs gigabytes. It is installed once, and again when a pyproject.toml changes.
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

# nox runs in the folder of this file.
HOUSE = Path(".nox/house")
DIST = Path("dist")
PACKAGES = ("data", "model", "parallel", "eval")
SIBLINGS = {"data": (), "model": (), "parallel": ("data", "model"), "eval": ("model",)}
TORCH = "torch==2.13.0"
# The Triton that this torch brings where it is built for CUDA: docs/kernels is what it compiles.
TRITON = "triton==3.7.1; platform_system == 'Linux'"
RUFF = "ruff==0.17.6"
CHECKERS = ("mypy==2.4.1", "nox>=2025.5.1", "types-docutils")


@nox.session(venv_backend="none")
def quickstart(session: nox.Session) -> None:
    """Raw pages → tokens → a decoder trained at tp 2 x pp 2 → the nine-task table and a report, on this machine."""
    house(session)
    whole_run(session, Path("recipes/quickstart"), Path("runs/quickstart"))


@nox.session(venv_backend="none", default=False)
def run(session: nox.Session) -> None:
    """Curate, train, evaluate and report a recipe: nox -s run -- recipes/NAME [--out DIR]."""
    recipe, out, _ = recipe_of(session)
    house(session)
    whole_run(session, recipe, out)


@nox.session(venv_backend="none", default=False)
def curate(session: nox.Session) -> None:
    """Turn a recipe's sources into tokens: nox -s curate -- recipes/NAME [--out DIR] [options of mtnlg-data run]."""
    recipe, out, options = recipe_of(session)
    house(session)
    curated(session, recipe, out, options)


@nox.session(venv_backend="none", default=False)
def train(session: nox.Session) -> None:
    """Train a recipe's decoder on its tokens: nox -s train -- recipes/NAME [--out DIR] [options of mtnlg-parallel]."""
    recipe, out, options = recipe_of(session)
    house(session)
    trained(session, recipe, out, options)


@nox.session(venv_backend="none", default=False)
def evaluate(session: nox.Session) -> None:
    """Score a run's newest checkpoint: nox -s evaluate -- recipes/NAME [--out DIR] [options of mtnlg-eval run]."""
    recipe, out, options = recipe_of(session)
    house(session)
    evaluated(session, recipe, out, options)


def whole_run(session: nox.Session, recipe: Path, out: Path) -> None:
    """Every stage of a run in the order in which data flows; each goes on from what a killed run had finished."""
    curated(session, recipe, out, [])
    trained(session, recipe, out, [])
    if not (out / "train" / "summary.json").exists():
        session.error("training was asked to stop; the same command goes on from its checkpoint")
    evaluated(session, recipe, out, [])
    at_home(session, "mtnlg-eval", "hans", str(out / "eval"))
    at_home(session, "mtnlg-eval", "report", str(out))


def curated(session: nox.Session, recipe: Path, out: Path, options: list[str]) -> None:
    """Make the recipe's own corpus where it has one, export the task texts, then run mtnlg-data."""
    if (recipe / "corpus.py").exists():
        at_home(session, "python", str(recipe / "corpus.py"), str(out))
    at_home(session, "mtnlg-eval", "texts", *rows_of(recipe), "--out", str(out / "texts.jsonl"))
    at_home(session, "mtnlg-data", "run", str(recipe), "--out", str(out / "data"), "--set", f"input={out}", *options)


def trained(session: nox.Session, recipe: Path, out: Path, options: list[str]) -> None:
    """Run mtnlg-parallel on the tokens of ``out``."""
    folders = ("--data", str(out / "data"), "--out", str(out / "train"))
    at_home(session, "mtnlg-parallel", "train", str(recipe), *folders, *options)


def evaluated(session: nox.Session, recipe: Path, out: Path, options: list[str]) -> None:
    """Run mtnlg-eval on the newest checkpoint of ``out``."""
    checkpoints = str(out / "train" / "checkpoints")
    at_home(session, "mtnlg-eval", "run", checkpoints, *rows_of(recipe), "--out", str(out / "eval"), *options)


def rows_of(recipe: Path) -> list[str]:
    """Where the nine tasks' rows come from: the recipe's own folder, or the hub where it has none."""
    return ["--data", str(recipe / "rows")] if (recipe / "rows").is_dir() else []


def recipe_of(session: nox.Session) -> tuple[Path, Path, list[str]]:
    """Read the words behind ``--``: the recipe, where its run lies, and options that go on to the command."""
    parser = argparse.ArgumentParser(prog=f"nox -s {session.name} --", allow_abbrev=False)
    parser.add_argument("recipe", type=Path, help="a folder under recipes/")
    parser.add_argument("--out", type=Path, help="where the run lies (default runs/NAME)")
    if not session.posargs or session.posargs[0].startswith("-"):
        session.error(f"usage: nox -s {session.name} -- recipes/NAME [--out DIR] [options]")
    known, options = parser.parse_known_args(session.posargs)
    if not known.recipe.is_dir():
        names = ", ".join(sorted(map(str, Path("recipes").iterdir())))
        session.error(f"{known.recipe}: no such recipe; there are {names}")
    if session.name == "run" and options:
        session.error(f"{' '.join(options)}: run takes --out only; curate, train and evaluate take options")
    return known.recipe, known.out or Path("runs") / known.recipe.resolve().name, options


@nox.session(venv_backend="none", default=False)
def tests(session: nox.Session) -> None:
    """All suites in one environment; words behind -- go to pytest."""
    house(session)
    at_home(session, "python", "-m", "pytest", *session.posargs)


@nox.session(venv_backend="none", default=False)
def kernels(session: nox.Session) -> None:
    """Compile every kernel for sm_80, sm_90 and sm_100, or those behind --; docs/kernels holds what they take."""
    house(session)
    targets = session.posargs or ["sm_80", "sm_90", "sm_100"]
    tables = [Path(f"docs/kernels/{target}.csv") for target in targets]
    before = [table.read_bytes() if table.exists() else b"" for table in tables]
    words = [word for target in targets for word in ("--target", target)]
    at_home(session, "mtnlg-parallel", "build-kernels", *words, "--table", "docs/kernels")
    changed = [str(table) for table, text in zip(tables, before, strict=True) if table.read_bytes() != text]
    if changed:
        session.error(f"the kernels take something else now: {', '.join(changed)} written anew; see what, and commit")


@nox.session(venv_backend="none", default=False)
@nox.parametrize("end", ("oldest", "newest"), ids=("oldest", "newest"))
def versions(session: nox.Session, end: str) -> None:
    """Training on the oldest and on the newest megatron-core and DeepSpeed that mtnlg-parallel declares."""
    house(session)
    project = tomllib.loads(Path("packages/mtnlg-parallel/pyproject.toml").read_text(encoding="utf-8"))["project"]
    ranges = [word for word in project["dependencies"] if word.startswith(("deepspeed", "megatron-core"))]
    wanted = [word.split(",")[0].replace(">=", "==") for word in ranges] if end == "oldest" else ranges
    # Beside the shared environment, before whose own they are found.
    beside = Path(f".nox/versions-{end}").absolute()
    shutil.rmtree(beside, ignore_errors=True)
    pip(session, str(HOUSE / "bin" / "python"), "install", "--no-deps", "--target", str(beside), *wanted)
    python, tests = str(HOUSE / "bin" / "python"), session.posargs or ["tests/training"]
    session.run(python, "-m", "pytest", *tests, env={"PYTHONPATH": str(beside)})


@nox.session(venv_backend="none", default=False)
def types(session: nox.Session) -> None:
    """Mypy, strict, over every line of Python."""
    house(session)
    sources = [f"packages/mtnlg-{package}/src" for package in PACKAGES]
    at_home(session, "mypy", *sources, "recipes", "benchmarks", "packages/conftest.py", "noxfile.py")
    # Each folder of tests by itself: several have a conftest.py.
    for folder in ("tests", *(f"packages/mtnlg-{package}/tests" for package in PACKAGES)):
        at_home(session, "mypy", folder)


@nox.session(default=False)
def lint(session: nox.Session) -> None:
    """Ruff: every rule but a short commented list, and the format."""
    session.install(RUFF)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session(venv_backend="none", default=False)
def wheels(session: nox.Session) -> None:
    """Build the four wheels; each by itself in a bare environment imports and its command answers."""
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        pip(session, sys.executable, "wheel", "--no-deps", "--wheel-dir", str(DIST), f"packages/mtnlg-{package}")
    for package in PACKAGES:
        bare = bare_environment(package)
        session.run(sys.executable, "-m", "virtualenv", "--quiet", "--clear", str(bare))
        install_wheel(session, package)
        session.run(str(bare / "bin" / "python"), "-c", f"import mtnlg_{package}")
        for option in ("--version", "--help"):
            session.run(str(bare / "bin" / f"mtnlg-{package}"), option)


@nox.session(venv_backend="none", default=False, requires=["wheels"])
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def alone(session: nox.Session, package: str) -> None:
    """Each package's tests against its wheel, with nothing installed but what it declares."""
    install_wheel(session, package, "[test]")
    python = bare_environment(package) / "bin" / "python"
    session.run(str(python), "-m", "pytest", f"packages/mtnlg-{package}/tests", *session.posargs)


def bare_environment(package: str) -> Path:
    """Where the environment that holds one package alone lies."""
    return Path(f".nox/bare-{package}")


def install_wheel(session: nox.Session, package: str, extra: str = "") -> None:
    """Install the package's wheel and what it declares; its siblings are named as files, never looked up."""
    python = str(bare_environment(package) / "bin" / "python")
    if package != "data":
        pip(session, python, "install", TORCH)
    siblings = [str(wheel_of(sibling)) for sibling in SIBLINGS[package]]
    pip(session, python, "install", *siblings, f"{wheel_of(package)}{extra}")


def wheel_of(package: str) -> Path:
    """The wheel that this run has built for a package."""
    return next(DIST.glob(f"mtnlg_{package}-*.whl"))


def house(session: nox.Session) -> None:
    """Put the shared environment on the path of this session, installing it where a pyproject.toml changed."""
    declared = [Path(f"packages/mtnlg-{package}/pyproject.toml").read_bytes() for package in PACKAGES]
    state = hashlib.sha256(b"".join([Path(__file__).read_bytes(), *declared])).hexdigest()
    stamp = HOUSE / "installed.sha256"
    python = str(HOUSE / "bin" / "python")
    if not stamp.exists() or stamp.read_text() != state:
        if not Path(python).exists():
            session.run(sys.executable, "-m", "virtualenv", "--quiet", str(HOUSE))
        # torch first and by itself: another package's request for it could bring another build.
        pip(session, python, "install", TORCH)
        extras = {package: "[test,kernels]" if package == "parallel" else "[test]" for package in PACKAGES}
        editable = [word for package in PACKAGES for word in ("-e", f"packages/mtnlg-{package}{extras[package]}")]
        pip(session, python, "install", *editable, TRITON, *CHECKERS)
        stamp.write_text(state)


def at_home(session: nox.Session, command: str, *words: str) -> None:
    """Run a command of the shared environment, which comes first on its path."""
    path = f"{HOUSE.absolute() / 'bin'}{os.pathsep}{os.environ['PATH']}"
    session.run(str(HOUSE / "bin" / command), *words, env={"PATH": path})


def pip(session: nox.Session, python: str, verb: str, *words: str) -> None:
    """Run pip quietly: what it prints is shown only where it fails."""
    session.log(f"pip {verb} {' '.join(words)}")
    session.run(python, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *words, silent=True, log=False)


if __name__ == "__main__":
    nox.main()
