"""lm-eval's ConfigurableTask with the paper's few-shot examples and scores.

lm-eval renders the prompts in tasks/*.yaml. This class adds what YAML cannot express (paper.md 5.2):

    shots      drawn for each document (shots.py); shots that do not fit the context are dropped whole
    token      score of a choice = log P(choice | context) / tokens of the choice
    ratio      score of a choice = log P(choice | context) - log P(choice | "Answer:")       RACE, `unconditional`
    greedy     correct if greedy decoding gives the target                                   LAMBADA, loglikelihood

Each YAML lists, under ``styles``, how GPT-3's prompts differ from the paper's.

`paper_task` reads the rows; `with_shots` returns a task with shots in its prompts, for ``lm_eval.evaluate``.
"""

from __future__ import annotations

import ast
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.task import ConfigurableTask

from .sandbox import PROMPTS
from .shots import ANY_SHOT, DrawnShots, ShotPool, max_shots_that_fit
from .sources import open_rows, task_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lm_eval.api.instance import Instance

    from mtnlg_eval.scoring.decoder_lm import DecoderLM

    from .rows import Document
    from .shots import ShotChoice
    from .sources import TaskRows

SEED = 1234
"""Seed of the shots, the same as the training run's (paper.md 2)."""

PAPER = "paper"


class DocumentList(list["Document"]):
    """A split as ConfigurableTask reads it: a list of documents with the same keys."""

    @property
    def features(self) -> Mapping[str, Any]:
        """Keys of a document."""
        return self[0]


class PaperTask(ConfigurableTask):  # type: ignore[misc]  # lm-eval carries no types
    """A task with the paper's shots and scores. The YAML's ``metadata`` may hold:

    ``with_shots``, the prompt with one or more shots; ``unconditional``, the context of the ratio's denominator;
    ``styles``, overrides of the config and of its metadata by style.

    ``sampler.drawn`` are the shots in the prompt that was built last.
    """

    lm: DecoderLM

    def __init__(self, config: dict[str, Any], rows: TaskRows) -> None:
        self.rows, self._scored = rows, DocumentList(rows.scored)
        self._rendered: dict[tuple[int, str], Any] = {}
        self.choice_tokens: dict[str, list[int]] = {}
        self.template = config["doc_to_text"]
        super().__init__(config=config)
        self._pool = ShotPool(self.rows.shots)
        self.unconditional: str | None = self.config.metadata.get("unconditional")

    def download(self, *_: object, **__: object) -> None:
        """Do nothing: the rows are already read."""

    @property
    def eval_docs(self) -> DocumentList:
        """Documents to score."""
        return self._scored

    def fewshot_docs(self) -> Sequence[Document]:
        """Documents to draw shots from."""
        return self.rows.shots

    def with_shots(self, lm: DecoderLM, count: int, choice: ShotChoice = ANY_SHOT, seed: int = SEED) -> PaperTask:
        """A copy with ``count`` shots that ``choice`` admits, drawn with ``seed``, in its prompts for ``lm``."""
        task = copy(self)
        task.lm, task.sampler, task.choice_tokens = lm, DrawnShots(), {}
        task.draw = partial(self._pool.draw, count=count, key=f"{seed}/{self.config.task}", choice=choice)
        task._config = copy(self.config)  # noqa: SLF001  (Task's own)
        task.set_config("num_fewshot", count)
        if count:
            task.template = self.config.metadata.get("with_shots", self.template)
            task.set_config("doc_to_text", task.template)
        return task

    def fewshot_context(self, doc: Document, num_fewshot: int, **options: Any) -> str | list[str]:  # noqa: ANN401
        """lm-eval's context, with as many drawn shots as fit the model's context beside the longest continuation."""
        render = super().fewshot_context
        contexts: dict[int, str | list[str]] = {0: render(doc, 0, **options)}
        continuation = max(self._continuation_tokens(self.construct_requests(doc, contexts[0])))
        room = self.lm.max_length + 1 - continuation  # the last token is predicted, never read
        self.sampler.drawn = self.draw(doc) if num_fewshot else ()

        def prompt_tokens(shots: int) -> int:
            if shots not in contexts:
                contexts[shots] = render(doc, shots, **options)
            context = contexts[shots]
            texts = context if isinstance(context, list) else [context]
            return max(len(self.lm.tok_encode(text)) for text in texts)

        shots = max_shots_that_fit(len(self.sampler.drawn), prompt_tokens, room)
        self.sampler.drawn = self.sampler.drawn[:shots]
        return contexts[shots] if shots in contexts else render(doc, shots, **options)

    def construct_requests(self, doc: Document, ctx: str | list[str], **options: Any) -> list[Instance]:  # noqa: ANN401
        """lm-eval's requests, always a list; for the ratio also one per choice with the unconditional context."""
        built = super().construct_requests(doc, ctx, **options)
        requests: list[Instance] = built if isinstance(built, list) else [built]
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
        self.choice_tokens[doc["id"]] = self._continuation_tokens(requests)
        return requests

    @property
    def label_tokens(self) -> list[int]:
        """Number of tokens of each label word, once a prompt is built; [] if each row has its own choices."""
        same = isinstance(self.config.doc_to_choice, list)
        return next(iter(self.choice_tokens.values()), []) if same else []

    def scores(self, doc: Document, results: Sequence[tuple[float, bool]]) -> list[float]:
        """Score of each choice, of which the highest is the answer; for LAMBADA the log-likelihood of the word."""
        logps = np.array([logp for logp, _ in results])
        if self.unconditional:
            conditional, unconditional = np.split(logps, 2)
            logps = conditional - unconditional
        elif self.OUTPUT_TYPE != "loglikelihood":
            logps /= np.array(self.choice_tokens[doc["id"]])
        return list(logps.tolist())

    def process_results(self, doc: Document, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        """Accuracy of one document: 1 if the answer is correct, else 0."""
        if self.OUTPUT_TYPE == "loglikelihood":
            return {"acc": float(results[0][1])}
        return {"acc": float(int(np.argmax(self.scores(doc, results))) == doc["label"])}

    def doc_to_text(self, doc: Document, doc_to_text: object = None) -> str | int:
        """lm-eval's prompt. Each template is compiled once, and each text rendered once: a shot is in many prompts."""
        del doc_to_text  # the shots' template, which is the same
        text: str | int = self._render(doc, self.template)
        return text

    def doc_to_choice(self, doc: Document, doc_to_choice: object = None) -> list[str]:
        """lm-eval's choices."""
        del doc_to_choice
        choices: list[str] = self._render(doc, self.config.doc_to_choice)
        return choices

    def _render(self, doc: Document, field: str | list[str]) -> Any:  # noqa: ANN401
        if isinstance(field, list) or field in doc:
            return field if isinstance(field, list) else doc[field]
        key = (id(doc), field)  # documents live as long as the task
        if key not in self._rendered:
            text = PROMPTS.from_string(field).render(**doc)
            self._rendered[key] = ast.literal_eval(text) if field.startswith("{{[") else text
        return self._rendered[key]

    def _continuation_tokens(self, requests: Sequence[Instance]) -> list[int]:
        """Tokens of each request's continuation, split from the context as lm-eval splits it."""
        pairs = (request.arguments for request in requests)
        return [len(self.lm._encode_pair(*pair)[1]) for pair in pairs]  # noqa: SLF001  (as lm-eval splits)


def paper_task(name: str, data: Path | None = None, style: str = PAPER, revision: str | None = None) -> PaperTask:
    """One of the nine tasks in a style, over the rows of a folder or of the hub.

    Raises ``Failure`` if the rows cannot be scored.
    """
    config = task_config(name)
    metadata = config["metadata"] | {"style": style}
    changes = metadata.pop("styles", {}).get(style, {})
    metadata |= changes.get("metadata", {})
    return PaperTask(config | changes | {"metadata": metadata}, open_rows(name, data, revision).rows())
