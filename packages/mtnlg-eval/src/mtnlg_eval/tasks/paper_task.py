"""One of the nine tasks in lm-eval: its own ConfigurableTask, with the paper's shots and the paper's scores.

The prompts are in tasks/*.yaml and lm-eval renders them. What YAML cannot say is here (paper.md 5.2):

    shots      drawn for each document (shots.py); those that do not fit the context are dropped whole
    token      score of a choice = log P(choice | context) / tokens of the choice
    sum        score of a choice = log P(choice | context)                                   style lm_eval
    ratio      score of a choice = log P(choice | context) - log P(choice | "Answer:")       RACE, `unconditional`
    greedy     right where greedy decoding gives the target                                  LAMBADA, loglikelihood

Two other styles stand beside the paper's in each YAML, under ``styles``: GPT-3's prompts, and stock lm-eval's with its
scores. Each says only what it has otherwise.

A task is built once for its rows, told how many shots to show (``ask``) and which model will answer (``bind``, for its
tokens and its context), and goes to ``lm_eval.evaluate``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.task import ConfigurableTask

from mtnlg_model.console import Failure

from .shots import ANY, DrawnShots, Pool, most_that_fit
from .sources import TaskRows, hub_rows, read_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM

    from .rows import Document
    from .shots import Choice

SEED = 1234
"""Seed of the shots, as the training run's (paper.md 2)."""


PAPER = "paper"
STYLES = (PAPER, "gpt3", "lm_eval")
"""Whose prompts and scores: MT-NLG's, GPT-3's (its appendix G), stock lm-eval's (peers' tables are mostly these)."""

SCORING = ("with_shots", "unconditional", "score", "questions")
"""What a style keeps in the metadata."""


class Documents(list["Document"]):
    """A split as ConfigurableTask reads it: a list whose documents have the same keys."""

    @property
    def features(self) -> Mapping[str, Any]:
        """The keys of a document."""
        return self[0]


@dataclass
class Shown:
    """What the prompt of one document came to: shots that fit, and whether even without any it is too long."""

    shots: int
    truncated: bool


class PaperTask(ConfigurableTask):  # type: ignore[misc]  # lm-eval carries no types
    """A task with the paper's shots and scores. ``metadata`` of its YAML holds:

    ``with_shots``, the prompt from one shot on where that is another one; ``unconditional``, the context of the ratio's
    denominator; ``score``, sum where it is not by the token; ``questions``, last where RACE's others are not scored;
    ``styles``, what other styles have in place of all this and of the prompts; and, put there by whoever loads the
    task, ``style`` and ``rows_from``, the folder of the rows (absent: the hub).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        config.pop("class", None)
        config = _styled(config)
        self.shown: list[Shown] = []
        self._rendered: dict[tuple[int, str], Any] = {}
        self._tokens: dict[str, list[int]] = {}
        self._lm: TemplateLM | None = None
        self._choice = ANY
        super().__init__(config=config)
        self._plain = self.config.doc_to_text
        self._pool = Pool(self.rows.shots)
        self.sampler = DrawnShots()
        self.unconditional: str | None = self.config.metadata.get("unconditional")

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **_: object) -> None:
        """Read the rows, of the folder or of the hub; ``Failure`` names what is wrong with them."""
        folder = self.config.metadata.get("rows_from")
        del dataset_kwargs  # the hub's, which hub_rows takes from the config
        task = self.config.task
        self.rows: TaskRows = read_task(Path(folder), task) if folder else hub_rows(self.config.to_dict())
        if self.config.metadata.get("questions") == "last":
            self.rows = replace(self.rows, scored=_last(self.rows.scored), shots=_last(self.rows.shots))
        self._scored = Documents(self.rows.scored)

    @property
    def eval_docs(self) -> Documents:
        """The documents to score."""
        return self._scored

    def fewshot_docs(self) -> list[Document]:
        """The pool of shots."""
        return self.rows.shots

    def ask(self, shots: int, choice: Choice = ANY) -> None:
        """Show this many shots from now on, of those that ``choice`` admits."""
        self._choice = choice
        self.set_config("num_fewshot", shots)
        prompt = self.config.metadata.get("with_shots", self._plain) if shots else self._plain
        self.config.doc_to_text = self.fewshot_cfg.doc_to_text = prompt

    def bind(self, lm: TemplateLM) -> None:
        """Count tokens as ``lm`` does and keep to its ``max_length``."""
        self._lm = lm

    def requests(self, limit: int | None = None) -> int:
        """How many loglikelihoods the first ``limit`` documents ask for."""
        if self.OUTPUT_TYPE == "loglikelihood":
            return len(self._scored[:limit])
        return sum(map(len, map(self.doc_to_choice, self._scored[:limit]))) * (2 if self.unconditional else 1)

    def build_all_requests(self, **options: Any) -> None:  # noqa: ANN401  (lm-eval's signature)
        """Render every prompt; ``shown`` tells of each document what fitted."""
        self.shown, self._tokens = [], {}
        super().build_all_requests(**options)

    def fewshot_context(self, doc: Document, num_fewshot: int, **options: Any) -> str | list[str]:  # noqa: ANN401
        """lm-eval's context with as many of the drawn shots as fit the model's context beside the longest choice."""
        self.sampler.drawn = self._pool.draw(doc, num_fewshot, f"{SEED}/{self.config.task}", self._choice)
        render = super().fewshot_context
        bare = render(doc, num_fewshot=0, **options)
        answer = max(self._sizes(self.construct_requests(doc, bare)))
        room = self._model.max_length + 1 - answer  # the last token is predicted, never read
        if room < 1:
            raise Failure(f"{self.config.task} {doc['id']}: {answer} tokens to score are more than the context holds")

        def size(shots: int) -> int:
            context = render(doc, num_fewshot=shots, **options)
            return max(len(self._model.tok_encode(text)) for text in _texts(context))

        shots = most_that_fit(len(self.sampler.drawn), size, room)
        self.shown.append(Shown(shots, truncated=not shots and size(0) > room))
        context: str | list[str] = render(doc, num_fewshot=shots, **options)
        return context

    def construct_requests(self, doc: Document, ctx: str | list[str], **options: Any) -> list[Instance]:  # noqa: ANN401
        """lm-eval's requests, and for the ratio those of the choices behind the unconditional context."""
        built = super().construct_requests(doc, ctx, **options)
        requests: list[Instance] = built if isinstance(built, list) else [built]
        if self.unconditional:
            alone = [(self.unconditional, request.arguments[1]) for request in requests]
            first = len(requests)
            requests += [
                replace(requests[n], arguments=pair, idx=first + n, resps=[], filtered_resps={})
                for n, pair in enumerate(alone)
            ]
        self._tokens[doc["id"]] = self._sizes(requests)
        return requests

    def scores(self, doc: Document, results: Sequence[tuple[float, bool]]) -> list[float]:
        """The score of every choice, the highest being the answer; for LAMBADA the loglikelihood of the word."""
        loglikelihoods = np.array([loglikelihood for loglikelihood, _ in results])
        if self.OUTPUT_TYPE == "loglikelihood":
            return list(loglikelihoods.tolist())
        if self.unconditional:
            given, alone = np.split(loglikelihoods, 2)
            return list((given - alone).tolist())
        if self.config.metadata.get("score") == "sum":
            return list(loglikelihoods.tolist())
        return list((loglikelihoods / np.array(self._tokens[doc["id"]])).tolist())

    def process_results(self, doc: Document, results: Sequence[tuple[float, bool]]) -> dict[str, float]:
        """1 where the answer is right, else 0."""
        if self.OUTPUT_TYPE == "loglikelihood":
            return {"acc": float(results[0][1])}
        return {"acc": float(int(np.argmax(self.scores(doc, results))) == doc["label"])}

    def doc_to_text(self, doc: Document, doc_to_text: object = None) -> str | int:
        """lm-eval's, kept: it compiles its template at every call, and a shot stands in many prompts."""
        del doc_to_text  # the shots' own, which `ask` keeps equal
        render = super().doc_to_text
        text: str | int = self._once(doc, str(self.config.doc_to_text), render)
        return text

    def doc_to_choice(self, doc: Document, doc_to_choice: object = None) -> list[str]:
        """lm-eval's, kept as the text is."""
        del doc_to_choice
        choices: list[str] = self._once(doc, "choice", super().doc_to_choice)
        return choices

    def _once(self, doc: Document, what: str, render: Callable[[Document], Any]) -> Any:  # noqa: ANN401
        key = (id(doc), what)  # documents live as long as the task
        if key not in self._rendered:
            self._rendered[key] = render(doc)
        return self._rendered[key]

    @property
    def _model(self) -> TemplateLM:
        if self._lm is None:
            raise RuntimeError(f"{self.config.task}: bind(lm) first; shots and scores are counted in its tokens")
        return self._lm

    def _sizes(self, requests: Sequence[Instance]) -> list[int]:
        """Tokens of each request's continuation, cut off as lm-eval cuts it."""
        pairs = (request.arguments for request in requests)
        return [len(self._model._encode_pair(*pair)[1]) for pair in pairs]  # noqa: SLF001  (TemplateLM's own door)


def _styled(config: dict[str, Any]) -> dict[str, Any]:
    """The config with what the wanted style has otherwise in its place."""
    metadata = dict(config["metadata"])
    other = metadata.pop("styles", {}).get(metadata.get("style", PAPER), {})
    metadata |= {key: value for key, value in other.items() if key in SCORING}
    return config | {key: value for key, value in other.items() if key not in SCORING} | {"metadata": metadata}


def _last(documents: Sequence[Document]) -> list[Document]:
    """The last document of each group, which has its earlier ones in its prompt."""
    return list({document["group"]: document for document in documents}.values())


def _texts(context: str | list[str]) -> list[str]:
    return context if isinstance(context, list) else [context]
