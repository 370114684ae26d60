"""What is scored: tasks with their rows, and cells, each a task at one number of shots with one seed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from itertools import count, cycle
from typing import TYPE_CHECKING, Any, TypeVar

from mtnlg_eval.tasks.lm_eval_tasks import lm_eval_rows
from mtnlg_eval.tasks.paper_task import PAPER
from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_eval.tasks.shots import ANY_SHOT, sample_rows
from mtnlg_model.console import Failure

from .measures import gold_of, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from lm_eval.api.task import Task

    from mtnlg_eval.tasks.rows import Document
    from mtnlg_eval.tasks.shots import ShotChoice
    from mtnlg_eval.tasks.sources import TaskRows


T = TypeVar("T")
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
    """A task at one number of shots with one seed, why rows of it are left out, and the shots of the others."""

    source: Source
    asked: str
    count: int
    seed: int
    numbers: list[int]
    failed: dict[int, str] = field(default_factory=dict)
    drawn: dict[int, Sequence[Document]] = field(default_factory=dict)
    task: Task = None

    @property
    def key(self) -> str:
        """Its name for lm-eval."""
        return f"{self.source.name} {self.asked} {self.seed}"

    @property
    def why_none(self) -> str:
        """Why no row is left; "" if that is not because of rows."""
        number, why = next(iter(self.failed.items()), (0, ""))
        return why and f"no row of {len(self.failed)} can be scored; row {number}: {why}"

    def fail(self, position: int, error: Exception) -> None:
        """Leave out the row at this position among those of its requests."""
        self.failed[self.numbers[position]] = reason_of(error)

    def attempt(self, position: int, instead: T, function: Callable[..., T], *args: Any, **options: Any) -> T:  # noqa: ANN401
        """What a function of the task's makes of this row; ``instead`` where the row is left out, as it then is."""
        try:
            return instead if self.numbers[position] in self.failed else function(*args, **options)
        except Exception as error:  # noqa: BLE001  (templates and functions of a task's YAML raise anything)
            self.fail(position, error)
            return instead

    def guard(self, task: Task) -> None:
        """Have rows left out for which building this task's requests fails."""
        build, construct, rows = task.fewshot_context, task.construct_requests, count()
        self.task = task

        def context(number: int, doc: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401  (lm-eval's signatures)
            task.doc_to_target(doc)
            if task.OUTPUT_TYPE == "multiple_choice" and gold_of(task, doc) is None:
                raise Failure("its answer is neither a choice nor the number of one")
            prompt = build(doc, *args, **options)
            self.drawn[number] = getattr(getattr(task, "sampler", None), "drawn", ())
            return prompt

        def first(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            row = next(rows)
            return self.attempt(row, "", context, self.numbers[row], *args, **options)

        def requests(*args: Any, **options: Any) -> Any:  # noqa: ANN401
            if "metadata" not in options:  # for the context
                return construct(*args, **options)
            return self.attempt(options["metadata"][1], [], construct, *args, **options)

        task.fewshot_context, task.construct_requests = first, requests

    def leave_failed(self) -> None:
        """Number the requests that were built by the rows that are left, and guard how these are scored."""
        left = [row for row, number in enumerate(self.numbers) if number not in self.failed]
        position = {row: n for n, row in enumerate(left)}
        for instance in self.task.instances:
            instance.doc_id = position[instance.doc_id]
        self.numbers, score, rows = (
            [self.numbers[row] for row in left],
            self.task.process_results,
            cycle(position.values()),
        )
        self.task.process_results = lambda *args: self.attempt(next(rows), {}, score, *args)  # for each filter again
        self.task.build_all_requests = lambda **_: None  # they are built
