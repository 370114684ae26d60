"""What is scored: tasks with their rows, and cells, each a task at one number of shots with one seed.

Also values from lm-eval's records of rows: the right choice, the choices' scores, metrics with standard errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import exp
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from mtnlg_eval.results.result import Metric
from mtnlg_eval.results.statistics import bits_per_byte, clustered_error, jackknife_error
from mtnlg_eval.tasks.lm_eval_tasks import lm_eval_rows
from mtnlg_eval.tasks.paper_task import PAPER, PaperTask
from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_eval.tasks.rows import content_digest
from mtnlg_eval.tasks.shots import ANY_SHOT, sample_rows
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lm_eval.api.task import Task

    from mtnlg_eval.tasks.rows import Document
    from mtnlg_eval.tasks.shots import ShotChoice
    from mtnlg_eval.tasks.sources import TaskRows


T = TypeVar("T")
OF_LM_EVAL = "lm_eval:"
"""Prefix of a task name that means lm-eval's task, even if one of the nine has that name."""


@dataclass(frozen=True)
class TaskOptions:
    """Options that determine rows and prompts, in addition to the tasks' names and shots.

    ``limit`` samples rows at random, or takes the first ones with ``first``; ``rows`` has row numbers to score by task.
    ``choice`` selects the shots (HANS only), ``style`` the nine tasks' prompts and scores; ``trust_task_code`` allows
    code that tasks bring. The others are as in lm-eval.
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


class Source:
    """A task whose rows have been read; ``numbers`` are the numbers of the rows to score."""

    def __init__(self, name: str, task: Task, style: str, options: TaskOptions, groups: Sequence[str] = ()) -> None:
        self.name, self.task, self.style, self.groups = name, task, style, list(groups)
        own, config, limit = hasattr(task, "rows"), task.config, options.limit
        self.rows: TaskRows = task.rows if own else lm_eval_rows(task)
        self.origin = str(options.data or "hub") if own else str(config.dataset_path)
        self.few = TASKS_BY_NAME[name].few if own else int(config.num_fewshot or 0)
        self.size = len(task.eval_docs)
        if limit is not None:
            limit = int(limit if limit >= 1 else -(-self.size * limit // 1))
        self.numbers = sorted(set(options.rows.get(name, ()))) or (
            list(range(self.size))[:limit]
            if options.first
            else sample_rows([str(doc.get("id", n)) for n, doc in enumerate(task.eval_docs)], limit)
        )


@dataclass
class Cell:
    """A task at one number of shots with one seed; ``failed`` has the reasons for left-out rows.

    ``shown`` has the number of shots in each row's prompt, before one of lm-eval's own tasks loses its beginning.

    lm-eval gets the rows, with their numbers in the split, from `rows`, and builds and scores them through `guard`.
    """

    source: Source
    asked: str
    count: int
    seed: int
    failed: dict[int, str] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)
    task: Task = None
    _row: int = -1

    @property
    def key(self) -> str:
        """The cell's name for lm-eval."""
        return f"{self.source.name} {self.asked} {self.seed}"

    @property
    def why_none(self) -> str:
        """Why no row is left; "" if no row has failed."""
        number, why = next(iter(self.failed.items()), (0, ""))
        return why and f"no row of {len(self.failed)} can be scored; row {number}: {why}"

    def rows(self, **_: object) -> Iterator[tuple[int, Document]]:
        """The rows to score, without those that have failed."""
        documents = self.source.task.eval_docs
        for number in self.source.numbers:
            if number not in self.failed:
                self._row = number
                yield number, documents[number]

    def guard(self, task: Task) -> None:
        """Patch ``task`` so that rows are left out whose requests cannot be built or scored."""
        prompt, construct, score = task.fewshot_context, task.construct_requests, task.process_results
        self.task = task

        def build(doc: Any, ctx: Callable[[], Any], options: dict[str, Any]) -> Any:  # noqa: ANN401  (lm-eval's own)
            task.doc_to_target(doc)
            if task.OUTPUT_TYPE == "multiple_choice" and gold_of(task, doc) is None:
                raise Failure("its answer is neither a choice nor the number of one")
            text = ctx()
            drawn = len(getattr(getattr(task, "sampler", None), "drawn", ()))
            self.shown[options["metadata"][1]] = drawn if hasattr(task, "rows") else drawn or self.count
            return construct(doc, text, **options)

        def requests(doc: Any, ctx: Any, **options: Any) -> Any:  # noqa: ANN401
            if "metadata" not in options:  # for the context
                return construct(doc, ctx, **options)
            return self._attempt(options["metadata"][1], [], build, doc, ctx, options)

        task.doc_iterator = self.rows
        task.fewshot_context = partial(partial, prompt)  # rendered with the requests
        task.construct_requests = requests
        task.process_results = lambda *args: self._attempt(self._row, {}, score, *args)

    def _attempt(self, number: int, instead: T, function: Callable[..., T], *args: Any) -> T:  # noqa: ANN401
        """Call a function of the task for this row; if it raises, record the row as failed and return ``instead``."""
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001  (templates and functions of a task's YAML raise anything)
            self.failed[number] = reason_of(error)
            return instead


def identity_of(document: Mapping[str, Any], number: int) -> dict[str, str]:
    """Id, content digest and cluster of a row; ``number`` is its id if it has no other.

    Rows with the same ``cluster`` are not independent.
    """
    digest = document.get("digest") or content_digest(document)
    cluster = document.get("template") or document.get("group") or f"{digest}#{number}"
    return {"id": str(document.get("id", number)), "digest": str(digest), "cluster": str(cluster)}


def reason_of(error: Exception) -> str:
    """An error in a few words."""
    if isinstance(error, Failure):
        return str(error)
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def gold_of(task: Task, doc: Mapping[str, Any]) -> int | None:
    """Number of the right choice, the first if there are several; None if there are no choices."""
    if task.OUTPUT_TYPE == "loglikelihood":
        return 0
    if task.OUTPUT_TYPE != "multiple_choice":
        return None
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    gold, choices = gold[0] if isinstance(gold, list) else gold, task.doc_to_choice(doc)
    if isinstance(gold, str) and gold in choices:
        return int(choices.index(gold))
    return int(gold) if isinstance(gold, int) and 0 <= gold < len(choices) else None


def scores_of(task: Task, sample: Mapping[str, Any]) -> list[float]:
    """Scores by which the choices of a row are compared; [] if there are no choices."""
    if isinstance(task, PaperTask):
        return task.scores(sample["doc"], sample["filtered_resps"])
    if task.OUTPUT_TYPE not in {"multiple_choice", "loglikelihood"}:
        return []
    return [logp for logp, _ in sample["filtered_resps"]]


def metrics_of(
    task: Task, values: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], clusters: Sequence[int]
) -> Iterator[tuple[str, Metric]]:
    """lm-eval's metrics with standard errors, and the right answers' log-likelihood and bits per byte.

    ``samples`` have a row once per filter; ``clusters`` are the rows' in the same order. The standard error of
    perplexity, the exponential of the mean of -log P, is by the delta method; that of a metric that is not a mean of
    rows, by the jackknife.
    """
    first = samples[0]["filter"]
    for key in (key for key in values if "," in key and "_stderr" not in key):
        name, _, filter_ = key.partition(",")
        column = [sample[name] for sample in samples if sample["filter"] == filter_ and name in sample]
        value, stderr = values[key], None
        if not isinstance(value, int | float):
            continue
        if len(column) == len(clusters) and all(isinstance(each, int | float) for each in column):
            stderr = clustered_error(column, clusters)
            if name == "perplexity" and stderr is not None:
                stderr *= exp(-fmean(column))
        elif len(column) == len(clusters) and name in task.aggregation():
            stderr = jackknife_error(task.aggregation()[name], column, clusters)
        yield name if filter_ == first else f"{name},{filter_}", Metric(value=value, stderr=stderr)
    golds = [(sample, sample["gold"]) for sample in samples if sample["filter"] == first]
    if (
        golds
        and all(gold is not None for _, gold in golds)
        and not any(key.startswith("bits_per_byte") for key in values)
    ):
        logps = [sample["filtered_resps"][gold][0] for sample, gold in golds]
        sizes = [len(sample["arguments"][f"gen_args_{gold}"]["arg_1"].encode()) for sample, gold in golds]
        pairs = list(zip(logps, sizes, strict=True))
        yield "log_likelihood", Metric(value=fmean(logps), stderr=clustered_error(logps, clusters))
        error = jackknife_error(bits_per_byte, pairs, clusters)  # type: ignore[arg-type]  # of these pairs
        yield "bits_per_byte", Metric(value=bits_per_byte(pairs), stderr=error)
