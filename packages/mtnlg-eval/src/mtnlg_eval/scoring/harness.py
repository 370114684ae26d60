"""Runs tasks at several numbers of shots in one call of ``lm_eval.evaluate``, and stores their results.

Every task at every number of shots and with every seed is a cell: a task of lm-eval's with its requests built. The
model answers the requests of all cells together, from its store or by computing; lm-eval computes the metrics. A row
that cannot be built, answered or scored is reported and left out; the others are scored without it.

    OUT/scores.sqlite     every answer (answer_store.py): the same command resumes from here
    OUT/results/…         a file per result, added to those of earlier commands (results/folder.py)

Only the provenance in a result depends on when or how often a run was started.
"""

from __future__ import annotations

import json
import re
import time
from math import isfinite
from operator import itemgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from lm_eval import evaluator
from lm_eval.utils import handle_non_serializable

from mtnlg_eval.results.compare import Cell as ScoredCell
from mtnlg_eval.results.compare import group_means
from mtnlg_eval.results.folder import LM_EVAL_SECTIONS, ResultFolder
from mtnlg_eval.results.paper_setting import SCORED_ROWS
from mtnlg_eval.results.provenance import provenance
from mtnlg_eval.results.result import FailedRow, Result, Rows, Shots, digest_of
from mtnlg_eval.results.statistics import numbered
from mtnlg_eval.tasks.lm_eval_tasks import LM_EVAL, load_lm_eval_tasks, with_shots
from mtnlg_eval.tasks.paper_task import SEED, PaperTask, paper_task
from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_eval.tasks.sandbox import sandboxed_templates
from mtnlg_model.console import Failure, UsageFailure, progress, say

from .cells import OF_LM_EVAL, Cell, Source, TaskOptions, gold_of, identity_of, metrics_of, reason_of, scores_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .decoder_lm import DecoderLM

PREFERRED = ("acc", "exact_match", "pass@1", "f1", "word_perplexity")
"""Metrics that become a task's score if it has several, in order of preference."""


class Evaluation:
    """Tasks to score at each of ``shots`` (numbers, or "few" for a task's own K; None: the task's default).

    A task that cannot run is listed in ``not_run``, and the others continue.
    """

    def __init__(
        self,
        names: Sequence[str],
        shots: Sequence[str] | None = None,
        options: TaskOptions | None = None,
        seeds: Sequence[int] = (SEED,),
    ) -> None:
        """Read the rows of every task: the nine from a folder or the hub, others as lm-eval does.

        Raises ``Failure`` if no task can run.
        """
        self.options, self.seeds, self.shots = options or TaskOptions(), tuple(seeds), shots
        self.not_run: dict[str, str] = {}
        self.scores: dict[str, dict[str, list[Result]]] = {}
        self.sources: dict[str, Source] = {}
        for name in names:
            try:
                self.sources |= {source.name: source for source in self._load(name)}
            except UsageFailure:
                raise
            except Failure as failure:
                self.not_run[name.removeprefix(OF_LM_EVAL)] = str(failure)
        for source in self.sources.values():
            if shots and "few" in shots and not source.few:
                raise UsageFailure(f"{source.name}: few needs num_fewshot in its YAML; or pass --shots 0,1")
        if not self.sources:
            first, why = next(iter(self.not_run.items()))
            raise Failure(f"no task can run; {first}: {why}")

    def _load(self, name: str) -> Iterator[Source]:
        options = self.options
        if name in TASKS_BY_NAME:
            task = paper_task(name, options.data, options.style, options.revisions.get(name))
            yield Source(name, task, options.style, options)
            return
        tasks, groups = load_lm_eval_tasks(
            name.removeprefix(OF_LM_EVAL), options.include_path, trusted=options.trust_task_code
        )
        for own, task in tasks.items():
            yield Source(own, task, LM_EVAL, options, [group for group, members in groups.items() if own in members])

    def _cells(self) -> Iterator[Cell]:
        for source in self.sources.values():
            own = ("0", "1", "few") if isinstance(source.task, PaperTask) else ("few",) if source.few else ("0",)
            for asked in self.shots or own:
                count = source.few if asked == "few" else int(asked)
                options = source.task.get_config("generation_kwargs") or {}
                drawn = count or options.get("do_sample") or options.get("temperature")
                for seed in self.seeds if drawn else self.seeds[:1]:
                    yield Cell(source, asked, count, seed)

    @sandboxed_templates()
    def run(self, lm: DecoderLM, out: Path, layout: str | None) -> dict[str, Any]:
        """Score every task, write the scores to the folder ``out`` and return them; ranks other than 0 return {}."""
        self._lm, self._model, self._folder, self._layout = lm, lm.model.record, ResultFolder(out), layout
        self._started = time.monotonic()
        for name, why in self.not_run.items():
            self._miss(name, why)
        asked = list(self._cells())
        with_shots = {cell.source.name for cell in asked if cell.count}
        for name, source in self.sources.items():
            if hasattr(source.task, "rows"):
                for note in source.rows.notes(shots=name in with_shots):
                    say(f"{name}: {note}")
        if self.options.apply_chat_template:
            lm.chat_template(self.options.apply_chat_template)
        cells = [cell for cell in asked if self._build(cell)]
        evaluated = self._evaluate(cells) if cells else {}
        if lm.rank:
            return {}
        for cell in cells:
            self._finish(cell, evaluated)
        self._folder.collect()
        if lm.store.taken_over:
            say(f"{lm.store.taken_over:,} answers are reused from {out / 'scores.sqlite'}")
        return {
            **self._model.identity,
            "style": self.options.style,
            "tasks": {
                task: {shots: ScoredCell(tuple(results)).summary for shots, results in by_shots.items()}
                for task, by_shots in self.scores.items()
            },
            "groups": group_means(
                [each for own in self.scores.values() for results in own.values() for each in results]
            ),
            "not_run": [{"task": name, "why": why} for name, why in self.not_run.items()],
            "answers_taken_over": lm.store.taken_over,
            "seconds": round(time.monotonic() - self._started, 3),
        }

    def _miss(self, name: str, why: str) -> None:
        self.not_run[name] = why
        say(f"{name}: not run: {why}")
        if self._lm.rank == 0:
            self._folder.add_gap(name, why, self._model.checkpoint)

    def _build(self, cell: Cell) -> bool:
        """Build a cell's requests, leaving out rows for which that fails; returns whether any row is left."""
        source, options, chat = cell.source, self.options, bool(self.options.apply_chat_template)
        if isinstance(source.task, PaperTask):
            task = source.task.with_shots(self._lm, cell.count, options.choice, cell.seed)
        else:
            task = with_shots(source.task, cell.count, cell.seed)
        if options.gen_kwargs and task.get_config("generation_kwargs") is not None:
            task.set_config("generation_kwargs", {**task.get_config("generation_kwargs"), **options.gen_kwargs})
        cell.guard(task)
        try:
            task.build_all_requests(
                system_instruction=options.system_instruction,
                apply_chat_template=chat,
                fewshot_as_multiturn=chat and options.fewshot_as_multiturn,
                chat_template=self._lm.apply_chat_template if chat else None,
            )
        except Exception as error:  # noqa: BLE001  (no row is left, or what a task's YAML names raises anything)
            self._miss(source.name, cell.why_none or reason_of(error))
            return False
        task.build_all_requests = lambda **_: None  # they are built
        if self._lm.rank == 0:
            self._folder.clear_gap(source.name)
        return True

    def _evaluate(self, cells: Sequence[Cell]) -> dict[str, Any]:
        """Evaluate all cells in one call of lm-eval, which returns None on ranks other than 0."""
        cell_of = {id(instance): cell for cell in cells for instance in cell.task.instances}
        self._lm.on_failed = lambda instance, why: cell_of[id(instance)].failed.update({instance.doc_id: str(why)})
        requests = sum(instance.repeats or 1 for cell in cells for instance in cell.task.instances)
        with progress("scoring", requests, "requests") as self._lm.on_scored:
            evaluated: dict[str, Any] = evaluator.evaluate(
                self._lm,
                {"tasks": {cell.key: cell.task for cell in cells}},
                bootstrap_iters=0,  # our standard errors respect groups of rows
                confirm_run_unsafe_code=self.options.unsafe_code,
            )
        return evaluated

    def _finish(self, cell: Cell, evaluated: dict[str, Any]) -> None:
        """Add a cell's result to the folder."""
        name = cell.source.name
        samples = self._samples(cell, evaluated["samples"][cell.key])
        for number, why in cell.failed.items():
            say(f"{name} {cell.asked}: row {number} is skipped: {why}")
        if not samples:
            self._miss(name, cell.why_none)
            return
        result = self._result(cell, samples, evaluated)
        lines = (json.dumps(sample, ensure_ascii=False, default=handle_non_serializable) for sample in samples)
        result = self._folder.add(result, lines)
        self.scores.setdefault(name, {}).setdefault(cell.asked, []).append(result)
        if cut := [sample["id"] for sample in samples if sample["truncated"]]:
            say(
                f"{name} {cell.asked}: {len(cut)} prompts are longer than the context of {self._lm.max_length} tokens "
                f"and lose their beginning; the first is row {cut[0]}"
            )

    def _samples(self, cell: Cell, samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """lm-eval's records of rows, one per filter, in the format of its own tracker; numbers stay numbers."""
        task, made = cell.task, []
        cut = {each.doc_id for each in task.instances if id(each) in self._lm.cut}
        for sample in samples:
            if (number := sample["doc_id"]) in cell.failed:
                continue
            pairs = enumerate(sample["arguments"])
            arguments = {f"gen_args_{n}": {f"arg_{k}": part for k, part in enumerate(pair)} for n, pair in pairs}
            made.append(
                sample
                | {"arguments": arguments, **identity_of(sample["doc"], number)}
                | {"gold": gold_of(task, sample["doc"]), "scores": scores_of(task, sample)}
                | {"shots": cell.shown[number], "truncated": number in cut}
            )
        return made

    def _result(self, cell: Cell, samples: Sequence[dict[str, Any]], evaluated: dict[str, Any]) -> Result:
        model, source, rows, key = self._model, cell.source, cell.source.rows, cell.key
        first = [sample for sample in samples if sample["filter"] == samples[0]["filter"]]
        requests = [str(part) for sample in first for pair in sample["arguments"].values() for part in pair.values()]
        by_digest = itemgetter("digest", "id")
        in_order = sorted(first, key=by_digest)
        clusters = numbered(sample["cluster"] for sample in in_order)
        lm_eval = {section: evaluated[section][key] for section in LM_EVAL_SECTIONS}
        metrics = dict(metrics_of(cell.task, lm_eval["results"], sorted(samples, key=by_digest), clusters))
        metric = next((name for name in PREFERRED if name in metrics), next(iter(metrics)))
        values: list[Any] = [sample.get(metric) for sample in in_order]
        means = (
            all(isinstance(value, int | float) for value in values)
            and isfinite(metrics[metric].value)
            and abs(fmean(values) - metrics[metric].value) < 1e-9  # else the score is another function of them
        )
        shown = [sample["shots"] for sample in first]
        lm_eval["configs"]["metadata"] = {
            name: value for name, value in (lm_eval["configs"].get("metadata") or {}).items() if name != "config_source"
        }  # a path of this machine
        lm_eval["n-shot"] = round(fmean(shown), 1)  # of those shown, not of those asked for
        for name, m in metrics.items():
            own, _, filter_ = name.partition(",")
            filter_ = filter_ or samples[0]["filter"]
            lm_eval["results"][f"{own},{filter_}"] = m.value
            lm_eval["results"][f"{own}_stderr,{filter_}"] = "N/A" if m.stderr is None else m.stderr
        lm_eval["results"] |= {"name": source.name, "alias": source.name}
        threads = None if torch.cuda.is_available() else torch.get_num_threads()
        return Result(
            task=source.name,
            style=source.style,
            shots=Shots(
                asked=cell.asked,
                count=cell.count,
                mean=fmean(shown),
                least=min(shown),
                pool=rows.pool if rows.pool != rows.split else SCORED_ROWS,
                pool_rows=len(rows.shots),
                seed=cell.seed if cell.count else None,
                source=self.options.choice.source,
                labels=self.options.choice.labels,
            ),
            rows=Rows(
                source=source.origin,
                split=rows.split,
                variant=rows.variant,
                count=len(first),
                sample_of=source.size,
                digest=digest_of([sample["digest"] for sample in in_order]),
                failed=[
                    FailedRow(number=number, why=why)
                    for number, why in [*rows.malformed.items(), *sorted(cell.failed.items())]
                ],
            ),
            truncated=sum(sample["truncated"] for sample in first),
            requests_digest=digest_of([model.precision, *requests]),
            model=model.model_copy(update={"threads": threads}),
            metric=metric,
            metrics=metrics,
            values=list(map(float, values)) if means else [],
            clusters=clusters if means else [],
            groups=source.groups,
            label_tokens=cell.task.label_tokens if isinstance(cell.task, PaperTask) else [],
            # Functions in a task's config are written by name, since their address differs between processes.
            lm_eval=json.loads(re.sub(" at 0x[0-9a-f]+", "", json.dumps(lm_eval, default=handle_non_serializable))),
            provenance=provenance(self._layout, time.monotonic() - self._started, rows.revision),
        )
