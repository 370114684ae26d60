"""A task that records what its prompts were built with, and can take the record up again when the scores are there.

lm-eval builds a task's requests, waits for their scores and computes the metrics, all in one call. Here a task is built
first, its requests handed over document by document, and other tasks may be built before its scores come: `resume`
takes a record up, after which lm-eval's own call finds the requests built.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lm_eval.api.task import ConfigurableTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM

    from .rows import Document


@dataclass
class PromptFit:
    """Shots in a document's prompt, and whether the prompt is too long even without shots."""

    shots: int
    truncated: bool


@dataclass
class Record:
    """The requests of all documents, how their prompts fit, and the tokens of each document's choices by its id."""

    instances: list[Instance] = field(default_factory=list)
    prompt_fits: list[PromptFit] = field(default_factory=list)
    choice_tokens: dict[str, list[int]] = field(default_factory=dict)


class RecordedTask(ConfigurableTask):  # type: ignore[misc]  # lm-eval carries no types
    """ConfigurableTask with a `Record` of the last build. ``on_built`` is called with each document's requests."""

    lm: TemplateLM
    on_built: Callable[[list[Instance]], None] | None = None
    _resumed = False

    def __init__(self, config: dict[str, Any]) -> None:
        self.record = Record()
        super().__init__(config=config)

    @property
    def prompt_fits(self) -> list[PromptFit]:
        """How each document's prompt fits, in order."""
        return self.record.prompt_fits

    def build_all_requests(self, **options: Any) -> None:  # noqa: ANN401  (lm-eval's signature)
        """Render every prompt; once after `resume` do nothing."""
        if self._resumed:
            self._resumed = False
            return
        self.record = Record()
        super().build_all_requests(**options)
        self.record.instances = self._instances

    def construct_requests(self, doc: Document, ctx: str | list[str], **options: Any) -> list[Instance]:  # noqa: ANN401
        """The requests of a document, always a list; handed over if lm-eval asks for them."""
        requests = self.requests_of(doc, ctx, **options)
        if self.on_built is not None and "metadata" in options:
            self.on_built(requests)
        return requests

    def requests_of(self, doc: Document, ctx: str | list[str], **options: Any) -> list[Instance]:  # noqa: ANN401
        """lm-eval's requests of a document."""
        built: list[Instance] | Instance = super().construct_requests(doc, ctx, **options)
        return built if isinstance(built, list) else [built]

    def resume(self, record: Record) -> None:
        """Take up a record: the next build finds its requests. Set the same shots before."""
        self.record, self._instances, self._resumed = record, record.instances, True
