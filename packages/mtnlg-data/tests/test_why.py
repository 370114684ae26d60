"""``mtnlg-data why``: what became of a document at each stage, by its id or key, from records and columns of names."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from command_line import command, invoke
from shards import stored_rows

from mtnlg_data import Local, curate, load_recipe
from mtnlg_data.console import Failure
from mtnlg_data.report.why import explain

if TYPE_CHECKING:
    from pathlib import Path

STAGES = ["extract", "quality", "clean", "deduplicate", "decontaminate", "tokenize"]


def records(folder: Path) -> list[dict[str, Any]]:
    """The dropped documents of a stage."""
    return stored_rows(sorted(folder.glob("dropped/*.parquet")))


def fates(folder: Path, name: str) -> dict[str, str]:
    (document,) = explain(folder, name)
    return {stage["stage"]: stage["fate"] for stage in document["stages"]}


def test_every_dropped_document_is_recorded_once(finished: Any) -> None:  # noqa: ANN401
    for number, stage in enumerate(finished.summary["stages"][:-1], 1):
        rows = records(finished.out / f"{number:02d}-{stage['name']}")
        reasons = [(source, reason) for source, counts in stage["sources"].items() for reason in counts["dropped"]]
        for source, reason in reasons:
            own = [row for row in rows if (row["source"], row["reason"]) == (source, reason)]
            assert len(own) == len({row["key"] for row in own}) == stage["sources"][source]["dropped"][reason]
        assert len(rows) == sum(sum(counts["dropped"].values()) for counts in stage["sources"].values())
        for row in rows[:2]:
            (document,) = explain(finished.out, row["id"])
            last = document["stages"][-1]
            assert (last["stage"], last["fate"], last["reason"]) == (stage["name"], "dropped", row["reason"])
            assert last["score"] == row["score"]
            assert all(earlier["fate"] == "kept" for earlier in document["stages"][:-1])
    assert all(records(finished.out / folder) for folder in ("02-quality", "04-deduplicate"))


def test_why_shows_the_duplicate_and_every_stage(finished: Any) -> None:  # noqa: ANN401
    row = records(finished.out / "04-deduplicate")[0]
    result = command("why", finished.out, row["id"])
    line = f"dropped as duplicate of {row['kept']} ({row['kept_source']}): Jaccard {row['score']:.3f}"
    assert line in result.output, result.output
    (twin,) = explain(finished.out, row["kept"])
    assert [stage["stage"] for stage in twin["stages"] if stage["fate"] == "kept"][-2:] == STAGES[3:5]
    shown = command("why", finished.out, row["kept"], "--json")
    assert json.loads(shown.output) == [twin]


def test_split_document_is_found_by_both_names(
    finished: Any,  # noqa: ANN401
) -> None:
    ledgers = sorted((finished.out / "05-decontaminate" / "cuts").glob("*.parquet"))
    cuts = stored_rows(ledgers)
    pieces = sorted((finished.out / "05-decontaminate").glob("*.parquet"))
    names = [name for path in pieces for name in pq.read_table(path, columns=["key"])["key"].to_pylist()]
    name = next(name for name in names if name.endswith("#1")).removesuffix("#1")
    (document,) = explain(finished.out, name)
    *_, last = document["stages"]
    assert (last["stage"], last["fate"], last["pieces"]) == ("decontaminate", "kept", 2)
    own = sorted({(row["cut_start"], row["cut_end"]) for row in cuts if row["key"] == name})
    assert [(cut["start"], cut["end"]) for cut in last["cuts"]] == own
    assert last["cuts"][0]["tasks"] == ["boolq"]
    assert fates(finished.out, f"{name}#1") == {"decontaminate": "kept"}
    output = command("why", finished.out, name).output
    assert "kept in 2 pieces" in output
    assert f"characters {own[0][0]:,} to {own[0][1]:,} cut for boolq: " in output


def test_answers_are_equal_with_only_the_last_shards(finished: Any, tmp_path: Path) -> None:  # noqa: ANN401
    out = shutil.copytree(finished.out, tmp_path / "lean")
    curate(load_recipe(finished.recipe), out, Local(1), keep="last")
    names = [row["id"] for folder in ("02-quality", "04-deduplicate") for row in records(out / folder)[:2]]
    names += [row["kept"] for row in records(out / "04-deduplicate")[:2]]
    for name in names:
        assert fates(out, name) == fates(finished.out, name)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine records, cleaned: three long ones, three short ones, two of one id, one with a number; and two of more."""
    folder = tmp_path_factory.mktemp("named")
    texts = [corpus.text(n) for n in range(3)] + ["Too short a text."] * 3 + [corpus.text(n) for n in (7, 8, 9)]
    names = ["a", "b", "c", "s1", "s2", "s3", "twice", "twice", 77]
    corpus.write_jsonl(folder / "x.jsonl", [{"id": n, "text": t} for n, t in zip(names, texts, strict=True)])
    corpus.write_jsonl(folder / "y.jsonl", [{"id": name, "text": corpus.text(ord(name))} for name in "Az"])
    inputs = [f"{name}={folder / file}" for name, file in (("web", "x.jsonl"), ("more", "y.jsonl"))]
    invoke("clean", *inputs, "--out", folder / "out", "--rules", "short")
    return folder / "out"


def test_document_is_found_by_id_or_key(named: Path) -> None:
    for name in ("s2", "web/x.jsonl/4"):
        (document,) = explain(named, name)
        assert (document["id"], document["key"], document["source"]) == ("s2", "web/x.jsonl/4", "web")
        kept, dropped = document["stages"]
        assert (kept["stage"], kept["fate"]) == ("extract", "kept")
        assert dropped == {"stage": "clean", "fate": "dropped", "reason": "short", "score": 17.0}
    assert fates(named, "77") == {"extract": "kept", "clean": "kept"}
    assert [document["key"] for document in explain(named, "twice")] == ["web/x.jsonl/6", "web/x.jsonl/7"]
    output = command("why", named, "twice").output
    assert output.startswith("2 documents have the id twice; use their keys")


@pytest.mark.parametrize(
    ("folder", "name", "words"),
    [
        ("named", "twic", r"no document twic; give the id that the source has"),
        ("raw", "twice", "no stage has finished here; give the folder of a run"),
    ],
)
def test_unknown_id_is_a_one_line_error(
    named: Path,
    finished: Any,  # noqa: ANN401
    folder: str,
    name: str,
    words: str,
) -> None:
    with pytest.raises(Failure, match=words):
        explain(named if folder == "named" else finished.recipe.parent / folder, name)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[str, ...]]]:
    """Folder, file and columns of every shard that is read; none may be hashed."""
    read, read_columns = pq.read_table, []

    def noting(path: Path, *, columns: Any = None, **settings: Any) -> Any:  # noqa: ANN401
        if columns:
            read_columns.append((path.parent.name, path.name, tuple(columns)))
        return read(path, columns=columns, **settings)

    monkeypatch.setattr(pq, "read_table", noting)
    monkeypatch.setattr("mtnlg_data.document.sha256", None)
    return read_columns


def test_why_reads_no_text_and_after_the_first_stage_one_shard(
    finished: Any,  # noqa: ANN401
    reads: list[tuple[str, str, tuple[str, ...]]],
) -> None:
    name = next(row["kept"] for row in records(finished.out / "04-deduplicate") if row["kept_source"] == "crawl")
    assert "decontaminate" in fates(finished.out, name)
    assert reads
    assert not [names for *_, names in reads if "text" in names]
    later = {shard for folder, shard, _ in reads if not folder.startswith("01-")}
    assert later == {f"crawl-0000{name.split('/')[1][0]}.parquet"}
