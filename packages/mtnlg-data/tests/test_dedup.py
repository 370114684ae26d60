"""Deduplication end to end: what it finds and keeps, and that its output depends on nothing but its input."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engines import Backwards, Recording
from shards import write_shard, write_shards

from mtnlg_data import Document, Local, find_duplicates, read_documents, run_step
from mtnlg_data.console import Failure
from mtnlg_data.dedup import clusters
from mtnlg_data.report.inspection import inspect_path
from mtnlg_data.steps import deduplicate
from mtnlg_data.steps.deduplicate import Deduplicate, DeduplicateSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_data.engine.tasks import Summary

WORDS = DeduplicateSettings(shingle_length=1)
LEDGER = "dropped/duplicates-00000.parquet"


def run(
    shards: Sequence[Path],
    out: Path,
    settings: DeduplicateSettings = WORDS,
    priority: Sequence[str] = ("web",),
    engine: Local | None = None,
) -> tuple[Summary, list[dict[str, Any]]]:
    """The step's summary and the first part of the ledger."""
    step = Deduplicate(settings, {source: {} for source in priority})
    summary = run_step(step, shards, out, engine or Local(1))
    return summary, pq.read_table(out / LEDGER).to_pylist()


def contents(out: Path) -> dict[str, bytes]:
    """Bytes of the shards and the ledger."""
    return {path.name: path.read_bytes() for path in sorted([*out.glob("*.parquet"), out / LEDGER])}


# --- what it finds ---------------------------------------------------------------------------------------------------


def planted(similarities: Sequence[float], pairs: int, size: int = 400) -> list[Document]:
    """``pairs`` pairs of texts for each similarity, with word sets of that Jaccard similarity, rounded to whole words.

    Two sets of ``size`` words that share c have J = c / (2 size - c).
    """
    documents, fresh = [], iter(range(10**9))
    for similarity in similarities:
        common = round(2 * size * similarity / (1 + similarity))
        for pair in range(pairs):
            both = [f"w{next(fresh)}" for _ in range(common)]
            for side in "ab":
                text = " ".join([*both, *(f"w{next(fresh)}" for _ in range(size - common))])
                documents.append(Document(f"{similarity}/{pair}/{side}", "web", text))
    return documents


def test_planted_pairs_are_found_as_the_s_curve_says(tmp_path: Path) -> None:
    """1 - (1 - J**13)**20 of the pairs with J >= 0.8, within four standard deviations; no other pair."""
    pairs = 60
    similarities = [0.5, 0.7, 0.78, 0.82, 0.85, 0.9, 0.95, 1.0]
    summary, ledger = run(write_shards(tmp_path, planted(similarities, pairs)), tmp_path / "out")
    assert all(row["id"].rpartition("/")[0] == row["kept"].rpartition("/")[0] for row in ledger)
    found = Counter(float(row["id"].partition("/")[0]) for row in ledger)
    assert set(found) <= {similarity for similarity in similarities if similarity >= 0.8}
    for similarity in similarities[3:]:
        chance = 1 - (1 - similarity**13) ** 20
        spread = np.sqrt(pairs * chance * (1 - chance))
        assert abs(found[similarity] - pairs * chance) <= 4 * spread + 0.5
    assert summary["duplicates"]["components"] == len(ledger)
    for row in ledger:
        assert row["score"] == pytest.approx(float(row["id"].partition("/")[0]), abs=0.003)


@pytest.mark.parametrize(
    ("given", "chosen", "warns"),
    [
        ({}, (20, 13), False),
        ({"threshold": 0.5}, (52, 5), False),
        ({"threshold": 0.9}, (11, 23), False),
        ({"threshold": 1.0}, (1, 260), False),
        ({"threshold": 0.5, "bands": 20, "rows": 13}, (20, 13), True),
        ({"threshold": 0.75, "bands": 14, "rows": 8}, (14, 8), False),
        ({"bands": 40}, (40, 13), False),
    ],
)
def test_threshold_chooses_default_bands(
    given: dict[str, Any], chosen: tuple[int, int], warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Deduplicate(**given)
    assert (step.settings.bands, step.settings.rows) == chosen
    step.check()
    found = 1 - (1 - step.settings.threshold ** chosen[1]) ** chosen[0]
    said = capsys.readouterr().err
    assert f"{found:.1%} of pairs of similarity {step.settings.threshold:g}" in said
    assert said.startswith("WARNING: ") is warns is (found < 0.5)


# --- what it keeps ---------------------------------------------------------------------------------------------------


def sentence(start: int, length: int = 300) -> str:
    return " ".join(f"word{number}" for number in range(start, start + length))


@pytest.fixture
def documents() -> list[Document]:
    """Two sources: a cluster of five across both, one of two, and documents without duplicates."""
    cluster = [Document(f"web/{n}", "web", sentence(0) + f" tail{n}") for n in range(3)]
    cluster += [Document(f"books/{n}", "books", sentence(0).upper() + f" tail{n}") for n in range(2)]
    pair = [Document("web/p", "web", sentence(5000)), Document("web/q", "web", sentence(5000) + "!", "url", "en", 0.5)]
    alone = [Document(f"web/a{n}", "web", sentence(10_000 + 1000 * n)) for n in range(9)]
    nothing = [Document(f"books/e{n}", "books", text) for n, text in enumerate(["", " ", "...", "!"])]
    return [*cluster, *pair, *alone, *nothing]


def test_best_sources_document_is_kept(tmp_path: Path, documents: list[Document]) -> None:
    summary, ledger = run(write_shards(tmp_path, documents), tmp_path / "out", priority=("books", "web"))
    assert summary["duplicates"]["cluster_sizes"] == {"2": 1, "5": 1}
    of_five = [row for row in ledger if row["kept"].startswith("books")]
    assert {row["id"] for row in of_five} | {of_five[0]["kept"]} == {d.id for d in documents[:5]}
    assert len({(row["kept"], row["component"]) for row in of_five}) == 1
    assert {(row["source"], row["kept_source"]) for row in of_five} == {("web", "books"), ("books", "books")}
    assert summary["sources"]["books"]["dropped"] == {"duplicate": 1}
    assert summary["sources"]["web"]["dropped"] == {"duplicate": 4}
    reversed_priority, _ = run(write_shards(tmp_path, documents), tmp_path / "out", priority=("web", "books"))
    assert reversed_priority["sources"]["books"]["dropped"] == {"duplicate": 2}


def test_ledger_has_places_and_jaccard_and_samples_both_texts(tmp_path: Path, documents: list[Document]) -> None:
    settings = DeduplicateSettings(shingle_length=3)
    summary, ledger = run(write_shards(tmp_path, documents, 2), tmp_path / "out", settings)
    texts = {document.id: document.text for document in documents}

    def shingles(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[first : first + 3]) for first in range(len(words) - 2)}

    for row in ledger:
        here = pq.read_table(tmp_path / row["shard"]).to_pylist()[row["row"]]
        assert (here["id"], here["source"]) == (row["id"], row["source"])
        one, other = (shingles(texts[row[end]]) for end in ("id", "kept"))
        assert row["score"] == pytest.approx(len(one & other) / len(one | other))
    samples = summary["duplicates"]["samples"]
    assert len(samples) == len(ledger) == 5
    for sample in samples:
        shown = (sample["text_kept"], sample["text_dropped"])
        assert shown == (texts[sample["kept"]][:600], texts[sample["dropped"]][:600])


def test_loss_over_alarm_share_stops_the_run(
    tmp_path: Path, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplicate, "SMALL_SOURCE", 6)
    shards, out = write_shards(tmp_path, documents), tmp_path / "out"
    line = r"drops 28\.6% of web: 4 of 14 documents, duplicate; more than deduplicate\.alarm_share = 0\.2; nothing is"
    with pytest.raises(Failure, match=line) as stopped:
        run(shards, out, WORDS.model_copy(update={"alarm_share": 0.2}), ("books", "web"))
    assert [path.name for path in out.rglob("*.parquet")] == [Path(LEDGER).name]
    ledger = re.search(r"mtnlg-data inspect (\S+);", str(stopped.value))
    assert ledger
    assert inspect_path(Path(ledger[1]), 3, 100)["parts"][0]["rows"] == 5
    advice = re.search(r"--set deduplicate.alarm_share=(\S+) ", str(stopped.value))
    assert advice
    engine = Recording()
    settings = WORDS.model_copy(update={"alarm_share": float(advice[1])})
    summary, _ = run(shards, out, settings, ("books", "web"), engine)
    assert summary["duplicates"]["removed_share"] == {"books": 0.166667, "web": 0.285714}
    assert engine.functions == ["write_shard", "write_shard"]  # the search is not done again


@pytest.mark.parametrize(("share", "small"), [(2 / 7, 0), (0.1, 100)])
def test_alarm_ignores_small_sources(
    tmp_path: Path, documents: list[Document], monkeypatch: pytest.MonkeyPatch, share: float, small: int
) -> None:
    """Of few documents, that most go is no sign of a mistake: it is named, and ends no run."""
    monkeypatch.setattr(deduplicate, "SMALL_SOURCE", small)
    settings = WORDS.model_copy(update={"alarm_share": share})
    summary, _ = run(write_shards(tmp_path, documents), tmp_path / "out", settings, ("books", "web"))
    assert summary["duplicates"]["removed_share"]["web"] == round(2 / 7, 6)
    assert [alarm["source"] for alarm in summary["alarms"]] == (["books", "web"] if small else [])


COMPOSED = " ".join(f"caf\u00e9{number}" for number in range(60))
HAN = "".join(chr(0x4E00 + 37 * number % 8000) for number in range(300))


@pytest.mark.parametrize(
    ("texts", "removed", "settings"),
    [
        (["One two.", "one, TWO", "one two three", "two one", "", " ", "!?"], 1, {}),  # shorter than a shingle
        ([sentence(0)] * 100 + [sentence(900)], 99, {}),
        # Case and marks do not count; the composition of characters does, and the clean step composes them (ftfy).
        ([COMPOSED, COMPOSED.upper().replace(" ", ", "), unicodedata.normalize("NFD", COMPOSED)], 1, {}),
        ([HAN, HAN[:150] + "\u4e00" + HAN[151:]], 1, {}),  # words without spaces between them
        ([HAN, HAN[:150] + "\u4e00" + HAN[151:]], 1, {"shingle": "character", "shingle_length": 3}),
        ([""], 0, {}),
        (["one two three"], 0, {}),
        ([], 0, {}),
        (["!!!", "!!! ", "", "!!!", "!!!", ""], 3, {}),  # without words, equal bytes
        (["", " ", "", " "], 2, {"shingle": "character"}),
    ],
)
def test_near_duplicates_are_removed(tmp_path: Path, texts: list[str], removed: int, settings: dict[str, Any]) -> None:
    path = tmp_path / "web-00000.parquet"
    write_shard(path, (Document(str(n), "web", text) for n, text in enumerate(texts)))
    summary, ledger = run([path], tmp_path / "out", DeduplicateSettings(alarm_share=1, **settings))
    assert len({row["id"] for row in ledger}) == removed == len(texts) - summary["documents_out"]
    assert summary["duplicates"]["components"] == len({row["component"] for row in ledger})
    assert all(row["score"] == 1.0 for row in ledger) == (texts[:1] != [HAN])
    assert np.count_nonzero(find_duplicates(texts, **settings) != np.arange(len(texts))) == removed


def test_texts_in_memory_have_the_same_components_and_keep_the_first(tmp_path: Path, shards: list[Path]) -> None:
    _, ledger = run(shards, tmp_path / "out", priority=("books", "web"))
    components: dict[str, set[str]] = {}
    for row in ledger:
        components.setdefault(row["kept"], {row["kept"]}).add(row["id"])
    batches = [batch for shard in shards for batch in read_documents(shard, ["id", "text"])]
    table = pa.Table.from_batches(batches)
    ids, texts = table["id"].to_pylist(), table["text"]
    kept = find_duplicates(texts, shingle_length=1)
    found: dict[int, set[str]] = {}
    for number, twin in enumerate(kept.tolist()):
        assert twin <= number
        found.setdefault(twin, set()).add(ids[number])
    assert sorted(map(sorted, components.values())) == sorted(sorted(ids_) for ids_ in found.values() if len(ids_) > 1)
    for same in (texts.to_pylist(), iter(texts.to_pylist()), texts.cast(pa.string()).combine_chunks()):
        assert (find_duplicates(same, shingle_length=1) == kept).all()


@pytest.mark.parametrize(
    ("texts", "settings", "error", "message"),
    [
        ("one text", {}, TypeError, "a sequence of texts"),
        (["one", None], {}, ValueError, "1 of the texts are null"),
        ([b"bytes", 3], {}, TypeError, "bytes"),
        (["one"], {"treshold": 0.9}, Failure, "did you mean threshold"),
    ],
)
def test_input_other_than_a_list_of_texts_is_refused(
    texts: list[str], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        find_duplicates(texts, **settings)


# --- what does not move it -------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path, documents: list[Document]) -> list[Path]:
    copies = [Document(f"web/c{n}", "web", sentence(7000)) for n in range(10)]
    copies.append(Document("books/c", "books", sentence(7000)))
    return write_shards(tmp_path, [*documents, *copies, *planted([0.7, 0.85, 0.95], 10, 100)], 3)


def test_order_of_tasks_and_shards_changes_no_byte(tmp_path: Path, shards: list[Path]) -> None:
    run(shards, tmp_path / "one")
    run(shards[::-1], tmp_path / "two", engine=Backwards(1))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert len(contents(tmp_path / "one")) == len(shards) + 1


def test_parts_groups_and_row_groups_change_nothing(
    tmp_path: Path, shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, priority = WORDS.model_copy(update={"bands": 6, "rows": 5, "alarm_share": 1.0}), ("books", "web")
    once, _ = run(shards, tmp_path / "one", settings, priority)
    make_everything_small(monkeypatch)
    monkeypatch.setattr("mtnlg_data.document.ROWS_PER_GROUP", 2)
    engine = Recording()
    again, _ = run(shards, tmp_path / "many", settings, priority, engine)
    assert again["duplicates"] == once["duplicates"]
    assert "merge" in engine.functions
    assert {name for name, bytes_ in engine.memory.items() if bytes_} == {"write_clusters", "deduplicate_group"}
    assert engine.functions.count("link_bands") > 3 * settings.bands
    assert engine.functions.count("deduplicate_group") > 3
    parts = sorted((tmp_path / "many" / "dropped").glob("duplicates-*.parquet"))
    assert len(parts) > 3
    one, many = pq.read_table(tmp_path / "one" / LEDGER), pa.concat_tables(map(pq.read_table, parts))
    assert one.equals(many)
    assert one.num_rows > 10
    for shard in shards:
        left, again_left = (pq.read_table(tmp_path / out / shard.name) for out in ("one", "many"))
        assert left.equals(again_left)


def make_everything_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few documents need what billions do: merges, many ranges and groups."""
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", 2)
    monkeypatch.setattr("mtnlg_data.exchange.RUN_BYTES", 200)
    monkeypatch.setattr("mtnlg_data.exchange.ROWS_PER_RANGE", 10)
    monkeypatch.setattr("mtnlg_data.steps.deduplicate.GROUP_BYTES", 12_000)
    monkeypatch.setattr(clusters, "LABELS_AT_A_TIME", 3)


def test_documents_beyond_memory_are_refused_before_work(
    tmp_path: Path, shards: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "FOREST_BYTES", 1 << 40)
    with pytest.raises(Failure, match="use a larger one, or deduplicate parts"):
        run(shards, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_signatures_are_reused_for_another_threshold(tmp_path: Path, documents: list[Document]) -> None:
    shards, out = write_shards(tmp_path, documents), tmp_path / "out"
    run(shards, out)
    left = {path.parent.name for path in (out / "state").rglob("*.arrow")}
    assert left == {"signatures", "copies", "bands", "links", "clusters", "removals"}
    engine = Recording()
    run(shards, out, WORDS.model_copy(update={"threshold": 0.9}), engine=engine)
    assert set(engine.functions) == {
        "collect_candidates",
        "deduplicate_group",
        "write_removals",
        "write_names",
        "write_ledger",
        "write_shard",
    }
