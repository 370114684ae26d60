"""The style lm_eval is stock lm-eval: requests to the byte and metrics, on rows of ours and the published samples."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import lm_eval.tasks
import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from mtnlg_eval.scoring.measures import scores_of
from mtnlg_eval.tasks.lm_eval_tasks import STOCK, whole_shots

if TYPE_CHECKING:
    from collections.abc import Callable

    from lm_eval.api.task import Task

    Load = Callable[..., Task]

TASKS = Path(str(lm_eval.tasks.__file__)).parent
SPLITS = ("train", "validation", "test", "train_r2", "dev_r2", "test_r2")
# Rows with blanks at their ends, as the data sets have them: the split of each task, and its rows.
OWN: dict[str, tuple[str, list[dict[str, Any]]]] = json.loads(Path(__file__).with_name("stock_rows.json").read_text())


class Stock(ConfigurableTask):  # type: ignore[misc]  # lm-eval carries no types
    """A task of lm-eval's own over rows as its data set has them; the same rows for every split."""

    def __init__(self, path: str, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        super().__init__(config=load_yaml(TASKS / path))

    def download(self, *_: object, **__: object) -> None:
        self.dataset = dict.fromkeys(SPLITS, datasets.Dataset.from_list(self.rows))


def requests_of(task: Any) -> list[tuple[str, str]]:  # noqa: ANN401  (either kind of task)
    task.build_all_requests()
    return [(request.args[0], request.args[1]) for request in task.instances]


def write_rows(folder: Path, name: str, rows: list[dict[str, Any]], split: str) -> Path:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("name", STOCK)
def test_our_rows_match_stock_lm_eval_bytes(name: str, load_task: Load, tmp_path: Path) -> None:
    split, rows = OWN[name]
    stock = Stock(STOCK[name], rows)
    stock.set_config("num_fewshot", 0)
    ours = load_task(name, data=write_rows(tmp_path, name, rows, split), style="lm_eval")
    assert requests_of(ours) == requests_of(stock)


@pytest.mark.parametrize("name", ["boolq", "race_h", "winogrande", "hellaswag", "lambada"])
def test_the_shots_are_stock_lm_evals_for_the_same_seed(name: str, load_task: Load, tmp_path: Path) -> None:
    """Its data sets have train (or test alone): so do these folders. Where it shows a row its own answer, we do not."""
    split, (row, *_) = OWN[name]
    text = {"boolq": "passage", "race_h": "article", "winogrande": "sentence", "hellaswag": "ctx_a", "lambada": "text"}
    rows = [row | {text[name]: f"{n} {row[text[name]]}"} for n in range(30)]
    folder = write_rows(tmp_path, name, rows, split)
    if name not in {"race_h", "lambada"}:
        write_rows(tmp_path, name, rows, "train")
    for seed in (1234, 7):
        stock = Stock(STOCK[name], rows)
        stock.set_config("num_fewshot", 3)
        stock.set_fewshot_seed(seed)
        ours, theirs = (requests_of(t) for t in (load_task(name, 3, data=folder, style="lm_eval", seed=seed), stock))
        for n, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
            assert mine == its or its[0].count(f"{n * len(rows) // len(ours)} {row[text[name]][:9]}") > 1


def test_cut_prompt_counts_whole_shots(load_task: Load, tmp_path: Path, counter: type[Any]) -> None:
    rows = [{"passage": f"{n} word word word", "question": "is it", "label": 1} for n in range(9)]
    for split in ("val", "train"):
        write_rows(tmp_path, "boolq", rows, split)
    for length, shots in ((80, 4), (20, 2), (9, 0)):  # a shot and a question have 6 words each
        task = load_task("boolq", 4, data=tmp_path, style="lm_eval")
        drawn: list[Any] = []
        sample = task.sampler.sample
        task.sampler.sample = lambda *args, sample=sample, drawn=drawn, **o: (
            drawn.append(sample(*args, **o)) or drawn[-1]
        )
        task.build_all_requests()
        words = [len(re.findall(r"\d word", " ".join(r.args[0].split(" ")[-length:]))) - 1 for r in task.instances[::2]]
        whole = zip(task.instances[::2], drawn, strict=True)
        assert [whole_shots(task, counter(length), one, shown) for one, shown in whole] == words == [shots] * 9


def test_original_lambada_is_lm_evals_lambada_standard(load_task: Load, tmp_path: Path) -> None:
    folder = tmp_path / "lambada"
    folder.mkdir()
    (folder / "lambada_test_plain_text.txt").write_text("she saw the sea .\nhe saw the sky .\n")
    (folder / "lambada_development_plain_text.txt").write_text("they saw it .\nand it was good .\n")
    task = load_task("lambada", data=tmp_path, style="lm_eval")
    assert (task.rows.variant, task.rows.pool, task.rows.split) == ("original", "validation", "test")
    assert task.config.dataset_path == "cimec/lambada"


def test_each_style_compares_choices_as_it_says(load_task: Load) -> None:
    results = [(-4.0, False), (-3.0, False)]  # the model that counts words: "rub some soap on the hinges." has 6
    by_token, by_sum = (load_task("piqa", style=style) for style in ("paper", "lm_eval"))
    for task in (by_token, by_sum):
        task.build_all_requests()
    doc = by_token.eval_docs[0]
    assert scores_of(by_sum, {"filtered_resps": results}) == [-4.0, -3.0]
    assert by_token.scores(doc, results) == [-4.0 / 6, -3.0 / 6]
    assert [doc["id"] for doc in load_task("race_h", style="lm_eval").eval_docs] == ["high1.txt-3", "high2.txt-1"]
