"""The README's Python blocks print what their comments say, its recipe loads, and its commands and options exist."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import typer
from typer.main import get_command

from mtnlg_parallel.cli import app
from mtnlg_parallel.recipe import load_recipe

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_python_prints_what_the_comments_say() -> None:
    names: dict[str, object] = {}
    for block in blocks("python"):
        stdout = StringIO()
        with redirect_stdout(stdout):
            exec(compile(block, "README.md", "exec"), names)  # noqa: S102  (the block is what is tested)
        comments = [re.split(r"\s{2,}# ", line)[1] for line in block.splitlines() if line.startswith("print")]
        for line, comment in zip(stdout.getvalue().splitlines(), comments, strict=True):
            assert comment.startswith(line)


def test_the_recipe_loads(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text("".join(blocks("toml")))
    recipe = load_recipe(path)
    assert recipe.model.layers == 24


def test_every_command_and_option_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    context = typer.Context(get_command(app))
    uses = r"(?:mtnlg-parallel|mtnlg_parallel\.cli) ([a-z-]+) ((?:recipes|RECIPE|runs|RUN|mt-nlg|--).*)"
    used = re.findall(uses, README)
    assert {name for name, _ in used} == set(commands)
    for name, words in used:
        options = {option for parameter in commands[name].get_params(context) for option in parameter.opts}
        options |= {option for parameter in commands[name].get_params(context) for option in parameter.secondary_opts}
        assert set(re.findall(r"(?<!=)--[a-z-]+", words)) <= options
