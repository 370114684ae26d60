"""The style lm_eval sends the requests of stock lm-eval for the same rows, and styles set how choices are scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval.tasks
import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_eval.tasks.paper_task import PaperTask

    Load = Callable[..., PaperTask]

STOCK = Path(str(lm_eval.tasks.__file__)).parent
PROBLEMS = [
    {"question": "The shop sells  _  .", "answer": "B", "options": ["tea", "ink", "rope", "salt"]},
    {"question": "Who keeps it?", "answer": "A", "options": ["Ann.", "Ben.", "Cid.", "Dan."]},
    {"question": "It opens at", "answer": "D", "options": ["six.", "seven.", "eight.", "nine."]},
]
HELLASWAG = {"activity_label": "Rowing", "ctx_a": "A crew [title] sits.", "ctx_b": "they", "split_type": "indomain"}
ROWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lambada": ("lambada/lambada_openai.yaml", "test", {"text": "Ann rowed and Ben rowed until Ann stopped"}),
    "boolq": (
        "super_glue/boolq/default.yaml",
        "val",
        {"passage": "Oak -- A tree.", "question": "is oak a tree", "label": 1},
    ),
    "race_h": ("race/race.yaml", "test", {"article": "A shop in Ask.", "problems": str(PROBLEMS)}),
    "piqa": ("piqa/piqa.yaml", "val", {"goal": "Open a jar", "sol1": "turn it", "sol2": "hit it", "label": 0}),
    "hellaswag": (
        "hellaswag/hellaswag.yaml",
        "val",
        HELLASWAG | {"ctx": "", "endings": ["row [step] on.", "fly.", "eat.", "sing."], "label": "0"},
    ),
    "winogrande": (
        "winogrande/default.yaml",
        "val",
        {"sentence": "Ann saw Bea because _ was near.", "option1": "Ann", "option2": "Bea", "answer": "2"},
    ),
    "anli_r2": ("anli/anli_r2.yaml", "test", {"premise": "It rained.", "hypothesis": "It was wet.", "label": 1}),
    "wic": (
        "super_glue/wic/default.yaml",
        "val",
        {"sentence1": "A key turns.", "sentence2": "A low key.", "word": "key", "label": 0}
        | {"start1": 2, "end1": 5, "start2": 6, "end2": 9},
    ),
}


class Stock(ConfigurableTask):  # type: ignore[misc]  # lm-eval carries no types
    """A task of lm-eval's own over one row of ours."""

    def __init__(self, path: str, row: dict[str, Any]) -> None:
        self.row = row
        super().__init__(config=load_yaml(STOCK / path))

    def download(self, *_: object, **__: object) -> None:
        rows = self._process([self.row])
        self.dataset = dict.fromkeys(("train", "validation", "test", "train_r2", "dev_r2", "test_r2"), rows)

    def _process(self, rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401  (the datasets library's)
        import datasets

        return datasets.Dataset.from_list(rows)


def requests_of(task: Any) -> list[tuple[str, str]]:  # noqa: ANN401  (either kind of task)
    task.build_all_requests()
    return [(request.args[0], request.args[1]) for request in task.instances]


@pytest.mark.parametrize("name", ROWS)
def test_the_style_lm_eval_asks_what_stock_lm_eval_asks(name: str, load_task: Load, tmp_path: Path) -> None:
    path, split, row = ROWS[name]
    (tmp_path / name).mkdir()
    (tmp_path / name / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    stock = Stock(path, row)
    stock.set_config("num_fewshot", 0)
    ours = load_task(name, data=tmp_path, style="lm_eval")
    ours.set_shots(0)
    assert requests_of(ours) == requests_of(stock)


def test_each_style_compares_choices_as_it_says(load_task: Load) -> None:
    results = [(-4.0, False), (-3.0, False)]  # the model that counts words: "rub some soap on the hinges." has 6
    by_token, by_sum = (load_task("piqa", style=style) for style in ("paper", "lm_eval"))
    for task in (by_token, by_sum):
        task.set_shots(0)
        task.build_all_requests()
    doc = by_token.eval_docs[0]
    assert by_sum.scores(doc, results) == [-4.0, -3.0]
    assert by_token.scores(doc, results) == [-4.0 / 6, -3.0 / 6]
    race = load_task("race_h", style="lm_eval")
    assert race.unconditional is None
    assert [doc["id"] for doc in race.eval_docs] == ["high1.txt-3", "high2.txt-1"]
    assert load_task("race_h", style="gpt3").unconditional == "A:"
