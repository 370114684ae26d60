"""What is scored: tasks with their rows, and cells, each a task at one number of shots with one seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mtnlg_eval.tasks.lm_eval_tasks import lm_eval_rows
from mtnlg_eval.tasks.paper_task import PAPER
from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_eval.tasks.shots import ANY_SHOT, sample_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from lm_eval.api.task import Task

    from mtnlg_eval.tasks.shots import ShotChoice
    from mtnlg_eval.tasks.sources import TaskRows


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
    """A task whose rows have been read; ``numbers`` are those to score."""

    def __init__(self, name: str, task: Task, style: str, options: TaskOptions, groups: Sequence[str] = ()) -> None:
        self.name, self.task, self.style, self.groups = name, task, style, list(groups)
        own, config, limit = hasattr(task, "rows"), task.config, options.limit
        self.rows: TaskRows = task.rows if own else lm_eval_rows(task)
        self.origin = str(options.data or "hub") if own else str(config.dataset_path)
        self.few = TASKS_BY_NAME[name].few if own and name in TASKS_BY_NAME else int(config.num_fewshot or 0)
        self.identities = [Identity.of(document, number) for number, document in enumerate(task.eval_docs)]
        if limit is not None:
            limit = int(limit if limit >= 1 else -(-len(self.identities) * limit // 1))
        self.numbers = list(options.rows.get(name, ())) or (
            list(range(len(self.identities)))[:limit]
            if options.first
            else sample_rows([row.id for row in self.identities], limit)
        )


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
