"""A user's own code in a recipe: functions and Step classes, by file, module or entry point."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from command_line import command, invoke
from engines import NoWork
from shards import stored_rows

from mtnlg_data import Clean, Deduplicate, Extract, Local, Recipe, curate, load_recipe, open_engine
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.planning.corpus_size import assumed_corpus
from mtnlg_data.planning.plan import plan
from mtnlg_data.report import write_report
from mtnlg_data.report.why import explain
from mtnlg_data.transfer.publish import last_stage
from mtnlg_data.user_code import code_digest, open_step

FILTERS = '''
import pyarrow.compute as pc
import pyarrow.parquet as pq
from mtnlg_data import Document, Drop, Outcome, Rule, Step, measure
from mtnlg_data.settings import Settings, setting

ADVERTS = ("buy now", "order today")

def words(text):
    """Words of a text."""
    return len(text.split())

def keep_long(text: str, least: int = 100) -> bool:
    return words(text) >= least

def fix(document: Document) -> str | Drop | None:
    if any(advert in document.text.lower() for advert in ADVERTS):
        return Drop("advert", float(len(document.text)))
    return document.text.replace("harbour", "port") if document.source == "books" else None

def mask(batch, most: int = 100_000):
    return pc.less(pc.utf8_length(batch["text"]), most)

def wrong(text: str) -> int:
    return 3

def surrogate(text: str) -> str:
    return chr(0xD800)

def leaves(text: str) -> bool:
    raise SystemExit(3)

def nothing():
    return True

class Empty(Step[Settings]):
    version = 1

class NoFunction(Step[Settings]):
    version = 1

    def open(self, shard, item=None):
        pass

class NoOutcome(Step[Settings]):
    version = 1

    def open(self, shard, item=None):
        return lambda batch: 3

class TinySettings(Settings):
    least: int = setting(10, "Fewest characters.", unit="characters", ge=0)

class Tiny(Step[TinySettings]):
    version = 1

    def open(self, shard, item=None, **shared):
        def decide(batch):
            lengths = pc.utf8_length(batch["text"]).to_numpy()
            return Outcome.keep(batch, lengths >= self.settings.least, "tiny", lengths)
        return decide

class TrustKeys(Settings):
    trusted: bool = setting(False, "Pass the documents unchanged.")

class Trust(Step[TinySettings, TrustKeys]):
    version = 1
    open = Tiny.open

    def role(self, source):
        return "past" if self.sources[source].trusted else "through"

@measure("harbours", rules=[Rule("harbour_words", at_most=setting(1, "Most harbours.", ge=0))])
def harbours(batch, settings):
    return [pc.count_substring(batch.column, "harbour").to_numpy()]

def count_words(item, output, per):
    table = pq.read_table(item.path, columns=["text"])
    output.write_text(str(sum(map(words, table["text"].to_pylist())) // per))
    return {"words": int(output.read_text())}

class MeanSettings(Settings):
    most: float = setting(10.0, "Most words of a document, in means.", gt=0)

class Mean(Step[MeanSettings]):
    version = 1

    def open(self, shard, item=None, mean=None):
        def decide(batch):
            counts = pc.add(pc.count_substring(batch["text"], " "), 1).to_numpy()
            return Outcome.keep(batch, counts <= mean * self.settings.most, "long", counts)
        return decide

    def run(self, job):
        counted = job.map("count", count_words, [(s, job.state / f"{s.path.stem}.n") for s in job.shards], per=1)
        documents = sum(shard.rows for shard in job.shards)
        job.details["mean"] = sum(one.summary["words"] for one in counted) / documents
        return job.write(mean=job.details["mean"])
'''
RECIPE = """
steps = ["extract", "clean", "long", "fix", "deduplicate", "mask", "tiny", "mean"]

[sources.books]
kind = "jsonl"
paths = ["raw/books.jsonl"]

[sources.web]
kind = "jsonl"
paths = ["raw/web.jsonl"]

[clean]
shortest = 0
where.source.books = { shortest = 300 }
where.language.de = { shortest = 10_000 }
languages = ["en", "de"]

[long]
use = "code/filters.py:keep_long"
least = 60
only = ["web"]

[fix]
use = "code/filters.py:fix"

[mask]
use = "code/filters.py:mask"
except = ["books"]

[tiny]
use = "code/filters.py:Tiny"

[mean]
use = "code/filters.py:Mean"
most = 1.5
"""
GERMAN = "Das ist ein deutscher Satz über einen Hafen, der hier immer schon war und bleibt. " * 8


def write_inputs(folder: Path) -> Path:
    """Raw files of two sources, filters.py and the recipe; returns the recipe."""
    (folder / "code").mkdir()
    (folder / "code" / "filters.py").write_text(FILTERS)
    books = [corpus.text(number) for number in range(30)]
    web = [corpus.text(100 + n, good=n % 2 == 0) for n in range(20)] + ["Only a few words of English, and no more."] * 2
    corpus.write_jsonl(folder / "raw" / "books.jsonl", [{"text": text} for text in books])
    corpus.write_jsonl(folder / "raw" / "web.jsonl", [{"text": text} for text in [*web, GERMAN]])
    (folder / "data.toml").write_text(RECIPE)
    return folder / "data.toml"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def run(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a finished run by two workers, which load the code themselves, and its summary."""
    out = tmp_path_factory.mktemp("run") / "data"
    with closing(Local(2)) as engine:
        return out, curate(load_recipe(recipe), out, engine)


def digests(out: Path) -> dict[str, str]:
    """Shards and records of every step."""
    return {str(path.relative_to(out)): sha256(path.read_bytes()).hexdigest() for path in out.rglob("*.parquet")}


def stage(summary: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in summary["stages"] if one["name"] == name)
    return found


def documents(out: Path, step: str) -> list[dict[str, Any]]:
    return stored_rows(sorted((out / step).glob("*.parquet")))


def test_functions_and_classes_keep_drop_and_change(run: tuple[Path, dict[str, Any]]) -> None:
    out, summary = run
    assert [one["name"] for one in summary["stages"]] == tomllib.loads((out / "recipe.toml").read_text())["steps"]
    assert stage(summary, "long")["sources"]["web"]["dropped"] == {"long": 2}
    assert stage(summary, "long")["sources"]["books"]["documents_out"] == 30
    assert stage(summary, "fix")["sources"]["web"]["dropped"] == {"advert": 10}
    assert not any("harbour" in row["text"] for row in documents(out, "03-fix") if row["source"] == "books")
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        *("01-extract", "03-clean", "03-long", "03-fix", "04-deduplicate", "04-mask", "04-tiny", "04-mean")
    }
    assert stage(summary, "mean")["details"]["mean"] > 60
    (dropped,) = (out / "03-fix" / "dropped").glob("*.parquet")
    assert {(row["reason"], row["score"] > 100) for row in pq.read_table(dropped).to_pylist()} == {("advert", True)}
    page = write_report(out).read_text()
    assert not [name for name in ("long", "fix", "advert", "mask", "tiny", "mean") if f">{name}<" not in page]


def test_why_and_inspect_go_by_the_order_of_the_recipe(run: tuple[Path, dict[str, Any]]) -> None:
    out, _ = run
    dropped, *_ = stored_rows((out / "03-fix" / "dropped").glob("*.parquet"))
    assert command("why", out, dropped["id"]).output.splitlines()[1:] == [
        *(f"  {name:<14} kept" for name in ("extract", "clean", "long")),
        f"  {'fix':<14} dropped as advert ({dropped['score']:g})",
    ]
    assert last_stage(out) == out / "04-mean"


def test_plan_says_that_their_cost_is_unknown(recipe: Path) -> None:
    resolved = load_recipe(recipe)
    planned = plan(resolved, assumed_corpus(resolved, 1000), 2)
    assert planned["unknown"] == ["long", "fix", "mask", "tiny", "mean"]
    assert planned["hours"] > 0


def test_the_resolved_recipe_reads_back(recipe: Path, run: tuple[Path, dict[str, Any]]) -> None:
    assert load_recipe(run[0] / "recipe.toml").dump() == load_recipe(recipe).dump()


def test_finished_run_is_idle_and_a_setting_reruns_its_step(recipe: Path, run: tuple[Path, dict[str, Any]]) -> None:
    assert curate(load_recipe(recipe), run[0], NoWork()) == run[1]
    with pytest.raises(AssertionError, match="03-long"):
        curate(load_recipe(recipe, ["long.least=61"]), run[0], NoWork())
    with pytest.raises(AssertionError, match="04-tiny"):
        curate(load_recipe(recipe, ["tiny.least=11"]), run[0], NoWork())


@pytest.mark.parametrize(
    ("old", "new", "reruns"),
    [
        ('"""Words of a text."""', '"""How many words."""', False),
        ("return 3", "return 4", False),  # of a definition that keep_long does not reach
        ("text.split()", "text.split(' ')", True),  # of one that it does
        ("least: int = 100", "least: int = 101", True),
    ],
)
def test_step_version_covers_all_code_it_reaches(tmp_path: Path, old: str, new: str, *, reruns: bool) -> None:
    found = []
    for name, text in (("a", FILTERS), ("b", FILTERS.replace(old, new))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "filters.py").write_text(text)
        found.append(code_digest(open_step("filters.py:keep_long", tmp_path / name)().implementation()))
    assert (found[0] != found[1]) is reruns


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["long.leest=3"], "long.leest = 3: unknown key; did you mean least?"),
        (["long.least=many"], "long.least = 'many': Input should be a valid integer"),
        (["long.only=['wbe']"], "long: no source 'wbe'; did you mean web?"),
        (["long.use=code/filters.py:keep_lnog"], "code/filters.py has no 'keep_lnog'; did you mean keep_long?"),
        (["long.use=no_package:keep"], "no_package cannot be imported: ModuleNotFoundError"),
        (["long.use=code/filters.py:ADVERTS"], "neither a function nor a subclass of Step"),
        (["long.use=code/filters.py:nothing"], "code/filters.py:nothing: has no parameter"),
        (["long.use=code/filters.py:Empty"], "code/filters.py:Empty: defines neither open nor run"),
        (["long.use=code/filters.py"], "code/filters.py: write code/filters.py:NAME; it has "),
        (["steps=['extract','lnog']"], "lnog: no such step"),
        (["steps=['clean']"], "clean takes documents, but the step before it gives files"),
        (["steps=['extract','tokenize','clean']"], "clean takes documents, but the step before it gives tokens"),
        (
            ["deduplicate.where.source.books.rows=1"],
            "deduplicate.where = ",
        ),
        (["clean.where.source.books.shrtest=1"], "shrtest = 1: unknown key; did you mean shortest?"),
    ],
)
def test_impossible_run_is_refused_before_any_work(recipe: Path, overrides: list[str], line: str) -> None:
    with pytest.raises(UsageFailure) as failure:
        load_recipe(recipe, overrides)
    assert line in str(failure.value)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wrong", "bad: gave 3 for books/books.jsonl/0"),
        ("surrogate", "bad: UnicodeEncodeError for books/books.jsonl/0"),
        ("leaves", "bad: SystemExit for books/books.jsonl/0: 3"),
        ("NoFunction", "bad: open gave None"),
        ("NoOutcome", "bad: gave 3 for a batch"),
    ],
)
def test_invalid_result_type_is_a_one_line_error(recipe: Path, tmp_path: Path, name: str, line: str) -> None:
    loaded = load_recipe(recipe, ["steps=['extract','bad']", f"bad.use=code/filters.py:{name}"])
    with closing(Local(1)) as engine, pytest.raises(Failure) as failure:
        curate(loaded, tmp_path / "o", engine)
    assert "\n" not in str(failure.value)
    assert str(failure.value).startswith(line)


KILLED = """
import os, signal, sys
from mtnlg_data.engine import tasks
left, write = int(sys.argv[1]), tasks.write_json
def dying(path, value):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, value)
tasks.write_json = dying
from mtnlg_data.cli import main
sys.argv[1:] = sys.argv[2:]
main()
"""


def test_killed_in_every_step_it_resumes_with_other_workers_and_engines(
    recipe: Path, run: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    out = tmp_path / "data"
    statuses: list[int] = []
    words = ["run", str(recipe), "--out", str(out)]
    while not statuses or statuses[-1] == -signal.SIGKILL:
        killed = subprocess.run([sys.executable, "-c", KILLED, "4", *words, "--workers", "1"], check=False)
        statuses.append(killed.returncode)
        if len(statuses) == 2:
            part = ("--engine", "ray", "--workers", "2", "--set", "steps=['extract','clean','long','fix']")
            subprocess.run([sys.executable, "-m", "mtnlg_data.cli", *words, *part], check=True)
    assert statuses[-1] == 0
    assert len(statuses) > 3
    assert digests(out) == digests(run[0])


def test_step_moved_or_left_out_leaves_nothing_that_is_read(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    for steps, folders in (
        ("'extract','long','clean'", ["01-extract", "01-long", "03-clean"]),
        ("'extract','clean','long'", ["01-extract", "03-clean", "03-long"]),
        ("'extract','clean'", ["01-extract", "03-clean", "03-long"]),
    ):
        shown = command("run", recipe, "--out", out, "--workers", 1, "--set", f"steps=[{steps}]").output
        assert sorted(path.name for path in out.iterdir() if path.is_dir()) == folders
    assert f"{out}/03-long: output of long, which steps leaves out now" in shown
    assert last_stage(out) == out / "03-clean"
    assert ">long<" not in (out / "report.html").read_text()
    first, *_ = documents(out, "03-clean")
    assert [one["stage"] for one in explain(out, first["id"])[0]["stages"]] == ["extract", "clean"]


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_worker_with_other_code_of_a_step_refuses(tmp_path: Path, engine: Literal["local", "ray"]) -> None:
    recipe = load_recipe(write_inputs(tmp_path), ["steps=['extract','long']"])
    assert [step.code() for step in recipe.steps]  # of the code as it is on the machine that starts the run
    code = tmp_path / "code" / "filters.py"
    code.write_text(code.read_text().replace("text.split()", "text.split(' ')"))
    with open_engine(engine, 2) as workers, pytest.raises(Failure) as failure:
        curate(recipe, tmp_path / "o", workers)
    line = f"long: code/filters.py:keep_long is another version on {os.uname().nodename}; all need the same"
    assert str(failure.value) == line


def test_an_installed_package_gives_steps_and_rules(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By entry point or import path; the steps have keys of sources, and settings by source and language."""
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    groups = {"steps": "shorter = their_steps:keep_long", "rules": "harbours = their_steps:harbours"}
    (info / "entry_points.txt").write_text("".join(f"[mtnlg_data.{key}]\n{line}\n" for key, line in groups.items()))
    (tmp_path / "their_steps.py").write_text(FILTERS)
    monkeypatch.syspath_prepend(tmp_path)
    tables = [
        *(
            "steps=['extract','filter','shorter','again','trust']",
            "shorter.least=5",
            "sources.books.filters=['harbours']",
        ),
        *("again.use=their_steps:keep_long", "again.least=1", "again.where.language.de.least=1000"),
        *("again.where.source.web.least=60", "trust.use=their_steps:Trust", "trust.least=1_000_000"),
        "sources.books.trusted=true",
    ]
    summary = curate(load_recipe(recipe, tables), tmp_path / "o", Local(1))
    dropped = {
        (one["name"], source): counts["dropped"]
        for one in summary["stages"]
        for source, counts in one["sources"].items()
        if counts["dropped"]
    }
    harbours = sum(corpus.text(number).count("harbour") > 1 for number in range(30))
    assert dropped == {
        ("filter", "books"): {"harbour_words": harbours},
        ("again", "web"): {"again": 3},  # two of few words, and the German text
        ("trust", "web"): {"tiny": 20},
    }
    assert stage(summary, "trust")["documents_out"] == 30 - harbours


def test_one_step_by_itself_on_the_command_line(run: tuple[Path, dict[str, Any]], recipe: Path, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(recipe.parent)
    invoke("step", "code/filters.py:keep_long", run[0] / "03-clean", "--out", tmp_path / "o", "--least", 60)
    (only,) = json.loads((tmp_path / "o" / "summary.json").read_text())["stages"]
    assert only["sources"]["web"]["dropped"] == {"keep_long": 2}
    shown = command("step", "code/filters.py:keep_long", "--help").output
    assert "--least" in shown
    assert command("step", "code/filters.py:keep_long", "x", "--out", "y", "--leest", "1").exit_code == 2


def keep_even(text: str) -> bool:
    """Keep texts of even length."""
    return len(text) % 2 == 0


def test_a_pipeline_in_python(recipe: Path, tmp_path: Path) -> None:
    sources = {"books": {"kind": "jsonl", "paths": ["raw/*.jsonl"]}}
    pipeline = Recipe.of(sources, [Extract(), Clean(shortest=300), keep_even, Deduplicate(rows=10)], recipe.parent)
    summary = curate(pipeline, tmp_path / "o", Local(1))
    assert [one["name"] for one in summary["stages"]] == ["extract", "clean", "keep_even", "deduplicate"]
    assert all(len(row["text"]) % 2 == 0 for row in documents(tmp_path / "o", "03-keep_even"))


def test_built_in_stage_is_one_file(tmp_path: Path) -> None:
    """A file dropped into steps/ is a step: in the default order, a command, a table of recipes."""
    package = Path(str(sys.modules["mtnlg_data"].__file__)).parent
    copy = tmp_path / "mtnlg_data"
    shutil.copytree(package, copy)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    keys = (
        "import sys; from mtnlg_data import load_recipe; print([s.run_key() for s in load_recipe(sys.argv[1]).steps])"
    )
    printed = []
    for wording in ("", "Reworded: "):  # of docstrings, of what settings mean and of errors, which no key covers
        for path in copy.glob("steps/*.py"):
            text = re.sub(r'"""(?=[A-Z])', f'"""{wording}', path.read_text())
            path.write_text(re.sub(r'(Failure\(f?|^ +)"(?=[A-Z])', rf'\1"{wording}', text, flags=re.MULTILINE))
        words = [sys.executable, "-c", keys, str(corpus.write_run(tmp_path, 2))]
        printed.append(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)
    assert '"""Reworded: ' in (copy / "steps" / "clean.py").read_text()
    assert printed[0] == printed[1]
    (copy / "steps" / "shout.py").write_text(
        '"""Drop documents that shout."""\n\n'
        "import numpy as np\n"
        "from mtnlg_data.settings import Settings, setting\n"
        "from mtnlg_data.step import Outcome, Step\n\n"
        "class ShoutSettings(Settings):\n"
        '    most: float = setting(0.5, "Most capital letters.", unit="share", ge=0, le=1)\n\n'
        "class Shout(Step[ShoutSettings]):\n"
        "    number, version = 3, 1\n\n"
        "    def open(self, shard, item=None, **shared):\n"
        "        def decide(batch):\n"
        '            texts = batch["text"].to_pylist()\n'
        "            shares = np.array([sum(map(str.isupper, text)) / max(1, len(text)) for text in texts])\n"
        '            return Outcome.keep(batch, shares <= self.settings.most, "shout", shares)\n'
        "        return decide\n"
    )
    (tmp_path / "in.jsonl").write_text('{"text": "LOUD"}\n{"text": "a quiet text"}\n')
    command = [sys.executable, "-m", "mtnlg_data.cli"]
    words = ["shout", "in.jsonl", "--out", "o", "--most", "0.3", "--workers", "1", "--json"]
    done = subprocess.run([*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["stages"][1]["sources"]["documents"]["dropped"] == {"shout": 1}
    shown = subprocess.run([*command, "--help"], env=environment, capture_output=True, text=True, check=True).stdout
    assert "Drop documents that shout." in shown
