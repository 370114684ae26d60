"""A whole curation: what comes out, that nothing is done twice, that no kill, worker or bad byte changes the end."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow.parquet as pq
import pytest

from mtnlg_data.cli import main
from mtnlg_data.engine import Local
from mtnlg_data.pipeline import curate
from mtnlg_data.recipe import load_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from mtnlg_data.engine import Summary

COMMAND = str(Path(sys.executable).with_name("mtnlg-data"))
STAGES = ["extract", "quality", "clean", "deduplicate", "decontaminate", "tokenize"]
MOST_KILLS = 4


class Run(Protocol):
    """A finished curation, as the fixture ``finished`` gives it."""

    recipe: Path
    out: Path
    summary: Summary


def run(recipe: Path, out: Path, *overrides: str, workers: int = 1) -> Summary:
    with closing(Local(workers)) as engine:
        return curate(load_recipe(recipe, overrides), out, engine)


def command(recipe: Path, out: Path, *options: str, **how: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401
    words = [COMMAND, "run", str(recipe), "--out", str(out), "--workers", "2", *options]
    return subprocess.run(words, capture_output=True, text=True, check=False, **how)


def tokens(out: Path) -> dict[str, bytes]:
    """What training reads."""
    names = ("tokenizer.json", "blend.json", "books.bin", "books.idx", "crawl.bin", "crawl.idx")
    return {name: (out / "tokens" / name).read_bytes() for name in names}


def changed(out: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path.parent != out}


# --- what comes out --------------------------------------------------------------------------------------------------


def test_every_stage_accounts_for_every_document(finished: Run) -> None:
    stages = finished.summary["stages"]
    assert [stage["name"] for stage in stages] == STAGES
    for stage in stages:
        assert list(stage["sources"]) == ["books", "crawl"]
        for source in stage["sources"].values():
            more = source["documents_out"] + sum(source["dropped"].values()) - source["documents_in"]
            assert more >= 0 if stage["name"] == "decontaminate" else more == 0, "only a cut makes two of one"
        assert stage["documents_in"] == sum(source["documents_in"] for source in stage["sources"].values())
    for before, after in pairwise(stages):
        assert after["documents_in"] == before["documents_out"]
        assert after["characters_in"] == before["characters_out"]
    dropped = {stage["name"]: stage["sources"]["crawl"]["dropped"] for stage in stages}
    assert dropped["quality"]["low_quality"] > 0
    assert dropped["deduplicate"]["duplicate"] > 0
    assert finished.summary["decontamination"]["cuts_by_task"]["boolq"] > 0


def test_the_summary_is_what_the_report_reads(finished: Run) -> None:
    summary = json.loads((finished.out / "summary.json").read_text())
    assert summary == finished.summary
    assert summary["version"] == 1
    assert set(summary) >= {"seconds", "quality", "languages", "duplicates", "decontamination", "tokens", "vocabulary"}
    assert set(summary["quality"]) >= {"accuracy", "auc", "edges", "candidates", "kept", "positives"}
    assert summary["languages"] == {"en": 200}
    assert summary["vocabulary"] == 400
    assert 0 < summary["unigram_entropy_nats"] < 6
    assert summary["tokens"]["books"]["weight"] == 0.4
    assert load_recipe(finished.out / "recipe.toml") == load_recipe(finished.recipe)


def test_of_twins_one_stays(finished: Run) -> None:
    texts = [
        text
        for path in (finished.out / "04-deduplicate").glob("crawl-*.parquet")
        for text in pq.read_table(path)["text"].to_pylist()
    ]
    assert len(texts) == len(set(texts))


def test_a_recipe_without_filtered_sources_has_no_quality_stage(tmp_path: Path, corpus: ModuleType) -> None:
    recipe = corpus.write_run(tmp_path, pages=20)
    summary = run(recipe, tmp_path / "data", "sources.crawl.filtered=false", "texts='texts.jsonl'")
    assert [stage["name"] for stage in summary["stages"]] == [name for name in STAGES if name != "quality"]


# --- nothing is done twice -------------------------------------------------------------------------------------------


class NoWork:
    """An engine that must not be asked for anything."""

    def imap(self, function: object, units: object) -> Iterator[Any]:
        raise AssertionError(f"{function} was to run over {units}")


def test_the_second_run_does_no_work_and_says_the_same(finished: Run) -> None:
    before = changed(finished.out)
    assert curate(load_recipe(finished.recipe), finished.out, NoWork()) == finished.summary
    assert changed(finished.out) == before


def test_a_changed_setting_moves_the_stages_behind_it_and_no_other(finished: Run, tmp_path: Path) -> None:
    shutil.copytree(finished.out, tmp_path / "data")
    before = changed(tmp_path / "data")
    run(finished.recipe, tmp_path / "data", "decontaminate.window=100")
    after = changed(tmp_path / "data")
    moved = {Path(path).relative_to(tmp_path / "data").parts[0] for path in after if after[path] != before.get(path)}
    assert moved == {"05-decontaminate", "06-tokenize", "tokens"}


@pytest.mark.parametrize(
    "victim", ["01-extract/crawl-00001.parquet", "03-clean/books-00000.parquet", "tokens/crawl.bin"]
)
def test_a_damaged_result_is_found_and_made_again(finished: Run, tmp_path: Path, victim: str) -> None:
    shutil.copytree(finished.out, tmp_path / "data")
    content = bytearray((tmp_path / "data" / victim).read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "data" / victim).write_bytes(content)
    run(finished.recipe, tmp_path / "data")
    assert (tmp_path / "data" / victim).read_bytes() == (finished.out / victim).read_bytes()
    assert tokens(tmp_path / "data") == tokens(finished.out)


def test_another_input_file_is_noticed(finished: Run, tmp_path: Path, corpus: ModuleType) -> None:
    folder = shutil.copytree(finished.recipe.parent, tmp_path / "moved")
    corpus.write_jsonl(folder / "raw" / "books" / "2.jsonl.zst", [{"text": corpus.text(n)} for n in range(200, 210)])
    summary = run(finished.recipe, folder / "data", f"input={folder}")
    assert summary["stages"][0]["documents_in"] == finished.summary["stages"][0]["documents_in"] + 10


# --- no kill and no number of workers changes the end ----------------------------------------------------------------


ENDS = [(os.killpg, signal.SIGKILL), (os.kill, signal.SIGKILL), (os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)]


def interrupted(recipe: Path, out: Path, rng: random.Random) -> int | None:
    """Start the command and kill it at a random moment; its exit status if it ended before."""
    words = [COMMAND, "run", str(recipe), "--out", str(out), "--workers", "2"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True) as process:
        assert process.stderr is not None
        for _ in range(rng.randrange(6)):  # so many lines of progress
            process.stderr.readline()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=rng.uniform(0, 0.4))
        kill, how = rng.choice(ENDS)
        kill(process.pid, how)
    return None


def test_killed_at_any_moment_a_run_by_other_workers_ends_with_the_same_tokens(finished: Run, tmp_path: Path) -> None:
    rng = random.Random()  # another sequence of moments every time
    kills = 0
    while kills < MOST_KILLS and interrupted(finished.recipe, tmp_path / "data", rng) is None:
        kills += 1
    assert kills, "not one kill came in time: the test shows nothing"
    run(finished.recipe, tmp_path / "data", workers=1)
    assert tokens(tmp_path / "data") == tokens(finished.out)
    assert not list((tmp_path / "data").rglob(".*.tmp"))
    stages = json.loads((tmp_path / "data" / "summary.json").read_text())["stages"]
    for ours, theirs in zip(stages, finished.summary["stages"], strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


# --- the world's faults and the user's -------------------------------------------------------------------------------


def last_line(ended: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr.strip().splitlines()[-1]


def limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_a_disk_that_takes_no_more_is_one_line_and_the_same_command_goes_on(finished: Run, tmp_path: Path) -> None:
    ended = command(finished.recipe, tmp_path / "data", preexec_fn=limit_file_size)
    assert ended.returncode == 1
    assert "File too large" in last_line(ended)
    assert str(tmp_path / "data") in last_line(ended)
    run(finished.recipe, tmp_path / "data")
    assert tokens(tmp_path / "data") == tokens(finished.out)


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (["--set", "input=/nowhere"], 1, "/nowhere/raw/books/*.jsonl.zst: no such file"),
        (["--set", "texts=none.jsonl"], 1, "none.jsonl: no such file of task texts"),
        (["--set", "sources.books.weight=0.5"], 2, "sum to 1.1, not to 1"),
        (["--set", "sources.books.colour=1"], 2, "sources.books.colour = 1: unknown key"),
        (["--workers", "0"], 2, ""),
        (["--set", "quality"], 2, "expected key=value"),
    ],
)
def test_what_cannot_work_ends_before_any_work(
    finished: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    options: list[str],
    status: int,
    words: str,
) -> None:
    command_line = ["mtnlg-data", "run", str(finished.recipe), "--out", str(tmp_path / "data"), *options]
    monkeypatch.setattr(sys, "argv", command_line)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    assert words in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "data").exists()


def test_a_folder_in_which_another_run_is_at_work_is_refused(finished: Run) -> None:
    with (finished.out / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        ended = command(finished.recipe, finished.out)
    assert (ended.returncode, last_line(ended).endswith("wait for it, or give another --out")) == (1, True)


def test_bad_input_costs_its_records_and_nothing_else(finished: Run, tmp_path: Path, corpus: ModuleType) -> None:
    recipe = corpus.write_run(tmp_path)
    crawl = tmp_path / "raw" / "crawl"
    good = corpus.member(corpus.record(corpus.page(corpus.text(5000)).encode()))
    (crawl / "cut.warc.gz").write_bytes(good + corpus.member(corpus.record(b"<p>" + os.urandom(4000)))[:-900])
    (crawl / "empty.warc.gz").write_bytes(b"")
    (crawl / "lies.warc.gz").write_bytes(corpus.member(corpus.record(b"x" * 900, length=10**9)) + good)
    (crawl / "noise.warc.gz").write_bytes(random.Random(0).randbytes(5000))
    (crawl / "not-text.warc.gz").write_bytes(corpus.member(corpus.record(bytes(range(256)) * 20)))
    (tmp_path / "raw" / "books" / "torn.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd torn")
    extracted = run(recipe, tmp_path / "data")["stages"][0]
    clean = finished.summary["stages"][0]
    assert extracted["documents_out"] == clean["documents_out"] + 2
    reasons = {reason for source in extracted["sources"].values() for reason in source["dropped"]}
    assert reasons == {"truncated", "too_large", "unreadable", "not_text"}
    assert {error["where"].partition(":")[0] for error in extracted["errors"]} == {
        "cut.warc.gz",
        "lies.warc.gz",
        "noise.warc.gz",
        "torn.jsonl.zst",
    }
