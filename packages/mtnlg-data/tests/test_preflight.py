"""What a recipe names is opened before its first stage, by ``run`` and ``plan``: one message has all that is wrong."""

from __future__ import annotations

import gzip
import subprocess
import sys
from typing import TYPE_CHECKING

import language_model as language_models
import pytest
import small_corpus as corpus
from command_line import command, invoke

from mtnlg_data import Decontaminate, load_recipe
from mtnlg_data.console import Failure, IoFailure, error_status
from mtnlg_data.filters.lists import check_list
from mtnlg_data.pipeline import check_inputs

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The recipe of the small corpus, with its files."""
    return corpus.write_run(tmp_path, pages=4)


def refusals(recipe: Path, *overrides: str) -> list[list[str]]:
    """What ``run`` and ``plan`` say of the recipe, by line; neither begins a stage."""
    said = []
    for words in (["run", str(recipe), "--out", str(recipe.parent / "out")], ["plan", str(recipe)]):
        done = command(*words, *(f"--set={override}" for override in overrides))
        assert isinstance(done.exception, Failure), (done.exception, done.output)
        assert error_status(done.exception) == 1
        said.append(str(done.exception).splitlines())
        assert not (recipe.parent / "out").exists()
    return said


def test_all_that_is_wrong_is_in_one_message(recipe: Path) -> None:
    folder = recipe.parent
    corpus.write_jsonl(folder / "broken.jsonl", [{"task": "boolq", "id": "0", "text": "one"}, {"task": "boolq"}])
    (folder / "broken.json").write_text('{"model": {"type": "BPE"')
    (folder / "domains.gz").write_bytes(b"no gzip")
    (folder / "words.txt").write_bytes(gzip.compress(b"word\n" * 99))
    (folder / "classifier.npy").write_bytes(b"no array")
    wrong = {
        "sources.books.paths=['none/*.jsonl']": "none/*.jsonl: no such file (source books); paths start at",
        "sources.crawl.paths=['nowhere.warc.gz']": "nowhere.warc.gz: no such file (source crawl)",
        "texts=broken.jsonl": 'broken.jsonl:2: expected {"task", "id", "text"}, all strings',
        "quality.positives={boks=100}": "quality.positives.boks: not a curated source; those are books",
        "filter.domain_files=['domains.gz', 'absent.txt']": "domains.gz: damaged: Not a gzipped file",
        "filter.word_files=['words.txt']": "words.txt: not a text file; a filter's list has one entry per",
        "tokenize={tokenizer='broken.json'}": "broken.json: not a tokenizer.json: ",
    }
    for said in refusals(recipe, *wrong):
        assert len(said) == len(wrong) + 1
        for words in (
            *wrong.values(),
            "absent.txt: no such file; a filter's list has one entry per line, plain or .gz",
        ):
            assert [line for line in said if words in line], words
    (said, again) = refusals(recipe, "quality.model=classifier.npy")
    assert said == again
    assert len(said) == 1
    assert "classifier.npy: not a classifier trained by quality" in said[0]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("texts=empty", "empty: no task text; mtnlg-eval texts writes one per line"),
        ("texts=raw", "raw: no such file of task texts"),
        ("tokenize={tokenizer='raw'}", "raw: not a tokenizer: expected a tokenizer.json"),
        ("tokenize={tokenizer='model'}", "model: no tokenizer.json; make one: python -c"),
        ("tokenize={tokenizer='empty'}", "empty: not a tokenizer.json"),
        ("filter.address_files=['raw']", "raw: no such file; a filter's list has one entry per line"),
        ("extract.language_model=none.bin", "none.bin: No such file or directory; language_model must be"),
        (
            "sources.books.filters=['url']",
            "filter: url rules without a list; give one: url_domain reads filter.domain_files, url_",
        ),
    ],
)
def test_every_kind_of_mistake_is_met_before_the_first_stage(recipe: Path, override: str, words: str) -> None:
    (recipe.parent / "empty").touch()
    (recipe.parent / "model").mkdir()
    (recipe.parent / "model" / "config.json").write_text("{}")
    for said in refusals(recipe, override):
        (line,) = said
        assert words in line.replace(f"{recipe.parent}/", "")


def test_plan_for_a_number_of_documents_needs_no_file(recipe: Path, tmp_path: Path) -> None:
    found = check_inputs(load_recipe(recipe))
    assert [file.name for file in found] == ["0.jsonl.zst", "1.jsonl.zst", "0.warc.gz", "1.warc.gz"]
    (tmp_path / "texts.jsonl").unlink()
    for path in (tmp_path / "raw").rglob("*.*"):
        path.unlink()
    invoke("plan", recipe, "--documents", "1e6")


def test_disk_failure_in_preflight_is_not_a_usage_error(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise IoFailure("the store is busy; run the same command again")

    monkeypatch.setattr(Decontaminate, "check", fails)
    with pytest.raises(IoFailure, match="the store is busy"):
        check_inputs(load_recipe(recipe))


def test_the_label_of_a_fasttext_model_is_looked_for(recipe: Path) -> None:
    pytest.importorskip("fasttext")
    language_models.train(recipe.parent / "model.bin", {"good": ["one two"], "bad": ["three four"]})
    for said in refusals(recipe, "quality.model=model.bin"):
        assert "model.bin: has no label __label__hq; set quality.label to one of" in said[0]


def test_a_job_is_not_submitted_for_a_recipe_that_cannot_run(recipe: Path) -> None:
    words = ["run", recipe, "--out", "x", "--engine=ray", "--launcher=slurm", "--set=texts=none.jsonl"]
    done = command(*words)
    assert "none.jsonl: no such file of task texts" in str(done.exception)
    assert "#SBATCH" in command(*words, "--dry-run").stdout


STAGES = {
    "decontaminate": ("--texts broken", r"broken:1: expected .*all strings"),
    "filter": ("--rules url --domain-files broken.gz", r"broken\.gz: damaged"),
    "tokenize": ("--tokenizer broken", r"broken: not a tokenizer\.json"),
    "clean": ("--language-model broken", r"broken.*language_model must be a fastText"),
    "score": ("--model broken", r"broken: not a classifier"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_single_step_opens_its_files_before_reading_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.chdir(tmp_path)
    options, words = STAGES[stage]
    for name in ("broken", "broken.gz"):
        (tmp_path / name).write_text("neither one nor the other")
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(Failure, match=words):
        command(stage, "in.jsonl", "--out", "out", *options.split(), catch_exceptions=False)
    assert not (tmp_path / "out").exists()


def test_the_command_prints_a_line_for_each_mistake(recipe: Path) -> None:
    words = [sys.executable, "-m", "mtnlg_data.cli", "plan", str(recipe), "--input", "/nowhere"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    _, first, *others = done.stderr.splitlines()  # the first is of deduplicate
    assert (done.returncode, len(others)) == (1, 2)
    assert "/nowhere/raw/books/*.jsonl.zst: no such file" in first
    assert all(line.startswith("/nowhere/") for line in others)


def test_a_list_in_any_eight_bit_encoding_is_a_list(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("straße.example\n".encode("latin-1"))
    check_list(tmp_path / "latin")
    (tmp_path / "wide").write_text("a.example\n", encoding="utf-16")
    with pytest.raises(Failure, match="wide: not a text file"):
        check_list(tmp_path / "wide")
