"""Decontamination: the paper's figures and definition, its ledger, and the bugs of the tools before it."""

from __future__ import annotations

import re
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import small_corpus as corpus
from engines import Backwards
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import run_here, stored_rows, write_shard

from mtnlg_data import Document, run_step
from mtnlg_data.decontaminate.matches import Match, plan_cuts
from mtnlg_data.steps.decontaminate import Decontaminate, DecontaminateSettings
from mtnlg_data.text.arrays import small_batches
from mtnlg_data.text.characters import character_kinds, fold_case

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.engine.tasks import Summary

SMALL = DecontaminateSettings(n=4, minimum=2, common=3, window=3, shortest=4, most_splits=3)


def run(
    folder: Path,
    documents: Sequence[str],
    texts: Sequence[tuple[str, str]] | None,
    config: DecontaminateSettings = SMALL,
    shards: int = 2,
) -> tuple[Summary, list[dict[str, Any]]]:
    """The stage's summary and the remaining documents."""
    rows = [Document(f"d{number}", "web", text, "u", "en", score=0.5) for number, text in enumerate(documents)]
    paths = [folder / f"web-{number:05d}.parquet" for number in range(shards)]
    cuts = np.linspace(0, len(rows), shards + 1).astype(int)
    for number, path in enumerate(paths):
        write_shard(path, rows[cuts[number] : cuts[number + 1]])
    file = None
    if texts:
        rows_of_tasks = [{"task": task, "id": str(n), "text": text} for n, (task, text) in enumerate(texts)]
        file = corpus.write_jsonl(folder / "texts.jsonl", rows_of_tasks)
    step = Decontaminate(config.model_copy(update={"texts": file}))
    summary = run_here(step, paths, folder / "out")
    written = [folder / "out" / path.name if texts else path for path in paths]  # without texts they pass unread
    left = stored_rows(written)
    return summary, left


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


@pytest.mark.parametrize(
    ("length", "matches", "kept"),
    [
        (31, [Match(10, 20, 0, 3, 26)], [(0, 4), (27, 31)]),  # pieces of exactly the shortest length stay
        (30, [Match(10, 20, 0, 2, 26)], []),  # and shorter ones go
        (30, [Match(0, 5, 0, -1, 9), Match(10, 15, 1, 9, 18)], [(19, 30)]),  # a match that begins where a cut ends
        (30, [Match(0, 5, 0, -1, 9), Match(9, 15, 1, -1, 18)], [(10, 30)]),  # one that begins in the cut is cut already
        (14, [Match(0, 5, 0, -1, 9), Match(10, 13, 1, 9, 14)], []),  # one in a rest of exactly the shortest length
    ],
)
def test_boundaries_of_cuts(length: int, matches: list[Match], kept: list[tuple[int, int]]) -> None:
    assert plan_cuts(length, matches, shortest=4)[0] == kept


def test_ngrams_in_ten_documents_are_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [f"{around(THIRTEEN)} {number}" for number in range(10)]
    summary, left = run(tmp_path, documents, [("boolq", THIRTEEN)], PAPER, shards=3)
    assert "decontaminate: 1 n-grams stay: each is in 10 documents or more" in capsys.readouterr().err
    assert [row["text"] for row in left] == documents
    assert summary["decontamination"]["ngrams_common"] == 1
    assert [pq.read_table(path).num_rows for path in (tmp_path / "out" / "cuts").glob("*.parquet")] == [0, 0, 0]
    summary, left = run(tmp_path, [*documents[:9], documents[0]], [("boolq", THIRTEEN)], PAPER, shards=3)
    assert summary["decontamination"]["ngrams_common"] == 1
    nine = [*documents[:8], documents[8] + documents[8]]
    summary, _ = run(tmp_path, nine, [("boolq", THIRTEEN)], PAPER, shards=3)
    assert summary["decontamination"]["documents_cut"] == 9


def test_run_without_texts_says_that_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    Decontaminate().check()
    assert "no texts of tasks are given, so nothing is cut" in capsys.readouterr().err


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


def test_order_of_tasks_shards_and_batches_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [around(f"{THIRTEEN} {n}", left=100 * n) for n in range(8)]
    run(tmp_path, documents, [("wic", THIRTEEN), ("boolq", THIRTEEN)], PAPER, shards=4)
    shards = sorted(tmp_path.glob("*.parquet"), reverse=True)
    monkeypatch.setattr("mtnlg_data.text.arrays.BATCH_CHARACTERS", 900)
    monkeypatch.setattr("mtnlg_data.decontaminate.matches.small_batches", partial(small_batches, size=900))
    step = Decontaminate(texts=tmp_path / "texts.jsonl")
    run_step(step, shards, tmp_path / "two", Backwards(1))
    for name in (name for shard in shards for name in (shard.name, f"cuts/{shard.name}")):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


# --- equal to the definition -----------------------------------------------------------------------------------------


def plain_words(text: str) -> list[tuple[int, int, str]]:
    return [(match.start(), match.end(), match.group()) for match in re.finditer(r"\w+", fold_case(text))]


def plain_ngrams(texts: Sequence[tuple[str, str]], config: DecontaminateSettings) -> set[tuple[str, ...]]:
    ngrams = set()
    for _, text in texts:
        words = tuple(word for _, _, word in plain_words(text))
        if config.minimum <= len(words) < config.n:
            ngrams.add(words)
        for first in range(len(words) - config.n + 1):
            ngrams.add(words[first : first + config.n])
    return ngrams


def plain_first(
    text: str, ngrams: set[tuple[str, ...]], config: DecontaminateSettings
) -> tuple[int, int, tuple[str, ...]] | None:
    words = plain_words(text)
    for first in range(len(words)):
        for length in range(config.n, config.minimum - 1, -1):
            run_of_words = tuple(word for _, _, word in words[first : first + length])
            if len(run_of_words) == length and run_of_words in ngrams:
                return words[first][0], words[first + length - 1][1], run_of_words
    return None


def plain_cut(text: str, ngrams: set[tuple[str, ...]], config: DecontaminateSettings) -> list[str]:
    """Take the first n-gram and what surrounds it out, go on with the rest, as the paper's tool does."""
    kept, is_whole = [], True
    while match := plain_first(text, ngrams, config) if is_whole or len(text) >= config.shortest else None:
        start, end, _ = match
        is_whole = False
        left = start - config.window
        while left > 0 and text[left] not in ".!?":
            left -= 1
        kept.append(text[: left + 1] if left > 0 else "")
        right = end + config.window
        while right < len(text) and text[right] not in ".!?":
            right += 1
        text = text[right + 1 :]
    if is_whole:
        return [text]
    return [piece for piece in [*kept, text] if piece and len(piece) >= config.shortest]


def plain(documents: Sequence[str], texts: Sequence[tuple[str, str]], config: DecontaminateSettings) -> list[str]:
    ngrams = plain_ngrams(texts, config)
    holders: Counter[tuple[str, ...]] = Counter()
    for text in documents:
        words = [word for _, _, word in plain_words(text)]
        runs = {tuple(words[i : i + n]) for n in range(config.minimum, config.n + 1) for i in range(len(words) - n + 1)}
        holders.update(runs & ngrams)
    rare = {ngram for ngram in ngrams if holders[ngram] < config.common}
    left = []
    for text in documents:
        parts = plain_cut(text, rare, config)
        left += parts if len(parts) <= config.most_splits else []
    return left


words = st.sampled_from(["a", "B", "b", "é", "É", "İ", "i", "ΟΔΟΣ", "οδος", "한국", "x_1", "\U0001d518"])
gaps = st.sampled_from([" ", "\n", ", ", ". ", "! ", "? ", ".", "  ", "-", "'"])
proses = [
    st.lists(st.tuples(words, gaps), min_size=fewest, max_size=40).map(
        lambda parts: "".join(word + gap for word, gap in parts)
    )
    for fewest in (20, 0)
]


@settings(max_examples=20)  # of up to twelve documents each, through all the files
@given(
    document=proses[0],
    others=st.lists(proses[1], max_size=11),
    starts=st.lists(st.integers(0, 60), max_size=4),
    numbers=st.fixed_dictionaries(
        {"common": st.sampled_from([4, 2, 1]), "window": st.integers(0, 9), "shortest": st.integers(1, 9)}
    ),
)
def test_result_matches_the_definition(
    document: str,
    others: list[str],
    starts: list[int],
    numbers: dict[str, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of texts of tasks that stand in the first document."""
    config, documents = SMALL.model_copy(update=numbers), [document, *others]
    texts = [("boolq", document[start : start + 15]) for start in starts]
    summary, left = run(tmp_path_factory.mktemp("d"), documents, texts, config)
    expected = plain(documents, texts, config)
    assert [row["text"] for row in left] == expected
    assert summary["documents_out"] == len(expected)
    assert summary["characters_out"] == sum(map(len, expected))
