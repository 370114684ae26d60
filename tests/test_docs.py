"""The site: its code blocks run, its commands exist, and no page loads anything from elsewhere.

The tutorials run in their order in one folder, then the how-to guides with the files that the tutorials leave. What a
page shows as output must come: numbers may differ, as times do, but where the block has the class ``exact``. A
``console`` block says in its first line what it needs that is not here; its commands and options must exist.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.main import get_command

from recipe_keys import unknown

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = ROOT / "build" / "site"
RESULTS = ROOT / "benchmarks" / "results"
FENCE = re.compile(r"^```(\{code-block\} )?(\w+)\n((?::[^\n]*\n)*)(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN, SHOWN = {"bash", "python"}, {"text", "toml", "json", "yaml"}
PACKAGES = ("data", "model", "parallel", "eval")
needs_site = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="nox -s docs has not built the site")


class Block(NamedTuple):
    language: str
    options: dict[str, str]
    text: str


def pages_in_order(section: str) -> list[str]:
    """The pages of a section, as its table of contents has them."""
    index = (DOCS / section / "index.md").read_text(encoding="utf-8")
    return [f"{section}/{name}" for name in re.findall(r"^[\w-]+$", index.split("{toctree}")[1], re.MULTILINE)]


RUN_PAGES = [*pages_in_order("tutorials"), *pages_in_order("how-to")]
OWN_PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.parent.name != "decisions")


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).with_suffix(".md").read_text(encoding="utf-8")
    return [
        Block(language, dict(re.findall(r"^:(\w+): ?(.*)$", options, re.MULTILINE)), body.lstrip("\n"))
        for _, language, options, body in FENCE.findall(text)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tutorials")


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
    }
    start = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    return subprocess.run(
        [*start, block.text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


def comparable(line: str, exact: bool) -> list[str]:
    """The words of a line; a number is any number, unless the page promises this one."""
    return (line if exact else re.sub(r"\d[\d,.]*", "0", line)).split()


def check_printed(block: Block, printed: str) -> None:
    exact = "exact" in block.options.get("class", "")
    lines = [comparable(line, exact) for line in printed.splitlines()]
    for line in filter(str.strip, block.text.splitlines()):
        assert comparable(line, exact) in lines, f"not printed: {line}\n{printed}"


_done: list[str] = []


@pytest.mark.parametrize("page", RUN_PAGES)
def test_blocks_of_a_page_run_and_print_what_it_shows(page: str, folder: Path) -> None:
    for name in RUN_PAGES[: RUN_PAGES.index(page) + 1]:  # the pages before leave the files that this one uses
        if name not in _done:
            _done.append(name)
            run_page(name, folder)


def run_page(page: str, folder: Path) -> None:
    printed = ""
    for block in blocks(page):
        if name := block.options.get("caption"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(block.text, encoding="utf-8")
        elif block.language in RUN:
            done = run(block, folder)
            assert done.returncode == 0, f"{page}: {block.text}\n{done.stdout}"
            printed = done.stdout
        elif block.language == "text":
            check_printed(block, printed)


@pytest.mark.parametrize(
    ("page", "command", "printed"),
    [
        ("how-to/your-own-step", "mtnlg-data step shout --help", "Most capital letters"),
        (
            "how-to/your-own-reader",
            "python -c 'from mtnlg_data.sources.reader import load_reader; print(load_reader(\"mbox\"))'",
            "my_package.readers.Mbox",
        ),
    ],
)
def test_entry_point_that_a_page_shows_is_found_by_its_name(
    page: str, command: str, printed: str, tmp_path: Path
) -> None:
    """The page's code as the package that it names, installed: a folder with the metadata that pip writes."""
    (shown,) = re.findall(
        r"^    \[project\.entry-points[^\n]*\n(?:    .*\n)+", (DOCS / f"{page}.md").read_text("utf-8"), re.MULTILINE
    )
    ((group, points),) = tomllib.loads(dedent(shown))["project"]["entry-points"].items()
    files = {f"my_package/{block.options.get('caption')}": block.text for block in blocks(page)}
    files["own-1.0.dist-info/METADATA"] = "Metadata-Version: 2.1\nName: own\nVersion: 1.0\n"
    files["own-1.0.dist-info/entry_points.txt"] = "\n".join(
        [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    )
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = run(Block("bash", {}, f"PYTHONPATH=.:${{PYTHONPATH:-}} {command}"), tmp_path)
    assert printed in done.stdout


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/explanation/tested.md", "docs/benchmarks.md"])
def test_what_a_page_names_as_proof_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:benchmarks|docs|packages|recipes|tests)/[a-z\d_./-]+|\d{4}-\d\d-\d\d-[\w-]+\.json)`", text
    )
    assert named
    assert not [name for name in named if not any((folder / name).exists() for folder in (ROOT, RESULTS))]


def test_the_plan_of_the_readme_errs_as_it_says(folder: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^mtnlg-parallel plan .*--scaling.*$", text, re.MULTILINE)
    says = re.search(r"on 350 and 420 nodes they are .(\d\.\d) % and .(\d\.\d) % off", text)
    assert says
    printed = run(Block("bash", {}, command), folder).stdout
    assert [error for error in says.groups() if f"-{error}%" not in printed] == [], printed


def test_decision_records_and_package_guides_are_short() -> None:
    records = [*(DOCS / "decisions").glob("0*.md")]
    assert len(records) <= 30
    limits = {**dict.fromkeys(records, 250), **dict.fromkeys((DOCS / "packages").glob("*.md"), 1500)}
    assert [path.name for path, words in limits.items() if len(path.read_text("utf-8").split()) > words] == []


@pytest.mark.parametrize("page", [*OWN_PAGES, *(f"../packages/mtnlg-{package}/README.md" for package in PACKAGES)])
def test_pages_install_only_from_existing_places(page: str) -> None:
    assert re.findall(r"pip install ['\"]?mtnlg-", (DOCS / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("run", ["mt-nlg-530b", f"{ROOT}/recipes/mt-nlg-530b", f"{ROOT}/recipes/mt-nlg-530b-2022"])
def test_the_days_of_mt_nlg_are_those_of_its_plans(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    app = importlib.import_module("mtnlg_parallel.cli").app
    get_command(app)(["plan", run, "--cluster", "selene", "--tokens", "270B"], standalone_mode=False)
    (days,) = re.findall(r"270 billion tokens: (\d+\.\d) days", capsys.readouterr().out)
    assert f" {days} " in (DOCS / "explanation/twelve-steps.md").read_text(encoding="utf-8")


def test_benchmarks_page_matches_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    measurements = importlib.import_module("measurements")
    shown = [measurements.read_ratio(row) for row in measurements.ROWS]
    assert [ratio for ratio in shown if not ratio.least < ratio.median < ratio.most] == []
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("times as fast |\n", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[1:]]
    assert all(all(row) for row in [*rows, *(ratio[:2] + ratio[-1:] for ratio in shown)]), "a row lacks what differs"
    claimed = [figure for row in rows for figure in row[-1].split(";")]
    assert len(claimed) > 10
    rounded = {f"{ratio.median:.{digits}f}" for ratio in shown for digits in (0, 1)}
    assert [figure for figure in claimed if figure.strip() not in rounded] == []


@pytest.mark.parametrize("page", OWN_PAGES)
def test_code_block_runs_is_shown_or_states_its_requirements(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    directives = re.findall(r"^```\{(?!code-block)", text, re.MULTILINE)
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * (len(blocks(page)) + len(directives)), (
        "a fence without kind"
    )
    for block in blocks(page):
        if page.removesuffix(".md") in RUN_PAGES and block.language in RUN:
            continue
        if block.language == "console":
            assert re.match(r"\$ # needs \w", block.text), f"{page}: say what is needed in the first line\n{block.text}"
            check_commands(block.text, page)
        else:
            assert block.language in SHOWN, f"{page}: a block that nothing runs\n{block.text}"


@pytest.mark.parametrize("page", [*OWN_PAGES, *(f"../packages/mtnlg-{package}/README" for package in PACKAGES)])
def test_a_recipe_that_a_page_shows_has_only_keys_that_exist(page: str) -> None:
    shown = [tomllib.loads(block.text) for block in blocks(page) if block.language == "toml"]
    assert [key for recipe in shown for key in unknown(recipe)] == []


def options_of(command: Any) -> set[str]:  # noqa: ANN401  (typer's own kind of command)
    """A command's arguments and options; a stage makes them when it runs."""
    context = command.make_context("", [], resilient_parsing=True)
    return {name for option in context.command.get_params(context) for name in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_commands_of_a_readme_that_the_site_includes_exist(package: str) -> None:
    """Its python and bash blocks run in the package's own tests."""
    page = f"../packages/mtnlg-{package}/README"
    for block in blocks(page):
        if block.language in {"console", "bash", "sh"}:
            check_commands(block.text, page)


def check_commands(text: str, page: str) -> None:
    """Each command of ours in a block exists, with the options that it is given."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if not words or words[0] not in {f"mtnlg-{name}" for name in PACKAGES} or words[1] == "lm-eval":
            continue  # lm-eval's options are its own
        app = importlib.import_module(f"{words[0].replace('-', '_')}.cli").app
        commands = get_command(app).commands  # type: ignore[attr-defined]
        takes = [words[1], *(["run"] if words[1] == "watch" else [])]  # which passes them on
        known = {option for name in takes for option in options_of(commands[name])}
        used = {word.partition("=")[0] for word in words[2:] if word.startswith("-")}
        assert used <= known, f"{page}: {line}: no such option: {used - known}"


class Assets(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"src", "srcset", "data", "poster"} | ({"href"} if tag in {"link", "use", "image"} else set())
        self.fetched += [str(value) for name, value in attrs if name in names]


@needs_site
def test_the_site_loads_nothing_from_elsewhere() -> None:
    pages = sorted(SITE.rglob("*.html"))
    assert len(pages) > 60
    remote = re.compile(r"(https?:)?//")
    for page in pages:
        fetched = Assets(page.read_text(encoding="utf-8")).fetched
        assert not [target for target in fetched if remote.match(target)], page
    for style in SITE.rglob("*.css"):
        found = re.findall(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^)'\"]+)", style.read_text("utf-8"))
        assert not found, style


@needs_site
@pytest.mark.parametrize(
    ("word", "guide"),
    [("dedup", "deduplicate"), ("finetun", "fine-tune"), ("finetun", "continue-pretraining"), ("resum", "steer-a-run")],
)
def test_the_site_finds_a_guide_by_the_stem_of_a_word(word: str, guide: str) -> None:
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    assert index["docnames"].index(f"how-to/{guide}") in [*np.atleast_1d(index["terms"][word])]


@needs_site
@pytest.mark.parametrize("package", PACKAGES)
def test_the_site_has_every_public_name_and_command(package: str) -> None:
    names = importlib.import_module(f"mtnlg_{package}").__all__
    page = (SITE / "reference" / f"python-{package}.html").read_text(encoding="utf-8")
    assert not [name for name in names if not re.search(rf'id="mtnlg_{package}\.([\w.]+\.)?{name}"', page)]
    commands = get_command(importlib.import_module(f"mtnlg_{package}.cli").app).commands  # type: ignore[attr-defined]
    page = (SITE / "reference" / f"commands-{package}.html").read_text(encoding="utf-8")
    assert not [name for name in commands if f'id="mtnlg-{package}-{name}"' not in page]
    assert not [option for name in commands for option in options_of(commands[name]) if option not in page]
