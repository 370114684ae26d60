"""`plan` works where only what the README names for it is installed: no torch, DeepSpeed, megatron-core."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

import mtnlg_data
import mtnlg_model
import mtnlg_parallel

PACKAGE = Path(__file__).parents[1]
README = (PACKAGE / "README.md").read_text(encoding="utf-8")
OURS = {"mtnlg-data": mtnlg_data, "mtnlg-model": mtnlg_model, "mtnlg-parallel": mtnlg_parallel}


def needed() -> dict[str, Distribution]:
    """The distributions that `pip install` brings for the packages that the README names, from this environment."""
    found: dict[str, Distribution] = {}
    names = re.findall(r"^pip install (jinja2 .*)$", README, re.MULTILINE)[0].split()
    while names:
        name = names.pop()
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # of another version of Python
            continue
        requires = [text for text in found[name].requires or () if "extra ==" not in text]
        names += {re.split(r"[^\w.-]", text)[0] for text in requires} - found.keys()
    return found


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of packages that holds nothing but these and ours."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for each in needed().values():
        for name in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            (folder / name).symlink_to(str(each.locate_file(name)))
    for name, module in OURS.items():
        (folder / module.__name__).symlink_to(Path(str(module.__file__)).parent)
        for file in distribution(name).files or ():
            if file.name == "METADATA":
                (folder / file.parts[0]).symlink_to(str(distribution(name).locate_file(file.parts[0])))
    return folder


def run(bare: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(bare)}
    command = [sys.executable, "-S", "-c", code, *words]  # -S: without this environment's packages
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=bare.parent, check=False)


def test_install_page_names_the_same_packages() -> None:
    path = PACKAGE.parents[1] / "docs" / "how-to" / "install.md"
    if not path.exists():
        pytest.skip("only the package is here")
    page = path.read_text(encoding="utf-8")
    for command in re.findall(r"^pip install (?:jinja2|--no-deps) .*$", README, re.MULTILINE):
        assert f"$ {command}\n" in page


def test_plans_searches_and_draws(bare: Path, tmp_path: Path) -> None:
    for module in ("torch", "deepspeed", "megatron", "tokenizers"):
        assert "ModuleNotFoundError" in run(bare, f"import {module}").stderr
    (tmp_path / "train.toml").write_text(
        '[model]\npreset = "dense-1.3b"\n[layout]\npp = 2\n[train]\nsamples = 1000\nbatch = 64\nlr = 1e-4\n'
        'schedule = "zero-bubble"\n'
    )
    for words in (
        ["mt-nlg-530b", "--cluster", "selene", "--scaling", "280,350"],
        ["dense-1.3b", "--nodes", "1", "--search"],
        ["train.toml", "--html", "plan.html", "--json"],
    ):
        done = run(bare, "from mtnlg_parallel.cli import main; main()", "plan", *words)
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schedule"] == "zero-bubble"
    assert (tmp_path / "plan.html").stat().st_size > 1000
