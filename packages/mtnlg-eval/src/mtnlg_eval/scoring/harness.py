"""Runs tasks at several numbers of shots through ``lm_eval.evaluate`` and keeps each result as it comes.

Every task at every number of shots and with every seed is a cell. The prompts of a cell go into one queue for all
(rolling_queue.py) while they are built, the next cell's while the network runs; when a cell's scores are there,
lm-eval computes its metrics.

    OUT/scores.sqlite     every answer (answer_store.py): the same command resumes from here
    OUT/results/…         a file per result, added to those of earlier commands (results/folder.py)

Only the provenance in a result depends on when or how often a run was started.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from math import exp, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from lm_eval import evaluator
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from mtnlg_eval.results.compare import Cell
from mtnlg_eval.results.folder import LM_EVAL_SECTIONS, ResultFolder
from mtnlg_eval.results.provenance import provenance
from mtnlg_eval.results.result import SCORED_ROWS, Metric, Model, Result, Rows, Shots, digest_of
from mtnlg_eval.tasks.own_task import OwnTask
from mtnlg_eval.tasks.paper_task import PAPER, SEED
from mtnlg_eval.tasks.published import TASKS
from mtnlg_eval.tasks.shots import ANY_SHOT
from mtnlg_eval.tasks.sources import load_hub_texts
from mtnlg_eval.tasks.stock_task import LM_EVAL, STOCK, StockTask, read_stock_rows
from mtnlg_model.console import Failure, UsageFailure, progress, say

from .open_model import checkpoint_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lm_eval.api.instance import Instance

    from mtnlg_eval.tasks.paper_task import PaperTask
    from mtnlg_eval.tasks.recorded_task import Record
    from mtnlg_eval.tasks.shots import ShotChoice
    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.console import Advance

    from .decoder_lm import DecoderLM
    from .rolling_queue import RollingQueue, Score, Submission

DOCUMENTS_PER_SUBMISSION = 128
CELLS_AHEAD = 3
"""Cells whose prompts may wait for their scores: they hold a task's prompts in memory."""

FEW_SHOTS = {task.name: task.few for task in TASKS}
"""K of each task's few-shot prompts."""


def task_manager(data: Path | None, style: str = PAPER, revision: str | None = None) -> TaskManager:
    """lm-eval's manager of our nine tasks alone: indexing its own takes longer than a small evaluation."""
    given = {"rows_from": str(data) if data else None, "revision": revision}
    metadata = {"style": style} | {key: value for key, value in given.items() if value}
    return TaskManager(include_path=Path(__file__).parents[1] / "tasks", include_defaults=False, metadata=metadata)


def load_task(name: str, data: Path | None, style: str = PAPER, revision: str | None = None) -> PaperTask | StockTask:
    """A task with its rows, from the folder ``data`` or the hub, with the prompts and scores of ``style``."""
    manager = task_manager(data, style, revision)
    if style == LM_EVAL and name in STOCK:
        return StockTask(name, read_stock_rows(name, data, manager.task_index[name].cfg, revision))
    task: PaperTask = manager.load([name])["tasks"][name]
    return task


def read_hub_texts(task: str) -> Iterator[tuple[str, str]]:
    """Row id and text of everything in a task's scored rows on the hub."""
    return load_hub_texts(task_manager(None).task_index[task].cfg)


@dataclass
class _Cell:
    """A task's requests at one number of shots with one seed: built, and in the queue."""

    name: str
    shots: str
    seed: int
    started: float
    record: Record
    submissions: list[Submission] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether every score is there."""
        return all(submission.done for submission in self.submissions)


class _Feeder:
    """Hands the requests of a cell to the queue, some documents at a time, while they are built."""

    def __init__(self, lm: DecoderLM, queue: RollingQueue, on_scored: Callable[[int], None]) -> None:
        self._lm, self._queue, self._on_scored = lm, queue, on_scored
        self._documents = 0
        self._instances: list[Instance] = []
        self.submissions: list[Submission] = []

    def add(self, instances: Sequence[Instance]) -> None:
        """Take a document's requests."""
        self._instances += instances
        self._documents += 1
        if self._documents % DOCUMENTS_PER_SUBMISSION == 0:
            self.flush()

    def flush(self) -> None:
        """Submit what has been taken."""
        self.submissions.append(self._queue.submit(self._lm.requests_of(self._instances), self._on_scored))
        self._instances = []


class _AnsweredLM(LM):  # type: ignore[misc]  # lm-eval carries no types
    """Gives scores that are known, to the requests in the order in which they were built."""

    def __init__(self, record: Record, scores: Sequence[Score]) -> None:
        super().__init__()
        self._scores = {id(each): score for each, score in zip(record.instances, scores, strict=True)}

    def loglikelihood(self, requests: Sequence[Instance]) -> list[Score]:
        """The score of each request."""
        return [self._scores[id(request)] for request in requests]

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Of no task here."""
        raise NotImplementedError

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        """Of no task here."""
        raise NotImplementedError


class Evaluation:
    """Tasks to score at each of ``shots`` (numbers, or "few" for the paper's K), each with every seed.

    ``limit`` is the number of rows to sample, ``choice`` selects the shots (HANS only), ``style`` the prompts and
    scores. A task that cannot run is listed in ``not_run``, and the others go on.
    """

    def __init__(
        self,
        names: Sequence[str],
        shots: Sequence[str],
        data: Path | None,
        limit: int | None = None,
        *,
        choice: ShotChoice = ANY_SHOT,
        style: str = PAPER,
        seeds: Sequence[int] = (SEED,),
        files: Sequence[Path] = (),
        revisions: Mapping[str, str] | None = None,
    ) -> None:
        """Read the rows of every task: from the folder ``data`` or the hub, and as the YAML ``files`` say.

        ``Failure`` if no task has any, or if one of the files is malformed.
        """
        self.choice, self.style, self.seeds = choice, style, tuple(seeds)
        self.shots, self.rows_from = tuple(shots), str(data) if data else "hub"
        self.not_run: list[dict[str, str]] = []
        self.scores: dict[str, dict[str, list[Result]]] = {}
        self.tasks: dict[str, PaperTask | StockTask] = {}
        for own in map(OwnTask, files):
            if own.name in self.tasks:
                raise UsageFailure(f"--task-file: two tasks are named {own.name}; rename one")
            if "few" in self.shots and not own.few:
                raise UsageFailure(f"{own.name}: few needs num_fewshot in its YAML; or pass --shots 0,1")
            self.tasks[own.name] = own
            own.take(limit)
        for name in names:
            try:
                self.tasks[name] = load_task(name, data, style, (revisions or {}).get(name))
                self.tasks[name].take(limit)
            except Failure as failure:
                self.not_run.append({"task": name, "why": str(failure)})
        if not self.tasks:
            first = self.not_run[0]
            raise Failure(f"no task can run; {first['task']}: {first['why']}")

    def run(self, lm: DecoderLM, checkpoint: Checkpoint, out: Path, layout: str | None) -> dict[str, Any]:
        """Score every task into the folder ``out``; returns the scores of this run."""
        started, folder, identity = time.monotonic(), ResultFolder(out), checkpoint_identity(checkpoint)
        for gap in self.not_run:
            say(f"{gap['task']}: not run: {gap['why']}")
            folder.add_gap(gap["task"], gap["why"], str(identity["checkpoint"]))
        for name, task in self.tasks.items():
            self._say_what_was_read(name, task)
        repeats = sum(len(self._draws(name, shots)) for name in self.tasks for shots in self.shots) / len(self.tasks)
        total = round(sum(task.count_requests() for task in self.tasks.values()) * repeats)
        self._lm, self._checkpoint, self._folder, self._layout = lm, checkpoint, folder, layout
        with progress("scoring", total, "requests") as advance, lm.queue() as queue:
            waiting: deque[_Cell] = deque()
            for name in self.tasks:
                folder.clear_gap(name)
                for cell in [(name, shots, seed) for shots in self.shots for seed in self._draws(name, shots)]:
                    try:
                        waiting.append(self._build(queue, cell, advance))
                    except Failure as failure:
                        self.not_run.append({"task": name, "why": str(failure)})
                        folder.add_gap(name, str(failure), str(identity["checkpoint"]))
                        say(f"{name}: not run: {failure}")
                        break
                    while waiting and (waiting[0].done or len(waiting) > CELLS_AHEAD):
                        self._finish(waiting.popleft())
            while waiting:
                self._finish(waiting.popleft())
        folder.collect()
        if lm.store.taken_over:
            say(f"{lm.store.taken_over:,} answers are of earlier commands, kept in {out / 'scores.sqlite'}")
        seconds = round(time.monotonic() - started, 3)
        scores = {
            task: {shots: _summary(Cell(tuple(results))) for shots, results in by_shots.items()}
            for task, by_shots in self.scores.items()
        }
        return {
            **identity,
            "style": self.style,
            "rows_from": self.rows_from,
            "tasks": scores,
            "not_run": self.not_run,
            "answers_taken_over": lm.store.taken_over,
            "seconds": seconds,
        }

    def _draws(self, name: str, shots: str) -> tuple[int, ...]:
        """The seeds that make a difference: one where there are no shots."""
        return self.seeds if self._count(name, shots) else self.seeds[:1]

    def _count(self, name: str, shots: str) -> int:
        task = self.tasks[name]
        few = task.few if isinstance(task, OwnTask) else FEW_SHOTS[name]
        return few if shots == "few" else int(shots)

    def _say_what_was_read(self, name: str, task: PaperTask | StockTask) -> None:
        rows = task.rows
        if rows.other_files:
            say(f"{name}: not read, because of another set: {', '.join(rows.other_files)}")
        if rows.left_out:
            say(f"{name}: {len(rows.left_out)} malformed rows give no shots, the first {rows.left_out[0]}")
        if rows.pool == rows.split and any(self._count(name, shots) for shots in self.shots):
            say(f"{name}: no {'' if rows.variant is None else rows.variant + ' '}rows but the scored ones give shots")

    def _build(self, queue: RollingQueue, what: tuple[str, str, int], advance: Advance) -> _Cell:
        """Build a cell's prompts and put its requests into the queue."""
        (name, shots, seed), started = what, time.monotonic()
        task, feeder = self.tasks[name], _Feeder(self._lm, queue, partial(advance, note=f"{name} {shots}"))
        task.lm, task.on_built = self._lm, feeder.add
        task.set_shots(self._count(name, shots), self.choice, seed)
        task.build_all_requests()
        feeder.flush()
        return _Cell(name, shots, seed, started, task.record, feeder.submissions)

    def _finish(self, cell: _Cell) -> None:
        """Wait for a cell's scores, and add its result to the folder."""
        name, task = cell.name, self.tasks[cell.name]
        scores = [score for submission in cell.submissions for score in submission.result()]
        task.set_shots(self._count(name, cell.shots), self.choice, cell.seed)
        task.resume(cell.record)
        # Without bootstrap iterations lm-eval gives no standard errors: see _metrics.
        answered = _AnsweredLM(cell.record, scores)
        evaluated = evaluator.evaluate(answered, {"tasks": {name: task}}, bootstrap_iters=0)
        samples = [_sample(task, n, sample) for n, sample in enumerate(evaluated["samples"][name])]
        result = self._result(cell, samples, evaluated)
        lines = (json.dumps(sample, ensure_ascii=False, default=handle_non_serializable) for sample in samples)
        kept = self._folder.add(result, lines)
        self.scores.setdefault(name, {}).setdefault(cell.shots, []).append(kept)
        if cut := [sample["doc"]["id"] for sample in samples if sample["truncated"]]:
            say(
                f"{name} {cell.shots}: {len(cut)} prompts are longer than the context of {self._lm.max_length} tokens "
                f"and lose their beginning, the first {cut[0]}"
            )

    def _result(self, cell: _Cell, samples: Sequence[dict[str, Any]], evaluated: dict[str, Any]) -> Result:
        lm, checkpoint, name, asked, seed = self._lm, self._checkpoint, cell.name, cell.shots, cell.seed
        task, count = self.tasks[name], self._count(name, asked)
        rows, source = task.rows, str(task.path) if isinstance(task, OwnTask) else self.rows_from
        shown = [fit.shots for fit in task.prompt_fits]
        requests = [text for sample in samples for pair in sample["arguments"].values() for text in pair.values()]
        in_order = sorted(samples, key=lambda sample: (sample["doc"]["digest"], sample["doc"]["id"]))
        metrics = _metrics(evaluated["results"][name], samples)
        lm_eval = {section: evaluated[section][name] for section in LM_EVAL_SECTIONS}
        lm_eval["configs"]["metadata"].pop("config_source", None)  # a path of this machine
        lm_eval["n-shot"] = round(fmean(shown), 1)  # of those shown, not of those asked for
        lm_eval["results"] |= {
            f"{key}_stderr,none": "N/A" if m.stderr is None else m.stderr for key, m in metrics.items()
        }
        return Result(
            task=name,
            style=self.style,
            shots=Shots(
                asked=asked,
                count=count,
                mean=fmean(shown),
                least=min(shown),
                pool=rows.pool if rows.pool != rows.split else SCORED_ROWS,
                pool_rows=len(rows.shots),
                seed=seed if count else None,
                source=self.choice.source,
                labels=self.choice.labels,
            ),
            rows=Rows(
                source=source,
                split=rows.split,
                variant=rows.variant,
                count=len(samples),
                sample_of=len(rows.scored),
                digest=digest_of([sample["doc"]["digest"] for sample in in_order]),
            ),
            truncated=sum(sample["truncated"] for sample in samples),
            requests_digest=digest_of([lm.precision, *requests]),
            model=Model(
                **checkpoint_identity(checkpoint),
                step=checkpoint.progress.step,
                parameters=checkpoint.config.parameters,
                precision=lm.precision,
                context=lm.max_length,
            ),
            metrics=metrics,
            correct="".join(str(int(sample["acc"])) for sample in in_order),
            lm_eval=json.loads(json.dumps(lm_eval, default=handle_non_serializable)),
            provenance=provenance(self._layout, time.monotonic() - cell.started, rows.revision),
        )


def _metrics(values: dict[str, Any], samples: Sequence[dict[str, Any]]) -> dict[str, Metric]:
    """lm-eval's metrics; those that are means of rows, and perplexity, with standard errors.

    Perplexity, the exponential of the mean of -log P, gets the delta method's: lm-eval's bootstrap starts processes.
    """
    metrics: dict[str, Metric] = {}
    for key in (key.removesuffix(",none") for key in values if key.endswith(",none") and "_stderr" not in key):
        column = [sample[key] for sample in samples]
        means = all(isinstance(value, int | float) for value in column)  # others, such as F1's, are pairs
        stderr = stdev(column) / sqrt(len(column)) if means and len(column) > 1 else None
        if key == "perplexity":
            metrics["log_likelihood"] = Metric(value=fmean(column), stderr=stderr)
            stderr = None if stderr is None else exp(-fmean(column)) * stderr
        metrics[key] = Metric(value=values[f"{key},none"], stderr=stderr)
    return metrics


def _summary(cell: Cell) -> dict[str, Any]:
    """What the console prints of a cell, and `evaluate` returns."""
    first, estimate = cell.first, cell.estimate
    return {
        "results": [result.name for result in cell.results],
        "metrics": {key: fmean(result.metrics[key].value for result in cell.results) for key in first.metrics},
        "value": estimate.value,
        "interval_95": [estimate.low, estimate.high],
        "between_draws": cell.between_draws,
        "seeds": [result.shots.seed for result in cell.results if result.shots.seed is not None],
        "rows": first.rows.count,
        "rows_digest": first.rows.digest,
        "shots": first.shots.count,
        "shots_shown": cell.shown,
        "truncated": max(result.truncated for result in cell.results),
        "differs": cell.differs,
    }


def _sample(task: PaperTask | StockTask, number: int, sample: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's record of a document in the form of its own tracker, with scores and shots; numbers stay numbers."""
    fit = task.prompt_fits[number]
    arguments = {f"gen_args_{n}": {"arg_0": pair[0], "arg_1": pair[1]} for n, pair in enumerate(sample["arguments"])}
    scores = task.scores(sample["doc"], sample["filtered_resps"])
    return sample | {"arguments": arguments, "scores": scores, "shots": fit.shots, "truncated": fit.truncated}
