"""Single stages, as functions and as commands: from any format, and chained the same as a whole curation."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import small_corpus as corpus
from command_line import invoke
from shards import read_rows

from mtnlg_data.commands.alone import find_inputs
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.engine import manifest_path
from mtnlg_data.steps.clean import PAGE_RULES, TEXT_RULES

if TYPE_CHECKING:
    from conftest import Run


def texts_of(folder: Path) -> list[str]:
    return [row["text"] for row in read_rows(*sorted(folder.glob("*.parquet")))]


def read_summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summary


def test_single_steps_give_the_tokens_of_a_run(finished: Run, tmp_path: Path) -> None:
    raw, at = finished.out.parent, tmp_path

    def step(name: str, *words: object, out: str) -> None:
        invoke(name, *words, "--out", at / out)

    for source in ("books", "crawl"):
        step("extract", f"{source}={raw / 'raw' / source}", out=source)
    step("score", at / "crawl", "--positive", at / "books", "--alpha", 1, out="good")
    for source, rules in (("books", TEXT_RULES), ("good", PAGE_RULES)):
        step("clean", at / source, "--rules", ",".join(rules), "--shortest", 200, out=f"clean-{source}")
    step("dedup", at / "clean-books", at / "clean-good", out="unique")
    step("decontaminate", at / "unique", "--texts", raw / "texts.jsonl", out="pure")
    weights = ("--weight", "books=0.4", "--weight", "crawl=0.6")
    step("tokenize", at / "pure", "--vocabulary", 400, *weights, out="tokens")
    names = ("tokenizer.json", "blend.json", "books.bin", "books.idx", "crawl.bin", "crawl.idx")
    assert all((at / "tokens" / name).read_bytes() == (finished.out / "tokens" / name).read_bytes() for name in names)
    assert read_summary(at / "tokens")["tokens"] == finished.summary["tokens"]
    assert read_summary(at / "unique")["duplicates"] == finished.summary["duplicates"]


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.parquet"])
def test_clean_and_dedup_take_every_format(tmp_path: Path, name: str) -> None:
    texts = [corpus.text(number) for number in range(6)]
    corpus.write_texts(tmp_path / "in" / name, [*texts, "too short", texts[0]])
    invoke("--quiet", "clean", tmp_path / "in" / name, "--out", tmp_path / "clean", "--rules", "short")
    assert texts_of(tmp_path / "clean") == [*texts, texts[0]]
    invoke("dedup", f"own={tmp_path / 'in'}", "--out", tmp_path / "unique", "--shingle-length", "3")
    assert sorted(texts_of(tmp_path / "unique")) == sorted([*texts, "too short"])
    assert "own-00000.parquet" in [path.name for path in (tmp_path / "unique").iterdir()]
    summary = read_summary(tmp_path / "unique")
    assert [stage["name"] for stage in summary["stages"]] == ["extract", "deduplicate"]
    assert summary["duplicates"]["components"] == 1
    assert (tmp_path / "unique" / "report.html").exists()


def test_extract_options_for_pages_subsets_and_keys(tmp_path: Path) -> None:
    pages = [corpus.member(corpus.record(corpus.page(corpus.text(n)).encode())) for n in range(3)]
    (tmp_path / "x.warc.gz").write_bytes(b"".join(pages))
    rows = [{"text": corpus.text(n), "meta": {"pile_set_name": "Books3" if n % 2 else "ArXiv"}} for n in range(4)]
    corpus.write_jsonl(tmp_path / "pile" / "00.jsonl.zst", rows)
    corpus.write_jsonl(tmp_path / "y.jsonl", [{"body": "A text, and a good one."}])
    for words, documents in (
        ([tmp_path / "x.warc.gz"], 3),
        ([f"Books3={tmp_path / 'pile'}", "--subset", "Books3"], 2),
        ([tmp_path / "y.jsonl", "--field", "body"], 1),
    ):
        out = tmp_path / f"out-{documents}"
        summary = json.loads(invoke("extract", *words, "--out", out, "--json"))
        assert summary["stages"][0]["documents_out"] == documents
        assert summary == read_summary(out)
        assert [manifest_path(shard).exists() for shard in out.glob("*.parquet")] == [True]


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        ("dedup nowhere", Failure, "nowhere: no such file or folder"),
        ("dedup x.doc", Failure, "x.doc: no file that a reader can read"),
        ("dedup x.jsonl --threshold 2", UsageFailure, "--threshold 2: Input should be less"),
        (
            "decontaminate x.jsonl --texts x --minimum 14",
            UsageFailure,
            "minimum = 14 is more than n = 13",
        ),
        ("clean x.jsonl --rules tidy", UsageFailure, "--rules tidy: Input should be 'unicode',"),
        ("score x.jsonl", UsageFailure, "as options --positive and --model"),
        (
            "score a=x.jsonl --positive a=x.jsonl",
            UsageFailure,
            "a: a source of the inputs and of --positive",
        ),
        ("decontaminate x.jsonl", UsageFailure, "nothing to do; give --texts"),
        (
            "tokenize a=x.jsonl b=x.jsonl --vocabulary 300",
            UsageFailure,
            "sources.a: weight: required key",
        ),
        (
            "tokenize x.jsonl --vocabulary 300 --weight a=2",
            UsageFailure,
            "--weight a=2: needs NAME=VALUE for each of documents, once",
        ),
        (
            "tokenize a=x.jsonl --vocabulary 300 --weight a=0.1 --weight a=0.2",
            UsageFailure,
            "--weight a=0.2: needs NAME=VALUE for each of a, once",
        ),
        (
            "tokenize a=x.jsonl b=y.jsonl --vocabulary 300 --weight a=0.9 --weight b=0.9",
            UsageFailure,
            "the weights of the sources sum to 1.8, not to 1: a 0.9 \\+ b 0.9",
        ),
        ("tokenize x.jsonl", UsageFailure, "takes either a vocabulary"),
        (
            "extract x.jsonl --subset Books3 --field body",
            UsageFailure,
            "--field body: --subset reads the Pile",
        ),
    ],
)
def test_impossible_command_is_one_line_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, error: type[Failure], match: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x.jsonl", "y.jsonl"):
        Path(name).write_text('{"text": "x"}\n')
    Path("x.doc").touch()
    with pytest.raises(error, match=match):
        invoke(*shlex.split(words), "--out", "out")
    assert not list(Path("out").rglob("*.parquet"))


def test_shards_of_equal_name_are_refused_with_a_hint(tmp_path: Path) -> None:
    for name in ("a", "b"):
        corpus.write_texts(tmp_path / f"{name}.jsonl", [corpus.text(0)])
        invoke("extract", tmp_path / f"{name}.jsonl", "--out", tmp_path / name)
    with pytest.raises(UsageFailure, match="its source is already documents; give only PATH"):
        find_inputs([f"web={tmp_path / 'a'}"])
    with pytest.raises(Failure, match="has the same file name; rename one of the two"):
        invoke("dedup", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out")
