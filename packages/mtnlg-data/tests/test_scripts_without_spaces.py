"""Texts without spaces between words: near duplicates are found, and what tasks ask is cut out."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
import sentences_without_spaces as sentences
import small_corpus as corpus
from hypothesis import given
from hypothesis import strategies as st
from shards import read_rows, run_here, write_shard

from mtnlg_data import Decontaminate, Deduplicate, Document
from mtnlg_data.decontaminate.matches import sentence_ends
from mtnlg_data.decontaminate.ngrams import NgramSet, TaskText, task_ngrams
from mtnlg_data.dedup.minhash import hash_shingles
from mtnlg_data.text.characters import fold_case

if TYPE_CHECKING:
    from pathlib import Path

LANGUAGES = ("zh", "ja", "th")


@pytest.mark.parametrize("language", LANGUAGES)
def test_two_percent_changed_texts_are_found(tmp_path: Path, language: str) -> None:
    """The S-curve gives .96 and more at the similarities that 2 % leave; of 150 pairs 135 are five deviations less."""
    random, pairs = Random(7), 150
    documents = []
    for number in range(pairs):
        text = sentences.text(language, random)
        documents += [
            Document(f"{number}/a", "web", text),
            Document(f"{number}/b", "web", sentences.change(text, random)),
        ]
    shard = write_shard(tmp_path / "web-00000.parquet", documents)
    run_here(Deduplicate(), [shard], tmp_path / "out")
    left = [row["id"] for row in read_rows(tmp_path / "out" / shard.name)]
    removed = 2 * pairs - len(left)
    assert len({name.partition("/")[0] for name in left}) == pairs  # none lost its twin to an unrelated text
    assert removed > 0.9 * pairs


@pytest.mark.parametrize("language", LANGUAGES)
def test_unrelated_texts_of_few_words_are_no_duplicates(language: str) -> None:
    """Sixty words are far fewer than real texts have, so these share more shingles than those do."""
    texts = [sentences.text(language, Random(seed)) for seed in range(60)]
    values, bounds = hash_shingles(pa.array(texts, pa.large_string()), "word", 5)
    sets = [set(values[begin:end].tolist()) for begin, end in pairwise(bounds)]
    assert max(len(one & other) / len(one | other) for one, other in combinations(sets, 2)) < 0.65


def test_shingles_without_spaces_are_three_fifths_as_long() -> None:
    def count(text: str, length: int = 5) -> int:
        return int(hash_shingles(pa.array([text], pa.large_string()), "word", length)[1][-1])

    assert count("造纸术由谁改进") == 7 - 3 + 1
    assert count("a b c d e f g") == 7 - 5 + 1
    assert count("造纸术 a b c") == 6 - 5 + 1  # half of the words
    assert count("造纸术由 a b c") == 7 - 3 + 1
    assert count("造纸术由谁改进", 1) == 7
    assert count("造纸") == 1


# --- decontamination -------------------------------------------------------------------------------------------------


def around(text: str, language: str, random: Random) -> str:
    return f"{sentences.text(language, random, 500)}{text}{sentences.text(language, random, 500)}"


@pytest.mark.parametrize(
    ("language", "question"),
    [
        ("zh", "中国古代四大发明中的造纸术由东汉哪位官员改进并推广到全国各地的"),
        ("ja", "江戸時代の終わりに黒船を率いて浦賀に来航したアメリカの提督は誰でしょうか"),
        ("th", "แม่น้ำสายใดที่ไหลผ่านกรุงเทพมหานครแล้วออกสู่ทะเลที่อ่าวไทยในจังหวัดสมุทรปราการ"),
    ],
)
def test_question_without_spaces_is_cut_with_its_window(tmp_path: Path, language: str, question: str) -> None:
    random = Random(5)
    documents = [around(question, language, random), *(sentences.text(language, random) for _ in range(20))]
    shard = tmp_path / "web-00000.parquet"
    write_shard(shard, (Document(str(n), "web", text) for n, text in enumerate(documents)))
    task = corpus.write_jsonl(tmp_path / "texts.jsonl", [{"task": "quiz", "id": "1", "text": question + "?"}])
    run_here(Decontaminate(texts=task), [shard], tmp_path / "out")
    left = {row["id"]: row["text"] for row in read_rows(tmp_path / "out" / shard.name)}
    assert [left[str(n)] for n in range(1, len(documents))] == documents[1:]
    pieces = [left["0#0"], left["0#1"]]
    assert documents[0].startswith(pieces[0])
    assert documents[0].endswith(pieces[1])
    assert all(len(piece) >= 200 for piece in pieces)  # the cuts end with the sentences around the window


def ngrams_of(text: str, n: int = 13, minimum: int = 8) -> list[str]:
    return list(task_ngrams([TaskText(task="t", id="1", text=text)], n, minimum))


def test_two_han_characters_or_four_of_thai_count_as_a_word() -> None:
    han, thai = "".join(map(chr, range(0x4E00, 0x4E00 + 33))), "".join(map(chr, range(0x0E01, 0x0E01 + 33)))
    assert ngrams_of(han) == sorted(han[first : first + 26] for first in range(8))
    assert ngrams_of(han[:25]) == [han[:25]]
    assert ngrams_of(han[:16]) == [han[:16]]
    assert ngrams_of(han[:15]) == []
    assert ngrams_of(thai) == [thai]
    assert ngrams_of(thai[:31]) == []


def test_mixed_script_ngram_spaces_only_letter_words() -> None:
    assert ngrams_of('用Python写的"Hello World"程序', 4, 1) == [
        "python 写的 hello world",
        "写的 hello world 程序",
        "用 python 写的 hello world",
    ]


PIECES = ("造", "纸", "ก", "\u0e48", "ab", "c", "Ab", " ", ", ", "\n", "。", "日本", "é", "x1")


@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), min_size=1, max_size=4))
def test_matches_equal_plain_search_in_any_script_mix(texts: list[str]) -> None:
    n, minimum, (task, *documents) = 3, 1, texts
    ngrams = ngrams_of(task, n, minimum)
    found = NgramSet(ngrams, minimum).search(documents) if documents else None
    expected = [
        (number, words[first][0], words[last - 1][1], ngrams.index(ngram))
        for number, document in enumerate(documents)
        for words in [plain_words(document)]
        for first in range(len(words))
        for last in range(len(words), first, -1)
        if (ngram := joined([word for *_, word in words[first:last]])) in ngrams
    ]
    ours = [] if found is None else list(zip(*(column.tolist() for column in found), strict=True))
    assert ours == expected


def plain_words(text: str) -> list[tuple[int, int, str]]:
    matches = re.finditer(r"[造纸日本\u0e00-\u0e7f]|[a-zé0-9]+", fold_case(text))
    return [(match.start(), match.end(), match.group()) for match in matches]


def joined(words: list[str]) -> str:
    """The words, with a space beside each that is made of letters."""
    return re.sub(r"(?<=[造纸日本\u0e00-\u0e7f]) (?=[造纸日本\u0e00-\u0e7f])", "", " ".join(words))


def test_sentences_end_at_marks_of_their_script() -> None:
    def ends(text: str) -> list[int]:
        places = np.arange(len(text))
        return sorted(set(sentence_ends(text, places, places, 0)[1].tolist()) - {len(text)})

    assert ends("造纸。纸\uff01谁\uff1f 是") == [2, 4, 6]
    assert ends("ไทย ไป ok ไป\nไป") == [3, 6, 12]
    assert ends("One two. Three\nfour") == [7]
