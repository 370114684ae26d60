"""Files as their authors published them: other sets are named and never merged, and shots never tell an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from mtnlg_eval.tasks.shots import sample_rows
from mtnlg_eval.tasks.sources import open_rows
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mtnlg_eval.tasks.paper_task import PaperTask

    Load = Callable[..., PaperTask]

ANLI = {"uid": "u", "context": "It rained.", "hypothesis": "It was wet.", "label": "e"}
ARTICLE = {"article": "a", "questions": ["q"], "options": [["1", "2", "3", "4"]], "answers": ["A"]}
WINOGRANDE = {"option1": "Ann", "option2": "Bea", "answer": "1"}


def write(path: Path, *rows: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))


LAMBADA = "lambada/lambada_{}_plain_text.txt"
OTHER_SETS = {
    LAMBADA.format("test"): ("lambada", [LAMBADA.format("control_test_data"), LAMBADA.format("development")]),
    "race_h/test/high/1.txt": ("race_h", ["race_h/test/middle/1.txt", "race_h/dev/middle/1.txt"]),
    "anli_r2/R2/test.jsonl": ("anli_r2", ["anli_r2/R1/test.jsonl", "anli_r2/R3/test.jsonl"]),
}


@pytest.mark.parametrize("scored", OTHER_SETS)
def test_other_sets_of_an_archive_are_not_read(scored: str, tmp_path: Path) -> None:
    task, others = OTHER_SETS[scored]
    for file in (scored, *others):
        row = {"lambada": f"the words of {file} .", "race_h": ARTICLE | {"id": file}, "anli_r2": ANLI | {"uid": file}}
        write(tmp_path / file, row[task])
    (doc,) = open_rows(task, tmp_path).rows().scored
    assert scored in (doc["text"] if task == "lambada" else doc["id"])
    (tmp_path / scored).rename(tmp_path / "rows.txt")
    for file in others:
        if "development" in file:
            (tmp_path / file).unlink()
    with pytest.raises(Failure, match=f"file of {task} with train, dev, val or test in its name"):
        open_rows(task, tmp_path).rows()


def test_two_files_of_a_split_are_refused_except_winogrande(tmp_path: Path) -> None:
    boolq = {"question": "q", "passage": "p", "label": 1}
    write(tmp_path / "boolq/val.jsonl", boolq)
    write(tmp_path / "boolq/copy/val2.jsonl", boolq)
    with pytest.raises(Failure, match=r"2 files of the validation split \(copy/val2.jsonl, val.jsonl\); keep only one"):
        open_rows("boolq", tmp_path).rows()
    for size, count in (("xs", 1), ("xl", 3), ("debiased", 2)):
        rows = [WINOGRANDE | {"qID": f"{size}-{n}", "sentence": f"{n} Ann saw Bea as _ left."} for n in range(count)]
        write(tmp_path / f"winogrande/train_{size}.jsonl", *rows)
    write(tmp_path / "winogrande/dev.jsonl", WINOGRANDE | {"sentence": "So Ann saw Bea as _ left."})
    assert [doc["id"] for doc in open_rows("winogrande", tmp_path).rows().shots] == ["xl-0", "xl-1", "xl-2"]


def test_lambadas_shots_are_of_the_variant_of_its_rows(tmp_path: Path) -> None:
    write(
        tmp_path / "lambada/lambada_test.jsonl", {"text": '"We saw," Ann said, "the sea"'}, {"text": "The sea it was"}
    )
    write(tmp_path / "lambada/lambada_development_plain_text.txt", "`` we saw , '' ann said .", "the sea was wide .")
    rows = open_rows("lambada", tmp_path).rows()
    assert (rows.variant, rows.split, rows.pool) == ("openai", "test", "test")
    write(tmp_path / "lambada/lambada_test.jsonl", {"text": "the sea was wide ."})
    rows = open_rows("lambada", tmp_path).rows()
    assert (rows.variant, rows.split, rows.pool) == ("original", "test", "validation")


def test_a_test_file_without_labels_gives_no_shots(tmp_path: Path) -> None:
    row = {"question": "q", "passage": "p", "idx": 0}
    write(tmp_path / "boolq/val.jsonl", row | {"label": 1}, row | {"label": 0})
    write(tmp_path / "boolq/test.jsonl", row)
    rows = open_rows("boolq", tmp_path).rows()
    assert (rows.pool, len(rows.shots), len(rows.left_out)) == ("validation", 2, 1)


WORDS = ["who", "what", "when", "where", "why", "how"]
TWINS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "winogrande": lambda n, side: {
        "sentence": f"{WORDS[n]} Ann beat Bea so _ {('won', 'lost')[side]}.",
        "option1": "Ann",
        "option2": "Bea",
        "answer": str(side + 1),
    },
    "boolq": lambda n, side: {"passage": f"passage {n}", "question": f"question {side}", "label": side},
    "piqa": lambda n, side: {"goal": f"goal {n}", "sol1": f"a {side}", "sol2": f"b {side}", "label": side},
    "anli_r2": lambda n, side: {"premise": f"premise {n}", "hypothesis": f"hypothesis {side}", "label": side},
    "hellaswag": lambda n, side: {
        "activity_label": "Row",
        "ctx_a": f"scene {side}",
        "ctx_b": "",
        "source_id": f"video {n}",
        "endings": [f"{n} a", "b", "c", "d"],
        "label": side,
    },
    "race_h": lambda n, side: ARTICLE | {"article": f"article {n}", "questions": [f"{side}"]},
    "wic": lambda n, side: {
        "word": WORDS[n],
        "sentence1": f"{WORDS[n]} {side}",
        "sentence2": f"or {WORDS[n]}",
        "start1": 0,
        "end1": len(WORDS[n]),
        "label": side,
    },
}


@pytest.mark.parametrize("name", TWINS)
def test_shots_exclude_twins_and_shared_passages(name: str, load_task: Load, tmp_path: Path) -> None:
    split = "test" if name in {"anli_r2", "race_h"} else "val"
    write(tmp_path / f"{name}/{split}.jsonl", *(TWINS[name](n, side) for n in range(6) for side in (0, 1)))
    task = load_task(name, 50, tmp_path)
    groups = {doc["id"]: doc["group"] for doc in task.eval_docs}
    assert len(set(groups.values())) == 6
    for doc in task.eval_docs:
        drawn = task._pool.draw(doc, 50, "key")
        assert len({shot["group"] for shot in drawn}) == len(drawn) == 5
        assert doc["group"] not in {shot["group"] for shot in drawn}
        task.fewshot_context(doc, 50)
        assert len(task.sampler.drawn) == 5


def test_limit_samples_every_kind_and_nests() -> None:
    ids = [f"ex{n}" for n in range(1000)]  # published in this order, a hundred of each kind
    small, large = (sample_rows(ids, limit) for limit in (50, 100))
    assert [len(small), len(large)] == [50, 100]
    assert set(small) < set(large)
    assert sorted(large) == large
    assert len({number // 100 for number in small}) >= 9
    assert sample_rows(ids, None) == list(range(1000))
