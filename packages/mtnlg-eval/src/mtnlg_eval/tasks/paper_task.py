"""lm-eval's ConfigurableTask with the paper's few-shot examples and scores.

lm-eval renders the prompts in tasks/*.yaml. This class adds what YAML cannot express (paper.md 5.2):

    shots      drawn for each document (shots.py); shots that do not fit the context are dropped whole
    token      score of a choice = log P(choice | context) / tokens of the choice
    sum        score of a choice = log P(choice | context)                                   style lm_eval
    ratio      score of a choice = log P(choice | context) - log P(choice | "Answer:")       RACE, `unconditional`
    greedy     correct if greedy decoding gives the target                                   LAMBADA, loglikelihood

Each YAML lists, under ``styles``, how GPT-3's prompts differ from the paper's; stock lm-eval's are stock_task.py's.

Building a task reads its rows. Set ``lm``, the model with the tokenizer and context length to fit prompts to, and call
``set_shots``; then pass the task to ``lm_eval.evaluate``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.utils import env

from mtnlg_model.console import Failure

from .recorded_task import PromptFit, RecordedTask
from .shots import ANY_SHOT, DrawnShots, ShotPool, max_shots_that_fit, sample_rows
from .sources import load_hub_task, read_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lm_eval.api.instance import Instance

    from .rows import Document
    from .shots import ShotChoice
    from .sources import TaskRows

env.from_string = lru_cache(maxsize=256)(env.from_string)  # lm-eval compiles a template anew for every document

SEED = 1234
"""Seed of the shots, the same as the training run's (paper.md 2)."""

PAPER = "paper"

METADATA_KEYS = ("with_shots", "unconditional", "score")
"""Keys of a style that belong into the task's metadata, not its config."""


class DocumentList(list["Document"]):
    """A split as ConfigurableTask reads it: a list of documents with the same keys."""

    @property
    def features(self) -> Mapping[str, Any]:
        """Keys of a document."""
        return self[0]


class PaperTask(RecordedTask):
    """A task with the paper's shots and scores. The YAML's ``metadata`` may hold:

    ``with_shots``, the prompt from one shot on; ``unconditional``, the context of the ratio's denominator;
    ``score: sum`` instead of per token; ``styles``, overrides of these keys and of the config by style. The loader adds
    ``style`` and ``rows_from``, the folder of the rows (absent: the hub), or ``revision``, the hub's (absent: newest).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        config.pop("class", None)
        config = _apply_style(config)
        self._rendered: dict[tuple[int, str], Any] = {}
        self._shot_choice, self._seed = ANY_SHOT, SEED
        super().__init__(config=config)
        self._zero_shot_prompt = self.config.doc_to_text
        self._pool = ShotPool(self.rows.shots)
        self.sampler = DrawnShots()
        self.unconditional: str | None = self.config.metadata.get("unconditional")

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: object) -> None:
        """Read the rows from the folder or the hub; ``Failure`` if they cannot be scored."""
        del dataset_kwargs  # load_hub_task takes them from the config
        folder = self.config.metadata.get("rows_from")
        self.rows: TaskRows = (
            read_task(Path(folder), self.config.task) if folder else load_hub_task(self.config.to_dict())
        )
        self._scored = DocumentList(self.rows.scored)

    def take(self, limit: int | None) -> None:
        """Score a random sample of ``limit`` rows, or all rows for None; shots still come from the whole pool."""
        self._scored = DocumentList(self.rows.scored[n] for n in sample_rows(self.rows.scored, limit))

    @property
    def eval_docs(self) -> DocumentList:
        """Documents to score."""
        return self._scored

    def fewshot_docs(self) -> list[Document]:
        """Documents to draw shots from."""
        return self.rows.shots

    def set_shots(self, count: int, choice: ShotChoice = ANY_SHOT, seed: int = SEED) -> None:
        """Put ``count`` shots that ``choice`` admits, drawn with ``seed``, into every prompt from now on."""
        self._shot_choice, self._seed = choice, seed
        self.set_config("num_fewshot", count)
        prompt = self.config.metadata.get("with_shots", self._zero_shot_prompt) if count else self._zero_shot_prompt
        self.config.doc_to_text = self.fewshot_cfg.doc_to_text = prompt

    def count_requests(self) -> int:
        """Number of loglikelihood requests for the documents to score."""
        if self.OUTPUT_TYPE == "loglikelihood":
            return len(self._scored)
        return sum(map(len, map(self.doc_to_choice, self._scored))) * (2 if self.unconditional else 1)

    def fewshot_context(self, doc: Document, num_fewshot: int, **options: Any) -> str | list[str]:  # noqa: ANN401
        """lm-eval's context with as many drawn shots as fit into the model's context with the longest continuation."""
        render = super().fewshot_context
        contexts: dict[int, str | list[str]] = {0: render(doc, 0, **options)}
        continuation = max(self._continuation_tokens(self.requests_of(doc, contexts[0])))
        room = self.lm.max_length + 1 - continuation  # the last token is predicted, never read
        if room < 1:
            raise Failure(
                f"{self.config.task} {doc['id']}: {continuation} tokens to score do not fit the model's context"
            )
        self.sampler.drawn = self._pool.draw(doc, num_fewshot, f"{self._seed}/{self.config.task}", self._shot_choice)

        def prompt_tokens(shots: int) -> int:
            if shots not in contexts:
                contexts[shots] = render(doc, shots, **options)
            context = contexts[shots]
            texts = context if isinstance(context, list) else [context]
            return max(len(self.lm.tok_encode(text)) for text in texts)

        shots = max_shots_that_fit(len(self.sampler.drawn), prompt_tokens, room)
        self.prompt_fits.append(PromptFit(shots, truncated=not shots and prompt_tokens(0) > room))
        return contexts[shots] if shots in contexts else render(doc, shots, **options)

    def requests_of(self, doc: Document, ctx: str | list[str], **options: Any) -> list[Instance]:  # noqa: ANN401
        """lm-eval's requests; for the ratio also one per choice with the unconditional context."""
        requests = super().requests_of(doc, ctx, **options)
        if self.unconditional:
            requests += [
                replace(
                    request,
                    arguments=(self.unconditional, request.arguments[1]),
                    idx=len(requests) + n,
                    resps=[],
                    filtered_resps={},
                )
                for n, request in enumerate(requests)
            ]
        self.record.choice_tokens[doc["id"]] = self._continuation_tokens(requests)
        return requests

    def scores(self, doc: Document, results: Sequence[tuple[float, bool]]) -> list[float]:
        """Score of each choice, the highest being the answer; for LAMBADA the loglikelihood of the word."""
        logps = np.array([logp for logp, _ in results])
        if self.unconditional:
            conditional, unconditional = np.split(logps, 2)
            logps = conditional - unconditional
        elif self.OUTPUT_TYPE != "loglikelihood" and self.config.metadata.get("score") != "sum":
            logps /= np.array(self.record.choice_tokens[doc["id"]])
        return list(logps.tolist())

    def process_results(self, doc: Document, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        """Accuracy of one document: 1 if the answer is correct, else 0."""
        if self.OUTPUT_TYPE == "loglikelihood":
            return {"acc": float(results[0][1])}
        return {"acc": float(int(np.argmax(self.scores(doc, results))) == doc["label"])}

    def doc_to_text(self, doc: Document, doc_to_text: object = None) -> str | int:
        """lm-eval's prompt, cached: lm-eval compiles the template at each call, and a shot is in many prompts."""
        del doc_to_text  # the shots' template, which set_shots keeps equal
        text: str | int = self._cached(doc, str(self.config.doc_to_text), super().doc_to_text)
        return text

    def doc_to_choice(self, doc: Document, doc_to_choice: object = None) -> list[str]:
        """lm-eval's choices, cached like the prompt."""
        del doc_to_choice
        choices: list[str] = self._cached(doc, "choice", super().doc_to_choice)
        return choices

    def _cached(self, doc: Document, template: str, render: Callable[[Document], Any]) -> Any:  # noqa: ANN401
        key = (id(doc), template)  # documents live as long as the task
        if key not in self._rendered:
            self._rendered[key] = render(doc)
        return self._rendered[key]

    def _continuation_tokens(self, requests: Sequence[Instance]) -> list[int]:
        """Tokens of each request's continuation, split from the context as lm-eval splits it."""
        pairs = (request.arguments for request in requests)
        return [len(self.lm._encode_pair(*pair)[1]) for pair in pairs]  # noqa: SLF001  (TemplateLM's own method)


def _apply_style(config: dict[str, Any]) -> dict[str, Any]:
    """The config with the overrides of the chosen style."""
    metadata = dict(config["metadata"])
    style = metadata.pop("styles", {}).get(metadata.get("style", PAPER), {})
    metadata |= {key: value for key, value in style.items() if key in METADATA_KEYS}
    return config | {key: value for key, value in style.items() if key not in METADATA_KEYS} | {"metadata": metadata}
