"""Decontamination against a plain re-implementation, and against the bugs of the tools before it."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtnlg_data.console import Failure
from mtnlg_data.decontaminate.cut_planning import DecontaminateSettings, plan_cuts
from mtnlg_data.decontaminate.matches import Match, sentence_ends
from mtnlg_data.decontaminate.ngrams import (
    NgramSet,
    TaskText,
    _find_prefixes_numpy,
    find_prefixes,
    read_task_texts,
    task_ngrams,
)
from mtnlg_data.decontaminate.stage import decontaminate_documents
from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.schema import Document
from mtnlg_data.words import character_kinds, fold_case, ngram_hashes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Summary, U

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
        write_documents(path, batch_documents(rows[cuts[number] : cuts[number + 1]]))
    file = None
    if texts is not None:
        file = folder / "texts.jsonl"
        rows_of_tasks = enumerate(texts)
        lines = [json.dumps({"task": task, "id": str(n), "text": text}) + "\n" for n, (task, text) in rows_of_tasks]
        file.write_text("".join(lines), encoding="utf-8")
    summary = decontaminate_documents(paths, folder / "out", config, file, Local(1))
    left = [row for path in paths for row in pq.read_table(folder / "out" / path.name).to_pylist()]
    return summary, left


# --- the oracle: the definition, word by word ------------------------------------------------------------------------


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
prose = st.lists(st.tuples(words, gaps), max_size=40).map(lambda parts: "".join(word + gap for word, gap in parts))
task_texts = st.lists(
    st.tuples(
        st.sampled_from(["boolq", "wic"]),
        st.lists(st.tuples(words, gaps), max_size=7).map(lambda parts: "".join(word + gap for word, gap in parts)),
    ),
    max_size=4,
)


@settings(max_examples=8)  # of up to twelve documents each, through all the files
@given(documents=st.lists(prose, max_size=12), texts=task_texts, common=st.integers(1, 4), window=st.integers(0, 9))
def test_what_is_left_is_what_the_definition_leaves(
    documents: list[str],
    texts: list[tuple[str, str]],
    common: int,
    window: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = SMALL.model_copy(update={"common": common, "window": window})
    summary, left = run(tmp_path_factory.mktemp("d"), documents, texts, config)
    expected = plain(documents, texts, config)
    assert [row["text"] for row in left] == expected
    assert summary["documents_out"] == len(expected)
    assert summary["characters_out"] == sum(map(len, expected))


@given(texts=task_texts, documents=st.lists(prose, max_size=3))
@example(texts=[("wic", "a b"), ("wic", "a b i é"), ("boolq", "a b i")], documents=["é A. b i É a b", "a b"])
def test_every_place_of_every_ngram_is_found_by_start_the_longest_first(
    texts: list[tuple[str, str]], documents: list[str]
) -> None:
    ngrams = task_ngrams([TaskText(task=task, id="", text=text) for task, text in texts], 4, 2)
    assert {tuple(ngram.split()) for ngram in ngrams} == plain_ngrams(texts, SMALL)
    numbered = list(ngrams)
    occurrences = list(zip(*(column.tolist() for column in NgramSet(numbered, 2).search(documents)), strict=True))
    for number, text in enumerate(documents):
        spans = plain_words(text)
        runs = [spans[i : i + n] for i in range(len(spans)) for n in range(4, 1, -1) if i + n <= len(spans)]
        expected = [(r[0][0], r[-1][1], " ".join(word for _, _, word in r)) for r in runs]
        ours = [(start, end, numbered[ngram]) for of, start, end, ngram in occurrences if of == number]
        assert ours == [e for e in expected if e[2] in ngrams]


@given(
    hashes=st.lists(st.integers(0, 3), max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=3),
    minimum=st.integers(1, 4),
    bits=st.integers(0, 2**64 - 1),
)
def test_numba_and_numpy_find_the_same_prefixes(hashes: list[int], cuts: list[int], minimum: int, bits: int) -> None:
    bounds = np.array(sorted({0, len(hashes), *(cut for cut in cuts if cut < len(hashes))}), np.int64)
    words = (np.array(hashes, np.uint64), bounds, minimum, np.array([bits], np.uint64), np.uint64(58))
    assert find_prefixes(*words).tolist() == _find_prefixes_numpy(*words).tolist()


def cut_at(
    text: str, spans: Sequence[tuple[int, int]], window: int, shortest: int
) -> tuple[list[str], list[tuple[int, int]]]:
    """Pieces kept of a text with matches at these spans, and the matches it is cut for."""
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    around = zip(*(column.tolist() for column in sentence_ends(text, starts, ends, window)), strict=True)
    matches = [Match(*span, 0, *of) for span, of in zip(spans, around, strict=True)]
    kept, cuts = plan_cuts(len(text), matches, shortest)
    return [text[start:end] for start, end in kept], [(cut.match.start, cut.match.end) for cut in cuts]


@settings(max_examples=150)
@given(text=prose, texts=task_texts, window=st.integers(0, 9), shortest=st.integers(0, 9))
def test_the_pieces_of_a_text_are_those_of_the_definition(
    text: str, texts: list[tuple[str, str]], window: int, shortest: int
) -> None:
    config = SMALL.model_copy(update={"window": window, "shortest": shortest})
    ngrams = [" ".join(ngram) for ngram in sorted(plain_ngrams(texts, config))]
    matches = NgramSet(ngrams, config.minimum).search([text])
    spans = list(zip(matches.starts.tolist(), matches.ends.tolist(), strict=True))
    left = cut_at(text, spans, window, shortest)[0] if spans else [text]
    assert left == plain_cut(text, plain_ngrams(texts, config), config)


def test_documents_are_the_same_whatever_the_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [around(f"{THIRTEEN if n % 3 else ''} {n}", left=100 * n) for n in range(9)]
    _, expected = run(tmp_path, documents, [("wic", THIRTEEN)], PAPER)
    monkeypatch.setattr("mtnlg_data.document.ROWS_PER_GROUP", 2)
    assert run(tmp_path, documents, [("wic", THIRTEEN)], PAPER)[1] == expected


# --- the paper's figures ---------------------------------------------------------------------------------------------

THIRTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen"
PAPER = DecontaminateSettings()


def around(text: str, *, left: int = 400, right: int = 400) -> str:
    """The text as a sentence, between sentences of ten characters."""
    return "Aaaa bbbb." * (left // 10) + f" {text}. " + "Cccc dddd." * (right // 10)


def test_two_hundred_characters_on_each_side_go_with_a_match_to_the_end_of_the_sentence(tmp_path: Path) -> None:
    summary, left = run(tmp_path, [around(THIRTEEN)], [("boolq", THIRTEEN.upper())], PAPER)
    assert [row["text"] for row in left] == ["Aaaa bbbb." * 20, "Cccc dddd." * 20]
    assert [row["id"] for row in left] == ["d0#0", "d0#1"]
    assert {(row["url"], row["language"], row["score"], row["source"]) for row in left} == {("u", "en", 0.5, "web")}
    assert summary["decontamination"]["documents_cut"] == 1
    assert summary["decontamination"]["cuts_by_task"] == {"boolq": 1}
    assert summary["decontamination"]["samples"][0]["ngram"] == THIRTEEN


def test_a_document_that_is_only_trimmed_keeps_its_name(tmp_path: Path) -> None:
    _, left = run(tmp_path, [around(THIRTEEN, left=0)], [("boolq", THIRTEEN)], PAPER)
    assert [(row["id"], row["text"]) for row in left] == [("d0", "Cccc dddd." * 20)]


def test_short_pieces_go_and_a_document_of_short_pieces_goes_as_a_whole(tmp_path: Path) -> None:
    summary, left = run(tmp_path, [around(THIRTEEN, left=390, right=390)], [("boolq", THIRTEEN)], PAPER)
    assert left == []
    assert summary["sources"]["web"]["dropped"] == {"contaminated": 1}
    assert summary["decontamination"]["documents_dropped"] == 1


@pytest.mark.parametrize(("matches", "kept"), [(9, 10), (10, 0)])
def test_a_document_of_more_than_ten_pieces_goes_as_a_whole(tmp_path: Path, matches: int, kept: int) -> None:
    sentences = "Aaaa bbbb." * 70
    summary, left = run(tmp_path, [sentences + (THIRTEEN + "." + sentences) * matches], [("wic", THIRTEEN)], PAPER)
    assert len(left) == kept == summary["documents_out"]
    assert summary["sources"]["web"]["dropped"] == ({} if kept else {"split": 1})


@pytest.mark.parametrize("fan_out", [2, 128])
def test_ngrams_that_ten_documents_hold_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fan_out: int
) -> None:
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", fan_out)
    documents = [f"{around(THIRTEEN)} {number}" for number in range(10)]
    summary, left = run(tmp_path, documents, [("boolq", THIRTEEN)], PAPER, shards=3)
    assert [row["text"] for row in left] == documents
    assert summary["decontamination"]["ngrams_common"] == 1
    summary, left = run(tmp_path, [*documents[:9], documents[0]], [("boolq", THIRTEEN)], PAPER, shards=3)
    assert summary["decontamination"]["ngrams_common"] == 1
    nine = [*documents[:8], documents[8] + documents[8]]
    summary, _ = run(tmp_path, nine, [("boolq", THIRTEEN)], PAPER, shards=3)
    assert summary["decontamination"]["documents_cut"] == 9


@pytest.mark.parametrize("length", [8, 12])
def test_a_short_task_text_counts_as_one_ngram_and_under_eight_words_it_is_ignored(tmp_path: Path, length: int) -> None:
    text = " ".join(THIRTEEN.split()[:length])
    assert len(run(tmp_path, [around(text)], [("piqa", text)], PAPER)[1]) == 2
    seven = " ".join(THIRTEEN.split()[:7])
    assert len(run(tmp_path, [around(seven)], [("piqa", seven)], PAPER)[1]) == 1


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


def test_a_common_ngram_is_in_no_ledger(tmp_path: Path) -> None:
    run(tmp_path, [f"{around(THIRTEEN)} {number}" for number in range(10)], [("boolq", THIRTEEN)], PAPER)
    assert [pq.read_table(path).num_rows for path in (tmp_path / "out" / "cuts").glob("*.parquet")] == [0, 0]


# --- what older tools get wrong --------------------------------------------------------------------------------------


def test_folding_keeps_every_character_in_its_place_and_words_words() -> None:
    everything = [chr(code) for code in range(sys.maxunicode + 1)]
    folded = fold_case("".join(everything))
    assert len(folded) == len(everything)
    assert folded == "".join(map(fold_case, everything))  # whatever stands around a character
    codes = np.array([ord(character) for character in folded])
    assert (character_kinds()[codes] == character_kinds()).all()


def test_offsets_are_those_of_the_text_though_lower_case_is_longer(tmp_path: Path) -> None:
    text = "İ" * 300 + ". " + around(THIRTEEN)
    _, left = run(tmp_path, [text], [("boolq", THIRTEEN)], PAPER)
    assert "".join(row["text"] for row in left) == text[: 302 + 200] + "Cccc dddd." * 20


def test_a_match_ends_where_its_last_word_does_however_its_words_are_parted(tmp_path: Path) -> None:
    spread = THIRTEEN.replace(" ", " ... \n\n --- ")
    _, left = run(tmp_path, [around(spread, left=0)], [("boolq", THIRTEEN)], PAPER)
    assert left[0]["text"] == "Cccc dddd." * 20


@pytest.mark.parametrize("text", [THIRTEEN, "x " + THIRTEEN, " ".join(THIRTEEN.split()[:8]), "x y z " + THIRTEEN])
def test_short_documents_are_searched_to_their_last_word(tmp_path: Path, text: str) -> None:
    tasks = [("boolq", THIRTEEN), ("boolq", " ".join(THIRTEEN.split()[:8]))]
    assert run(tmp_path, [text], tasks, PAPER)[1] == []


def test_a_hash_that_agrees_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from mtnlg_data.decontaminate import ngrams as module

    monkeypatch.setattr(module, "ngram_hashes", lambda *run: np.zeros(len(ngram_hashes(*run)), np.uint64))
    monkeypatch.setattr(module, "find_prefixes", lambda hashes, *_: np.arange(len(hashes)))
    matches = NgramSet(["a b", "c d", "ab c", "e fg"], 2).search(["x c d a b", "b a", "a bc abc d", "e f", "e fgh"])
    assert [column.tolist() for column in matches] == [[0, 0], [2, 6], [5, 9], [1, 0]]


def test_a_piece_of_a_cut_holds_no_match_begun_in_what_was_cut() -> None:
    text = "aa bb. cc dd"
    assert cut_at(text, [(0, 5), (3, 9)], 0, 0) == ([" cc dd"], [(0, 5)])


def test_a_cut_stops_at_punctuation_that_stands_exactly_at_its_edge() -> None:
    left = [cut_at("aaaa.bbbXccc.dddd", [(8, 9)], window, 0)[0] for window in (3, 4, 5)]
    assert left == [["aaaa.", "dddd"], ["aaaa."], []]


def test_a_mark_that_opens_what_is_left_ends_no_sentence() -> None:
    assert cut_at(".bb XX. cc", [(4, 6)], 0, 0) == ([" cc"], [(4, 6)])
    assert cut_at("XX.. YY. c", [(0, 2), (5, 7)], 0, 0) == ([" c"], [(0, 2), (5, 7)])


def test_what_is_too_short_to_be_kept_is_not_searched_on() -> None:
    spans = [(0, 1), (4, 5)]
    assert cut_at("X.  Y", spans, 0, 4) == ([], spans[:1])
    assert cut_at("X.  Y", spans, 0, 3) == ([], spans)


class Backwards(Local):
    """Runs the last unit first."""

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        yield from super().imap(function, list(units)[::-1])


def test_neither_the_order_of_units_nor_of_shards_nor_of_portions_moves_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [around(f"{THIRTEEN} {n}", left=100 * n) for n in range(8)]
    run(tmp_path, documents, [("wic", THIRTEEN), ("boolq", THIRTEEN)], PAPER, shards=4)
    shards = sorted(tmp_path.glob("*.parquet"), reverse=True)
    monkeypatch.setattr("mtnlg_data.words.BATCH_CHARACTERS", 900)
    monkeypatch.setattr("mtnlg_data.exchange.FAN_OUT", 2)
    decontaminate_documents(shards, tmp_path / "two", PAPER, tmp_path / "texts.jsonl", Backwards(1))
    for name in (name for shard in shards for name in (shard.name, f"cuts/{shard.name}")):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


# --- files -----------------------------------------------------------------------------------------------------------


def test_without_task_texts_everything_passes(tmp_path: Path) -> None:
    summary, left = run(tmp_path, ["a b c d", ""], None)
    assert [row["text"] for row in left] == ["a b c d", ""]
    assert summary["decontamination"]["cuts_by_task"] == {}


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
