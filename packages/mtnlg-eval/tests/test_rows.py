"""The quickstart's own rows: the published schemas, right offsets, balanced labels, none of the published rows."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROWS = Path(__file__).parents[3] / "recipes" / "quickstart" / "rows"
PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "eval"
HANS_COLUMNS = 11

pytestmark = pytest.mark.skipif(not ROWS.is_dir(), reason="the package is tested outside its repository")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def hans(split: str) -> list[dict[str, str]]:
    with (ROWS / f"hans/heuristics_{split}_set.txt").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("lambada/lambada_test.jsonl", "lambada/lambada_test.head300.jsonl"),
        ("boolq/val.jsonl", "boolq/val.head300.jsonl"),
        ("winogrande/dev.jsonl", "winogrande/dev.head400.jsonl"),
        ("hellaswag/hellaswag_val.jsonl", "hellaswag/hellaswag_val.head300.jsonl"),
        ("piqa/valid.jsonl", "piqa/valid.head400.jsonl"),
        ("anli_r2/test.jsonl", "anli_r2/test.head200.jsonl"),
        ("wic/val.jsonl", "wic/val.head300.jsonl"),
        ("race_h/test/high/1.txt", "race_h/test/high/1006.txt"),
    ],
)
def test_rows_have_the_keys_of_the_published_ones(ours: str, theirs: str) -> None:
    """Those of the tests' rows, which are in the published formats, and of the published ones where they are here."""
    expected = read(Path(__file__).parent / "rows" / ours)[0].keys()
    assert not PUBLISHED.is_dir() or read(PUBLISHED / theirs)[0].keys() == expected
    assert all(row.keys() == expected for row in read(ROWS / ours))


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("boolq/val.jsonl", "label"),
        ("boolq/train.jsonl", "label"),
        ("winogrande/dev.jsonl", "answer"),
        ("winogrande/train_xl.jsonl", "answer"),
        ("hellaswag/hellaswag_val.jsonl", "label"),
        ("anli_r2/test.jsonl", "label"),
        ("anli_r2/train.jsonl", "label"),
        ("wic/val.jsonl", "label"),
        ("wic/train.jsonl", "label"),
    ],
)
def test_labels_are_balanced(file: str, key: str) -> None:
    assert len(set(Counter(row[key] for row in read(ROWS / file)).values())) == 1


@pytest.mark.parametrize("split", ["evaluation", "train"])
def test_hans_covers_three_heuristics_with_both_labels_evenly(split: str) -> None:
    rows = hans(split)
    assert all(len(row) == HANS_COLUMNS and None not in row.values() for row in rows)
    cells = Counter((row["heuristic"], row["gold_label"]) for row in rows)
    assert len(cells) == 3 * 2
    assert len(set(cells.values())) == 1
    for row in rows:
        for n in "12":  # the parses are of the sentences
            words = [leaf for leaf in row[f"sentence{n}_binary_parse"].split() if leaf not in {"(", ")"}]
            assert " ".join(words) == row[f"sentence{n}"]


@pytest.mark.parametrize("file", ["wic/val.jsonl", "wic/train.jsonl"])
def test_wic_offsets_point_at_the_word(file: str) -> None:
    for row in read(ROWS / file):
        for n in "12":
            assert row[f"sentence{n}"][row[f"start{n}"] : row[f"end{n}"]] == row["word"]


def test_no_row_is_one_of_the_published_rows() -> None:
    if not PUBLISHED.is_dir():
        pytest.skip("no samples of the published rows beside the repository")
    published = " ".join(p.read_text(encoding="utf-8") for p in PUBLISHED.rglob("*") if p.is_file())
    for key, file in [("text", "lambada/lambada_test.jsonl"), ("passage", "boolq/val.jsonl")]:
        assert not any(row[key] in published for row in read(ROWS / file))
    sentences = {row["sentence1"] for row in hans("evaluation")} | {
        row["sentence1"] for row in read(ROWS / "wic/val.jsonl")
    }
    assert not any(sentence in published for sentence in sentences)
