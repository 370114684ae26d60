"""lm-eval's own tasks over our rows: the style ``lm_eval``.

Prompts, shots, scores and metrics are the installed lm-eval's, from its own YAML: nothing is stripped, RACE is an
article's last question, shots come from the splits that its data set has and from one generator in document order, and
a prompt that is too long loses its beginning, shots and all. Only the rows are ours to fetch, so that files serve as
well as the hub. lm-eval has no HANS: tasks/hans.yaml says how this style scores it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval.tasks
from datasets import Dataset
from lm_eval.api.registry import AGGREGATION_REGISTRY, get_metric_aggregation, is_higher_better
from lm_eval.api.samplers import ContextSampler
from lm_eval.tasks._yaml_loader import load_yaml

from .paper_task import SEED
from .recorded_task import PromptFit, RecordedTask
from .shots import ANY_SHOT, max_shots_that_fit, sample_rows
from .sources import load_hub_task, read_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lm_eval.api.instance import Instance

    from .rows import Document
    from .shots import ShotChoice
    from .sources import TaskRows

LM_EVAL = "lm_eval"
"""Name of the style."""

STOCK = {
    "lambada": "lambada/lambada_openai.yaml",
    "race_h": "race/race.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "winogrande": "winogrande/default.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "piqa": "piqa/piqa.yaml",
    "anli_r2": "anli/anli_r2.yaml",
    "wic": "super_glue/wic/default.yaml",
}
"""Files of lm-eval's tasks."""

ORIGINAL_LAMBADA = "lambada/lambada_standard.yaml"
SPLIT_KEYS = {"train": "training_split", "validation": "validation_split", "test": "test_split"}


def stock_config(task: str, variant: str | None = None) -> dict[str, Any]:
    """lm-eval's config of a task, or of LAMBADA in this variant."""
    path = ORIGINAL_LAMBADA if variant == "original" else STOCK[task]
    config: dict[str, Any] = load_yaml(Path(str(lm_eval.tasks.__file__)).parent / path)
    return config


def complete_metric(metric: Mapping[str, Any]) -> dict[str, Any]:
    """A metric of a YAML with lm-eval's own aggregation and direction where it names none; lm-eval would warn of it."""
    names, name = {function: name for name, function in AGGREGATION_REGISTRY.items()}, metric.get("metric", "")
    aggregation = names.get(get_metric_aggregation(name), "mean")
    return {"aggregation": aggregation, "higher_is_better": is_higher_better(name) is not False, **metric}


def read_stock_rows(task: str, data: Path | None, hub: Mapping[str, Any], revision: str | None = None) -> TaskRows:
    """Rows with every byte, from a folder or the hub's data set ``hub``; shots from splits that stock lm-eval knows."""

    def read(pools: Sequence[str]) -> TaskRows:
        if data is None:
            return load_hub_task({**hub, "metadata": {"revision": revision}}, verbatim=True, pools=pools)
        return read_task(data, task, verbatim=True, pools=pools)

    rows = read(_pools(stock_config(task)))
    if rows.variant == "original":
        rows = read(_pools(stock_config(task, rows.variant)))
    return rows


def _pools(config: Mapping[str, Any]) -> list[str]:
    return [split for split, key in SPLIT_KEYS.items() if config.get(key)]


class RecordedShots(ContextSampler):  # type: ignore[misc]  # lm-eval carries no types
    """lm-eval's sampler, keeping the last draw."""

    drawn: Sequence[Document] = ()

    def sample(self, n: int, *args: Any, **options: Any) -> Sequence[Document]:  # noqa: ANN401  (lm-eval's signature)
        """Draw ``n`` shots."""
        self.drawn = super().sample(n, *args, **options)
        return self.drawn


class StockTask(RecordedTask):
    """A task of lm-eval's own over these rows, with `PaperTask`'s methods for the harness."""

    def __init__(self, task: str, rows: TaskRows) -> None:
        self.rows = rows
        config = stock_config(task, rows.variant)
        for split, key in SPLIT_KEYS.items():  # of a folder we have the split to score and at most one more
            config[key] = split if split in {rows.split, rows.pool} else None
        config["metric_list"] = list(map(complete_metric, config["metric_list"]))
        config |= {"task": task, "metadata": {**config.get("metadata", {}), "style": LM_EVAL}}
        self._build(config)

    def _build(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.sampler = RecordedShots(list(self.fewshot_docs()), rnd=SEED)
        self._all_documents = self._scored = super().eval_docs

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: object) -> None:
        """Take the rows as the data set."""
        del dataset_kwargs
        splits = {self.rows.pool: self.rows.shots, self.rows.split: self.rows.scored}
        self.dataset = {split: Dataset.from_list(documents) for split, documents in splits.items()}

    @property
    def eval_docs(self) -> Dataset:
        """Documents to score."""
        return self._scored if hasattr(self, "_scored") else super().eval_docs

    def take(self, limit: int | None) -> None:
        """Score a random sample of ``limit`` rows, or all rows for None."""
        self._scored = self._all_documents.select(sample_rows(self.rows.scored, limit))

    def set_shots(self, count: int, choice: ShotChoice = ANY_SHOT, seed: int = SEED) -> None:
        """Put ``count`` shots drawn with ``seed`` into every prompt; as many as there are, if there are fewer."""
        del choice  # of HANS
        self.set_config("num_fewshot", min(count, len(self.rows.shots) - (self.rows.pool == self.rows.split)))
        self.set_fewshot_seed(seed)

    def count_requests(self) -> int:
        """Number of loglikelihood requests for the documents to score."""
        choices = self.config.doc_to_choice is not None
        return sum(len(self.doc_to_choice(doc)) if choices else 1 for doc in self.eval_docs)

    def requests_of(self, doc: Document, ctx: str | list[str], **options: Any) -> list[Instance]:  # noqa: ANN401
        """lm-eval's requests, the fit of their prompt recorded."""
        requests = super().requests_of(doc, ctx, **options)
        pairs = [request.args for request in requests]
        self.prompt_fits.append(self._fit(max(pairs, key=lambda pair: len(pair[0]) + len(pair[1]))))
        return requests

    def _fit(self, pair: tuple[str, str]) -> PromptFit:
        """Shots that are whole in the longest prompt of a document, and whether it loses its beginning."""
        context, continuation = self.lm._encode_pair(*pair)  # noqa: SLF001  (TemplateLM's own method)
        room, asked = self.lm.max_length + 1 - len(continuation), self.config.num_fewshot
        if len(context) <= room:
            return PromptFit(len(self.sampler.drawn) if asked else 0, truncated=False)
        starts, end = [], 0
        for shot in self.sampler.drawn if asked else ():
            question = self.doc_to_text(shot)
            text = self.doc_to_choice(shot)[question] if isinstance(question, int) else question
            starts.append(pair[0].index(text, end))
            end = starts[-1] + len(text)

        def tokens(shots: int) -> int:
            return (
                len(self.lm.tok_encode(pair[0][starts[len(starts) - shots] :], add_special_tokens=False))
                if shots
                else 0
            )

        return PromptFit(max_shots_that_fit(len(starts), tokens, room), truncated=True)

    def scores(self, doc: Document, results: Sequence[tuple[float, bool]]) -> list[float]:
        """Log P of each choice, as ``acc`` compares them."""
        del doc
        return [logp for logp, _ in results]
