"""What is scored: tasks with their rows, and cells, each a task at one number of shots with one seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtnlg_eval.tasks.paper_task import PAPER, PaperTask
from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_eval.tasks.shots import ANY_SHOT, sample_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from lm_eval.api.task import Task

    from mtnlg_eval.tasks.shots import ShotChoice


OF_LM_EVAL = "lm_eval:"
"""Before the name of a task that is lm-eval's, though the nine have one of that name."""


@dataclass(frozen=True)
class TaskOptions:
    """What decides rows and prompts, beside the tasks' names and shots.

    ``limit`` samples rows at random, or takes the ``first``; ``rows`` are numbers of rows by task. ``choice`` selects
    the shots (HANS only), ``style`` the nine tasks' prompts and scores, ``trust_task_code`` admits code that tasks
    bring. The others are as in lm-eval.
    """

    data: Path | None = None
    limit: float | None = None
    first: bool = False
    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)
    style: str = PAPER
    choice: ShotChoice = ANY_SHOT
    revisions: Mapping[str, str] = field(default_factory=dict)
    include_path: Path | None = None
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    apply_chat_template: bool | str = False
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = True
    unsafe_code: bool = False
    trust_task_code: bool = False


class RowNumbers(list[int]):
    """Numbers of rows, which lm-eval looks for once per row."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(numbers)
        self._numbers = set(numbers)

    def __contains__(self, number: object) -> bool:
        """Whether the row is among them."""
        return number in self._numbers


@dataclass
class Identity:
    """A row by its content: ``cluster`` is what it has in common with rows that are not independent of it."""

    id: str
    digest: str
    cluster: str

    @classmethod
    def of(cls, document: Mapping[str, Any], number: int) -> Identity:
        """The identity of a document; ``number`` is its name if it has no other."""
        if not (digest := document.get("digest")):
            text = json.dumps(document, sort_keys=True, ensure_ascii=False, default=str)
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return cls(
            str(document.get("id", number)),
            str(digest),
            str(document.get("template") or document.get("group") or f"{digest}#{number}"),
        )


class Source:
    """A task whose rows have been read."""

    def __init__(self, name: str, task: Task, style: str, options: TaskOptions, groups: Sequence[str] = ()) -> None:
        self.name, self.task, self.style, self.groups = name, task, style, list(groups)
        self.rows = [Identity.of(document, number) for number, document in enumerate(task.eval_docs)]
        limit = options.limit
        if limit is not None and limit < 1:
            limit = -(-len(self.rows) * limit // 1)
        count = None if limit is None else int(limit)
        self.numbers = list(options.rows.get(name, ())) or (
            list(range(len(self.rows)))[:count] if options.first else sample_rows([row.id for row in self.rows], count)
        )
        published, config = TASKS_BY_NAME.get(name), task.config
        own = isinstance(task, PaperTask) or hasattr(task, "rows")
        self.few = published.few if published and own else int(config.num_fewshot or 0)
        self.split = task.rows.split if own else str(config.test_split or config.validation_split)
        self.pool = (
            task.rows.pool
            if own
            else str(config.fewshot_split or config.training_split or config.validation_split or config.test_split)
        )
        self.pool_rows = len(task.rows.shots) if own else len(getattr(getattr(task, "sampler", None), "df", ()))
        self.variant: str | None = task.rows.variant if own else None
        self.revision: str | None = task.rows.revision if own else None
        self.source = str(options.data or "hub") if own else str(config.dataset_path)
        self.malformed: dict[int, str] = task.rows.malformed if own else {}
        self.notes = list(self._notes()) if own else []

    def _notes(self) -> Iterator[str]:
        rows = self.task.rows
        yield from (f"row {number} is left out: {why}" for number, why in rows.malformed.items())
        if rows.other_files:
            yield f"not read, because of another set: {', '.join(rows.other_files)}"
        if rows.left_out:
            yield f"{len(rows.left_out)} malformed rows give no shots, the first {rows.left_out[0]}"
        if rows.pool == rows.split:
            yield f"no {'' if rows.variant is None else rows.variant + ' '}rows but the scored ones give shots"


@dataclass
class Cell:
    """A task at one number of shots with one seed, and why rows of it are left out."""

    source: Source
    asked: str
    count: int
    seed: int
    task: Task = None
    numbers: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name for lm-eval."""
        return f"{self.source.name} {self.asked} {self.seed}"
