"""A task of one's own: lm-eval's YAML in a file, scored by lm-eval like the style ``lm_eval``.

Admitted are tasks that choose among answers and score ``acc``, so that their results stand beside those of the nine
tasks. Any other (generation, perplexity, groups) runs through ``mtnlg-eval lm-eval``.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from mtnlg_model.console import Failure, UsageFailure

from .paper_task import SEED
from .published import TASKS_BY_NAME
from .sources import TaskRows
from .stock_task import SPLIT_KEYS, RecordedShots, StockTask, complete_metric

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .rows import Document

WAY_OUT = "for such a task: mtnlg-eval lm-eval --tasks FILE"


class OtherRows(RecordedShots):
    """Draws from the rows that differ from the ``scored`` one; lm-eval leaves it out of a test split alone."""

    scored = ""

    def sample(self, n: int, *_: object, **__: object) -> Sequence[Document]:
        """Draw ``n`` shots, or as many as there are."""
        others = [row for row in self.df if row["digest"] != self.scored]
        self.drawn = self.rnd.sample(others, min(n, len(others)))
        return self.drawn


class OwnTask(StockTask):
    """A task from a YAML file; ``few`` is its ``num_fewshot``."""

    def __init__(self, path: Path) -> None:
        """Read the task and its rows; ``Failure`` if the file or a row is malformed."""
        self.path, config = path, _read_config(path)
        self.name, self.few = str(config["task"]), int(config.pop("num_fewshot", 0) or 0)
        try:
            self._build(config)
            self.sampler = OtherRows(list(self.fewshot_docs()), rnd=SEED)
            documents, shots = list(self.eval_docs), list(self.fewshot_docs())
            splits = {key: config.get(key) for key in SPLIT_KEYS.values()}
            scored = splits["test_split"] or splits["validation_split"]
            pool = config.get("fewshot_split") or splits["training_split"] or splits["validation_split"] or scored
            self.rows = TaskRows(documents, shots, str(scored), str(pool))
            for number, document in enumerate(documents, start=1):
                self._check(number, document)
        except Failure as failure:
            raise Failure(f"{path}: {failure}") from None
        except Exception as error:  # noqa: BLE001  (lm-eval, datasets and templates raise errors of many libraries)
            reason = next(iter(str(error).splitlines()), "")
            raise Failure(f"{path}: not a task that lm-eval can read: {type(error).__name__}: {reason}") from None

    def _check(self, number: int, document: Document) -> None:
        """``Failure`` unless the row has an answer among its choices."""
        choices, key = self.doc_to_choice(document), "doc_to_text" if self.multiple_input else "doc_to_target"
        answers = getattr(self, key)(document)
        for answer in answers if isinstance(answers, list) and answers else [answers]:
            if answer not in (choices if isinstance(answer, str) else range(len(choices))):
                raise Failure(f"row {number}: {key} = {answer!r}: neither a choice nor the number of one")

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **options: object) -> None:
        """Load the data set as lm-eval does."""
        ConfigurableTask.download(self, dataset_kwargs, **options)
        if any("digest" in rows.column_names for rows in self.dataset.values()):
            raise Failure("its rows have a key digest, which results need; rename it")

    def fewshot_context(self, doc: Document, num_fewshot: int, **options: Any) -> str | list[str]:  # noqa: ANN401
        """lm-eval's context; the shots are never the scored row, from whatever split they come."""
        self.sampler.scored = doc["digest"]
        context: str | list[str] = super().fewshot_context(doc, num_fewshot, **options)
        return context

    def training_docs(self) -> Dataset:
        """lm-eval's, with the identity of each row; so the others."""
        return _identified(super().training_docs())

    def validation_docs(self) -> Dataset:
        """Documents of the validation split."""
        return _identified(super().validation_docs())

    def test_docs(self) -> Dataset:
        """Documents of the test split."""
        return _identified(super().test_docs())

    def fewshot_docs(self) -> Dataset:
        """Documents that give shots: equal to the scored ones where these are the same rows."""
        return _identified(super().fewshot_docs())


def _identified(documents: Any) -> Dataset:  # noqa: ANN401  (a data set, or what process_docs returned)
    """The documents with a digest of their content and, unless they have one, an id."""
    rows = documents if isinstance(documents, Dataset) else Dataset.from_list(list(documents))
    if "digest" in rows.column_names:
        return rows
    texts = (json.dumps(row, sort_keys=True, ensure_ascii=False, default=str) for row in rows)
    digests = [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts]
    rows = rows.add_column("digest", digests)
    return rows if "id" in rows.column_names else rows.add_column("id", digests)


def _read_config(path: Path) -> dict[str, Any]:
    """The file's keys, checked for what this package needs of them."""
    if not path.is_file():
        raise Failure(f"{path}: no such file")
    try:
        config: dict[str, Any] = load_yaml(path, resolve_func=True)
    except Exception as error:  # noqa: BLE001  (YAML's errors, and those of functions that it names)
        raise Failure(f"{path}: not a task's YAML: {str(error).splitlines()[0]}") from None
    name = config.get("task")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise UsageFailure(f"{path}: task = {name!r}: needs one name of letters, digits, _ . -; {WAY_OUT}")
    if name in TASKS_BY_NAME:
        raise UsageFailure(f"{path}: task = {name}: is one of the nine; choose another name")
    if config.get("output_type") != "multiple_choice":
        raise UsageFailure(f"{path}: output_type = {config.get('output_type')}: not multiple_choice; {WAY_OUT}")
    if config.get("fewshot_config"):
        raise UsageFailure(f"{path}: fewshot_config: shots are drawn with --seeds from fewshot_split; {WAY_OUT}")
    metrics = [
        complete_metric(each) for each in config.get("metric_list") or [{"metric": "acc"}, {"metric": "acc_norm"}]
    ]
    if "acc" not in [metric.get("metric") for metric in metrics]:
        raise UsageFailure(f"{path}: metric_list has no acc; {WAY_OUT}")
    return config | {"metric_list": metrics, "metadata": config.get("metadata") or {}}
