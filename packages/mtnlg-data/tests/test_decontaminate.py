"""Decontamination: the paper's figures, its ledger, its files, and the bugs of the tools before it."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest
from decontamination import cut_at, run

from mtnlg_data.console import Failure
from mtnlg_data.decontaminate.ngrams import (
    NgramSet,
    read_task_texts,
)
from mtnlg_data.engine import Local
from mtnlg_data.job import run_step
from mtnlg_data.steps.decontaminate import Decontaminate, DecontaminateSettings
from mtnlg_data.text.arrays import small_batches
from mtnlg_data.text.characters import character_kinds, fold_case
from mtnlg_data.text.hashing import ngram_hashes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mtnlg_data.engine.tasks import Summary, Task

# --- the paper's figures ---------------------------------------------------------------------------------------------

THIRTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen"
EIGHT, SEVEN = (" ".join(THIRTEEN.split()[:length]) for length in (8, 7))
PAPER = DecontaminateSettings()


def around(text: str, *, left: int = 400, right: int = 400) -> str:
    """The text as a sentence, between sentences of ten characters."""
    return "Aaaa bbbb." * (left // 10) + f" {text}. " + "Cccc dddd." * (right // 10)


def test_two_hundred_characters_on_each_side_go_with_a_match(tmp_path: Path) -> None:
    summary, left = run(tmp_path, [around(THIRTEEN)], [("boolq", THIRTEEN.upper())], PAPER)
    assert [row["text"] for row in left] == ["Aaaa bbbb." * 20, "Cccc dddd." * 20]
    assert [row["id"] for row in left] == ["d0#0", "d0#1"]
    assert {(row["url"], row["language"], row["score"], row["source"]) for row in left} == {("u", "en", 0.5, "web")}
    assert summary["decontamination"]["documents_cut"] == 1
    assert summary["decontamination"]["cuts_by_task"] == {"boolq": 1}
    assert summary["decontamination"]["samples"][0]["ngram"] == THIRTEEN


MANY = "Aaaa bbbb." * 70


@pytest.mark.parametrize(
    ("document", "ngram", "pieces", "dropped"),
    [
        (around(THIRTEEN, left=0), THIRTEEN, ["d0"], {}),  # only trimmed: it keeps its name
        (around(THIRTEEN, left=390, right=390), THIRTEEN, [], {"contaminated": 1}),  # short pieces go
        (MANY + f"{THIRTEEN}.{MANY}" * 9, THIRTEEN, [f"d0#{n}" for n in range(10)], {}),
        (MANY + f"{THIRTEEN}.{MANY}" * 10, THIRTEEN, [], {"split": 1}),  # more than ten pieces
        (around(EIGHT), EIGHT, ["d0#0", "d0#1"], {}),  # a short task text is one n-gram
        (around(SEVEN), SEVEN, ["d0"], {}),  # under eight words it is ignored
        *((text, f"{THIRTEEN}\0{EIGHT}", [], {"contaminated": 1}) for text in (THIRTEEN, f"x {THIRTEEN}", EIGHT)),
    ],
)
def test_pieces_of_a_document_by_the_papers_figures(
    tmp_path: Path, document: str, ngram: str, pieces: list[str], dropped: dict[str, int]
) -> None:
    summary, left = run(tmp_path, [document], [("boolq", text) for text in ngram.split("\0")], PAPER)
    assert [row["id"] for row in left] == pieces
    assert summary["sources"]["web"]["dropped"] == dropped
    assert summary["decontamination"]["documents_dropped"] == len(dropped)


@pytest.mark.parametrize("fan_out", [2, 128])
def test_ngrams_that_ten_documents_hold_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fan_out: int
) -> None:
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", fan_out)
    documents = [f"{around(THIRTEEN)} {number}" for number in range(10)]
    summary, left = run(tmp_path, documents, [("boolq", THIRTEEN)], PAPER, shards=3)
    assert [row["text"] for row in left] == documents
    assert summary["decontamination"]["ngrams_common"] == 1
    assert [pq.read_table(path).num_rows for path in (tmp_path / "out" / "cuts").glob("*.parquet")] == [0, 0, 0]
    summary, left = run(tmp_path, [*documents[:9], documents[0]], [("boolq", THIRTEEN)], PAPER, shards=3)
    assert summary["decontamination"]["ngrams_common"] == 1
    nine = [*documents[:8], documents[8] + documents[8]]
    summary, _ = run(tmp_path, nine, [("boolq", THIRTEEN)], PAPER, shards=3)
    assert summary["decontamination"]["documents_cut"] == 9


# --- the ledger ------------------------------------------------------------------------------------------------------


def test_the_ledger_names_the_cut_its_place_and_every_task_row(tmp_path: Path) -> None:
    other = "alpha beta gamma delta epsilon zeta eta theta iota kappa"
    documents = [around(THIRTEEN), "nothing here", THIRTEEN, around(f"{other}. {'Dddd eeee.' * 60} {THIRTEEN}")]
    texts = [("boolq", THIRTEEN), ("wic", THIRTEEN.upper()), ("wic", other)]
    summary, left = run(tmp_path, documents, texts, PAPER)
    ledger = [
        cut
        for path in sorted((tmp_path / "out" / "cuts").glob("*"))
        if path.suffix == ".parquet"
        for cut in pq.read_table(path).to_pylist()
    ]
    assert [(row["document"], row["task"], row["task_id"], row["fate"]) for row in ledger] == [
        ("d0", "boolq", "0", "cut"),
        ("d0", "wic", "1", "cut"),
        ("d2", "boolq", "0", "contaminated"),
        ("d2", "wic", "1", "contaminated"),
        ("d3", "wic", "2", "cut"),
        ("d3", "boolq", "0", "cut"),
        ("d3", "wic", "1", "cut"),
    ]
    kept = {row["id"]: row["text"] for row in left}
    for row in ledger:
        text = documents[int(row["document"][1:])]
        assert row["source"] == "web"
        assert " ".join(re.findall(r"\w+", text[row["start"] : row["end"]])) == row["ngram"]
        assert row["cut_start"] <= row["start"] < row["end"] <= row["cut_end"]
        assert not any(text[row["cut_start"] : row["cut_end"]] in piece for piece in kept.values())
    spans = sorted({(row["cut_start"], row["cut_end"]) for row in ledger if row["document"] == "d3"})
    (first, second), text = spans, documents[3]
    assert [kept[f"d3#{n}"] for n in range(3)] == [text[: first[0]], text[first[1] : second[0]], text[second[1] :]]
    assert summary["decontamination"]["cuts_by_task"] == {"boolq": 3, "wic": 4}


# --- what older tools get wrong --------------------------------------------------------------------------------------


def test_folding_keeps_positions_and_words() -> None:
    everything = [chr(code) for code in range(sys.maxunicode + 1)]
    folded = fold_case("".join(everything))
    assert len(folded) == len(everything)
    assert folded == "".join(map(fold_case, everything))  # whatever stands around a character
    codes = np.array([ord(character) for character in folded])
    assert (character_kinds()[codes] == character_kinds()).all()


def test_offsets_hold_where_lower_case_is_longer(tmp_path: Path) -> None:
    text = "İ" * 300 + ". " + around(THIRTEEN)
    _, left = run(tmp_path, [text], [("boolq", THIRTEEN)], PAPER)
    assert "".join(row["text"] for row in left) == text[: 302 + 200] + "Cccc dddd." * 20


def test_match_ends_at_its_last_word(tmp_path: Path) -> None:
    spread = THIRTEEN.replace(" ", " ... \n\n --- ")
    _, left = run(tmp_path, [around(spread, left=0)], [("boolq", THIRTEEN)], PAPER)
    assert left[0]["text"] == "Cccc dddd." * 20


def test_a_hash_that_agrees_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from mtnlg_data.decontaminate import ngrams as module

    monkeypatch.setattr(module, "ngram_hashes", lambda *run: np.zeros(len(ngram_hashes(*run)), np.uint64))
    monkeypatch.setattr(module, "find_prefixes", lambda hashes, *_: np.arange(len(hashes)))
    matches = NgramSet(["a b", "c d", "ab c", "e fg"], 2).search(["x c d a b", "b a", "a bc abc d", "e f", "e fgh"])
    assert [column.tolist() for column in matches] == [[0, 0], [2, 6], [5, 9], [1, 0]]


@pytest.mark.parametrize(
    ("text", "spans", "window", "shortest", "pieces", "cut_for"),
    [
        ("aa bb. cc dd", [(0, 5), (3, 9)], 0, 0, [" cc dd"], 1),  # a piece holds no match begun in what was cut
        ("aaaa.bbbXccc.dddd", [(8, 9)], 3, 0, ["aaaa.", "dddd"], 1),  # punctuation exactly at the edge of a cut
        ("aaaa.bbbXccc.dddd", [(8, 9)], 4, 0, ["aaaa."], 1),
        ("aaaa.bbbXccc.dddd", [(8, 9)], 5, 0, [], 1),
        (".bb XX. cc", [(4, 6)], 0, 0, [" cc"], 1),  # a mark that opens what is left ends no sentence
        ("XX.. YY. c", [(0, 2), (5, 7)], 0, 0, [" c"], 2),
        ("X.  Y", [(0, 1), (4, 5)], 0, 4, [], 1),  # what is too short to be kept is not searched on
        ("X.  Y", [(0, 1), (4, 5)], 0, 3, [], 2),
    ],
)
def test_where_a_cut_begins_and_ends(  # noqa: PLR0917
    text: str, spans: list[tuple[int, int]], window: int, shortest: int, pieces: list[str], cut_for: int
) -> None:
    assert cut_at(text, spans, window, shortest) == (pieces, spans[:cut_for])


class Backwards(Local):
    """Runs the last unit first."""

    def imap(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        yield from super().imap(list(tasks)[::-1])


def test_order_of_tasks_shards_and_batches_moves_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [around(f"{THIRTEEN} {n}", left=100 * n) for n in range(8)]
    run(tmp_path, documents, [("wic", THIRTEEN), ("boolq", THIRTEEN)], PAPER, shards=4)
    shards = sorted(tmp_path.glob("*.parquet"), reverse=True)
    monkeypatch.setattr("mtnlg_data.text.arrays.BATCH_CHARACTERS", 900)
    monkeypatch.setattr("mtnlg_data.decontaminate.matches.small_batches", partial(small_batches, size=900))
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", 2)
    step = Decontaminate(texts=tmp_path / "texts.jsonl")
    run_step(step, shards, tmp_path / "two", Backwards(1))
    for name in (name for shard in shards for name in (shard.name, f"cuts/{shard.name}")):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [("{", "texts.jsonl:2: expected"), ('{"task": "a", "id": 3, "text": "b"}', "texts.jsonl:2: expected")],
)
def test_a_bad_line_of_task_texts_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"task": "a", "id": "1", "text": "b"}\n' + line + "\n")
    with pytest.raises(Failure, match=message):
        list(read_task_texts(path))
    with pytest.raises(Failure, match=r"none\.jsonl: No such file"):
        list(read_task_texts(tmp_path / "none.jsonl"))


def test_settings_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(ValueError, match="minimum = 9 is more than n = 8"):
        DecontaminateSettings(n=8, minimum=9)


def test_one_change_of_the_task_texts_is_enough_to_do_it_again(tmp_path: Path) -> None:
    assert len(run(tmp_path, [around(THIRTEEN)], [("boolq", "other")], PAPER)[1]) == 1
    assert len(run(tmp_path, [around(THIRTEEN)], [("boolq", THIRTEEN)], PAPER)[1]) == 2
