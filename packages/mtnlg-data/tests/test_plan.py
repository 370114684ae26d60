"""The plan: 320 million documents on a machine of 32 GB, and figures that follow from the recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import small_corpus as corpus
from command_line import invoke, outcome

from mtnlg_data import load_recipe
from mtnlg_data.console import Failure
from mtnlg_data.planning.corpus_size import CorpusSize, assumed_corpus, estimate_corpus
from mtnlg_data.planning.plan import plan
from mtnlg_data.sources import tables

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
WHOLE, QUICK = ROOT / "recipes" / "mt-nlg-530b", ROOT / "recipes" / "quickstart"
PAPER = 320_000_000  # paper.md 4.4


def planned(folder: Path, documents: int, *overrides: str, recipe: Path = WHOLE, **options: int) -> dict[str, Any]:
    size = CorpusSize(documents, options.get("characters", 4600))
    return plan(load_recipe(recipe, overrides, folder), size, options.get("workers", 2))


def stages(folder: Path, documents: int, *overrides: str, **options: Any) -> dict[str, dict[str, Any]]:  # noqa: ANN401
    """The figures of each stage, by its name."""
    return {stage["stage"]: stage for stage in planned(folder, documents, *overrides, **options)["stages"]}


@pytest.mark.parametrize("workers", [1, 8, 16])
def test_the_papers_corpus_fits_a_machine_of_32_gb(tmp_path: Path, workers: int) -> None:
    result = planned(tmp_path, PAPER, workers=workers)
    assert result["memory"] == max(stage["memory"] for stage in result["stages"]) < 32e9
    left = sum(stage["disk"] for stage in result["stages"])
    scratch = max(stage["scratch"] for stage in result["stages"])
    assert left <= result["disk"] < left + scratch
    assert scratch < 1.2 * 1.46e12  # of the text
    assert result["hours"] == sum(stage["hours"] for stage in result["stages"])


@pytest.mark.parametrize("kinds", [[], ["documents", "lines", "substrings"]])
def test_plan_scales_with_corpus_and_memory_with_workers(tmp_path: Path, kinds: list[str]) -> None:
    overrides = f"exact.kinds={kinds}", "sources.Pile-CC.filters=['c4']"
    small, large = (stages(tmp_path, documents, *overrides) for documents in (10**7, 10**8))
    more = stages(tmp_path, 10**7, *overrides, workers=4)
    assert list(small) == [
        *("extract", "quality", "clean", "filter", "deduplicate"),
        *(["exact"] if kinds else []),
        *("decontaminate", "tokenize"),
    ]
    for name, figures in small.items():
        assert large[name]["memory"] <= 1.2 * figures["memory"], name
        assert more[name]["memory"] > (1 if name == "quality" else 1.5) * figures["memory"], name
        if name != "quality":  # of which the sample is bounded
            assert large[name]["disk"] == pytest.approx(10 * figures["disk"], rel=2e-3), name
            assert large[name]["scratch"] == pytest.approx(10 * figures["scratch"]), name
            assert large[name]["hours"] == pytest.approx(10 * figures["hours"], rel=0.1), name
            assert figures["core_hours"] == pytest.approx(2 * figures["hours"], rel=0.1), name


def test_a_step_that_no_source_goes_through_is_not_planned(tmp_path: Path) -> None:
    assert "quality" in stages(tmp_path, 1000, recipe=QUICK)
    assert not {"quality", "exact"} & {*stages(tmp_path, 1000, "sources.snapshot.filtered=false", recipe=QUICK)}


def test_without_a_number_the_documents_of_the_files_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.write_run(tmp_path, pages=60)
    shown = json.loads(invoke("plan", tmp_path, "--json"))
    # 80 books and 60 pages, none of which extraction drops, of some 1,600 characters
    assert shown["documents"] == 140
    assert 1000 < shown["characters_per_document"] < 2200
    # a long file is read in its beginning: its share of documents and characters stands for the rest
    rows = [{"text": corpus.text(n)} for n in range(400)]
    corpus.write_jsonl(tmp_path / "own" / "a.jsonl", rows)
    for name in ("b.jsonl.gz", "c.parquet"):
        corpus.write_texts(tmp_path / "own" / name, [row["text"] for row in rows])
    with pa.OSFile(str(tmp_path / "own" / "d.arrow"), "wb") as sink:
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=20)
    read: list[int] = []
    read_batch = tables.Table.read_batch

    def counted(reader: tables.Table, batch: pa.RecordBatch, *arguments: Any, **options: Any) -> Iterator[Any]:  # noqa: ANN401
        read.append(batch.num_rows)
        return read_batch(reader, batch, *arguments, **options)

    monkeypatch.setattr(tables.Table, "read_batch", counted)
    monkeypatch.setattr("mtnlg_data.planning.corpus_size.SAMPLED_BYTES", 30_000)
    monkeypatch.setattr("mtnlg_data.planning.corpus_size.SAMPLED_ROWS", 50)
    for name, kind in (("a.jsonl", "jsonl"), ("b.jsonl.gz", "jsonl"), ("c.parquet", "parquet"), ("d.arrow", "arrow")):
        content = f'tokenize.vocabulary = 400\n[sources.own]\nkind = "{kind}"\npaths = ["own/{name}"]\nweight = 1.0\n'
        (tmp_path / "own.toml").write_text(content)
        documents, characters, *_ = estimate_corpus(load_recipe(tmp_path / "own.toml"))
        assert documents == pytest.approx(400, rel=0.15), name
        assert characters == pytest.approx(sum(len(row["text"]) for row in rows) / 400, rel=0.05), name
    assert read == [400, 20, 20, 20]  # of Parquet a row group; of 400 rows of Arrow the 50, and no more to count them
    with pytest.raises(Failure, match="no such file"):
        estimate_corpus(load_recipe(WHOLE, folder=tmp_path))


@pytest.mark.parametrize(
    "option",
    [*(f"--documents={number}" for number in ("0", "nan", "inf", "1e30", "many")), "--characters-per-document=9"],
)
def test_zero_or_negative_document_count_is_refused(tmp_path: Path, option: str) -> None:
    status, line = outcome("plan", WHOLE, option, "--input", tmp_path)
    assert status == 2
    assert option.partition("=")[0] in line


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    words = ["plan", WHOLE, "--documents", "320e6", "--workers", 2, "--input", tmp_path]
    table = invoke(*words)
    assert "320,000,000 documents of 4,600 characters" in table
    assert "deduplicate" in table
    result = json.loads(invoke(*words, "--characters-per-document", 1000, "--json"))
    expected = plan(load_recipe(WHOLE, folder=tmp_path), assumed_corpus(load_recipe(WHOLE), PAPER, 1000), 2)
    assert result == expected | {"here": result["here"], "fits": result["fits"]}
    with pytest.raises(Failure, match="nowhere: no such folder; give the folder of the corpus by --input FOLDER"):
        plan(load_recipe(WHOLE, folder=Path("nowhere")), CorpusSize(10, 10), 1)


@pytest.mark.parametrize(("share", "refused"), [(1.0, True), (0.02, True), (0.005, False)])
def test_a_plan_refuses_a_source_that_a_run_could_not_read(tmp_path: Path, share: float, refused: bool) -> None:
    corpus.write_run(tmp_path, pages=10)
    rows = [{"content" if n < 400 * share else "text": corpus.text(n)} for n in range(400)]
    corpus.write_jsonl(tmp_path / "own" / "a.jsonl", rows)
    content = 'tokenize.vocabulary = 400\n[sources.own]\nkind = "jsonl"\npaths = ["own/a.jsonl"]\nweight = 1.0\n'
    (tmp_path / "own.toml").write_text(content)
    recipe = load_recipe(tmp_path / "own.toml")
    if refused:
        with pytest.raises(Failure, match=r"a.jsonl: line 1: .*content"):
            estimate_corpus(recipe)
    else:
        assert estimate_corpus(recipe).documents == 398
