"""Rows from folders: every published format, and a one-line error for each kind of bad row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mtnlg_eval.tasks.rows import ROWS
from mtnlg_eval.tasks.sources import Published, TaskRows, open_rows
from mtnlg_model.console import Failure

OURS = Path(__file__).parent / "rows"

BOOLQ = {"question": "is it", "passage": "It is.", "idx": 0, "label": "true"}
PIQA = {"goal": "g", "sol1": "a", "sol2": "b", "label": 0}
HELLASWAG = {"activity_label": "a", "ctx_a": "b", "ctx_b": "c", "endings": ["1", "2", "3", "4"], "label": 0}
WINOGRANDE = {"sentence": "A saw B as _ left.", "option1": "A", "option2": "B", "answer": "1"}
WIC = {"word": "w", "sentence1": "a w b", "sentence2": "w", "start1": 2, "end1": 3, "label": "false"}
HUB = {"article": "a"}
RACE = {"article": "a", "questions": ["q"], "options": [["1", "2", "3", "4"]], "answers": ["A"]}


def written(folder: Path, name: str, *lines: object) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(("label", "expected"), [("true", 1), ("false", 0), (True, 1), (False, 0), (1, 1), ("T", 1)])
def test_a_label_may_be_text_number_or_boolean(tmp_path: Path, label: object, expected: int) -> None:
    written(tmp_path, "boolq/val.jsonl", BOOLQ | {"label": label})
    assert open_rows("boolq", tmp_path).rows().scored[0]["label"] == expected


def test_race_rows_of_hub_and_files_are_equal() -> None:
    problems = [{"question": "q", "answer": "A", "options": ["1", "2", "3", "4"]}]
    hub = {"example_id": "high1.txt", "article": "a", "problems": repr(problems)}
    file = RACE | {"id": "high1.txt"}
    (from_hub,) = Published("race_h", "", {"test": lambda: [("", lambda: hub)]}, "test").rows().scored
    (from_file,) = Published("race_h", "", {"test": lambda: [("", lambda: file)]}, "test").rows().scored
    assert from_hub == from_file
    assert from_hub["id"] == "high1.txt-1"


@pytest.mark.parametrize(
    ("names", "scored", "shots"),
    [
        (["train.jsonl", "val.jsonl", "test.jsonl"], "val.jsonl", "train.jsonl"),
        (["BoolQ_dev.jsonl", "BoolQ-test.jsonl"], "BoolQ_dev.jsonl", "BoolQ-test.jsonl"),
        (["test/rows.jsonl", "train/rows.jsonl"], "test/rows.jsonl", "train/rows.jsonl"),
        (["validation.jsonl"], "validation.jsonl", "validation.jsonl"),
    ],
)
def test_splits_are_known_by_their_names(tmp_path: Path, names: list[str], scored: str, shots: str) -> None:
    for name in names:
        written(tmp_path, f"boolq/{name}", BOOLQ | {"idx": name})
    rows = open_rows("boolq", tmp_path).rows()
    assert [doc["id"] for doc in rows.scored] == [scored]
    assert [doc["id"] for doc in rows.shots] == [shots]


def test_row_ids_are_unique_and_the_publishers(tmp_path: Path) -> None:
    written(tmp_path, "boolq/val.jsonl", BOOLQ, BOOLQ, BOOLQ | {"idx": None})
    first, second, third = (doc["id"] for doc in open_rows("boolq", tmp_path).rows().scored)
    assert (first, second) == ("0", "0#2")
    assert re.fullmatch(r"[0-9a-f]{16}", third)


@pytest.mark.parametrize(
    ("file", "lines", "message"),
    [
        ("boolq/val.jsonl", [BOOLQ, BOOLQ | {"label": "maybe"}], ':2: label = "maybe": unknown label; use one of '),
        ("boolq/val.jsonl", [BOOLQ, "", "{"], ":3: not JSON: "),
        ("boolq/val.jsonl", [[1]], ":1: "),
        ("boolq/val.jsonl", ["[" * 10**5], ":1: not JSON: "),
        ("race_h/test.jsonl", [HUB | {"problems": "{[1]: 1}"}], ":1: problems is not a list of questions"),
        ("race_h/test.jsonl", [HUB | {"problems": "-" * 10**5}], ":1: problems is not a list of questions"),
        ("race_h/test.jsonl", [HUB | {"problems": "{(1, 2): 1}"}], ":1: problems = {}: "),
        ("race_h/test.jsonl", [HUB | {"problems": f"1{'+1j' * 3000}"}], ":1: problems is not a list of questions"),
        ("boolq/val.jsonl", [{"question": "q", "label": 1}], ":1: passage: required key is missing"),
        ("piqa/valid.jsonl", [PIQA | {"sol2": " "}], ":1: sol2 is empty"),
        ("hellaswag/val.jsonl", [HELLASWAG | {"endings": ["1", "2", "", "4"]}], ":1: endings.2 is empty"),
        ("hellaswag/val.jsonl", [HELLASWAG | {"endings": ["1", "2"]}], ":1: endings = "),
        ("hellaswag/val.jsonl", [HELLASWAG | {"label": 4}], ":1: label = 4: unknown label; use one of 0, 1, 2, 3"),
        ("winogrande/dev.jsonl", [WINOGRANDE | {"sentence": "No blank."}], ":1: sentence = "),
        (
            "winogrande/dev.jsonl",
            [WINOGRANDE | {"sentence": "It was _"}],
            ':1: sentence = "It was _": needs one blank _ with words',
        ),
        ("wic/val.jsonl", [WIC | {"end1": 2}], ":1: sentence1 has no word at 2:2"),
        ("lambada/test.jsonl", [{"text": "word"}], ':1: text = "word": needs words before the last one'),
        ("race_h/test/1.txt", [RACE | {"answers": ["E"]}], ': problems.0.answer = "E": unknown label; use one of a, b'),
        ("race_h/test/1.txt", [RACE | {"answers": []}], ": questions, options and answers are not lists of one length"),
        ("race_h/test/1.txt", [RACE | {"options": [["1", "2", "", "4"]]}], ": problems.0.options.2 is empty"),
        ("hans/dev.txt", ["gold_label\tsentence1", "entailment\ta\tb"], ":2: 3 columns where the header has 2"),
        ("hans/dev.txt", ["gold_label\tsentence1", "entailment\ta"], ":2: sentence2: required key is missing"),
        ("boolq/train.jsonl", [BOOLQ], "boolq: only training rows; "),
        ("boolq/rows.jsonl", [BOOLQ], "boolq: no .jsonl"),
        ("boolq/train-test.jsonl", [BOOLQ], ": test and train in one name"),
        ("anli_r2/test.tsv", ["a"], ": anli_r2 is read from .jsonl files"),
        ("boolq/val.jsonl", [], "boolq, validation: no rows to score"),
    ],
)
def test_malformed_rows_are_one_line_with_place(tmp_path: Path, file: str, lines: list[Any], message: str) -> None:
    written(tmp_path, file, *lines)
    try:
        (told,) = (
            open_rows(file.split("/", maxsplit=1)[0], tmp_path).rows().malformed.values()
        )  # where others are well-formed
    except Failure as failure:
        told = str(failure)
    assert message in told
    assert "\n" not in told


def test_missing_folder_and_other_labels_are_reported(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="wic: no such folder"):
        open_rows("wic", tmp_path).rows()
    written(tmp_path, "piqa/dev.jsonl", PIQA)
    written(tmp_path, "piqa/dev-labels.lst", "1", "0")
    with pytest.raises(Failure, match="2 labels for the 1 rows"):
        open_rows("piqa", tmp_path).rows()


def test_invalid_utf8_is_reported(tmp_path: Path) -> None:
    written(tmp_path, "lambada/test.txt", "a passage of words").write_bytes(b"a passage\na \xff word\n")
    (told,) = open_rows("lambada", tmp_path).rows().malformed.values()
    assert "test.txt:2: 'utf-8' codec can't decode" in told


def test_a_malformed_row_of_the_pool_is_left_out_and_named(tmp_path: Path) -> None:
    written(tmp_path, "boolq/val.jsonl", BOOLQ)
    train = written(tmp_path, "boolq/train.jsonl", BOOLQ, BOOLQ | {"passage": ""}, "nothing", BOOLQ)
    rows = open_rows("boolq", tmp_path).rows()
    assert len(rows.shots) == 2
    assert [line.split(": ")[0] for line in rows.left_out] == [f"{train}:2", f"{train}:3"]


def test_texts_hold_every_passage_question_and_option() -> None:
    texts_by_task = {name: [text for _, text in open_rows(name, OURS).texts()] for name in ROWS}
    assert texts_by_task["boolq"][:2] == [
        "Ask -- The church of Ask was built in 1460. The town hall beside it was added in 1712.",
        "is the town hall of Ask older than its church",
    ]
    assert len(texts_by_task["race_h"]) == 2 + 4 + 16
    assert "Ida asked Ruth the way because Ida's map had got wet." in texts_by_task["winogrande"]
    assert len(texts_by_task["hellaswag"]) == 8
    assert texts_by_task["piqa"][1] == "rub some soap on the hinges."
    assert all(len(texts) == len(set(texts)) for texts in texts_by_task.values())


def test_repeated_text_is_reported_once() -> None:
    rows = [("", lambda: PIQA), ("", lambda: PIQA | {"sol2": "c"})]
    assert [text for _, text in Published("piqa", "", {"test": lambda: rows}, "test").texts()] == ["g", "a", "b", "c"]


def test_notes_on_shots_are_only_for_runs_with_shots() -> None:
    rows = TaskRows([], [], "test", "test", None, {3: "no answer"}, ["train: line 1: no answer"])
    row = "row 3 is skipped: no answer"
    assert [*rows.notes(shots=False)] == [row]
    of_shots = ["1 malformed rows are not used as shots, the first train: line 1: no answer"]
    assert [*rows.notes(shots=True)] == [row, *of_shots, "no rows other than the scored ones for shots"]
