"""Runs tasks at several numbers of shots through ``lm_eval.evaluate`` and writes the results.

    OUT/scores.sqlite                   every answer as it comes (answer_store.py): the same command resumes from here
    OUT/samples/<task>_<shots>.jsonl    one document per line: prompts, loglikelihoods, scores, accuracy, shots shown
    OUT/results.json                    lm-eval's schema; an entry is <task>_<shots>
    OUT/summary.json                    what the report reads

Only summary.json, which holds the seconds of the run that scored, depends on when or how often a run was started.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from lm_eval import evaluator
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from mtnlg_eval.tasks.paper_task import PAPER, SEED
from mtnlg_eval.tasks.published import TASKS
from mtnlg_eval.tasks.shots import ANY_SHOT
from mtnlg_eval.tasks.sources import load_hub_texts
from mtnlg_model.console import Failure, progress, say
from mtnlg_model.files import write_json, write_text

from .open_model import checkpoint_identity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_eval.tasks.paper_task import PaperTask
    from mtnlg_eval.tasks.shots import ShotChoice
    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.console import Advance

    from .decoder_lm import DecoderLM

FEW_SHOTS = {task.name: task.few for task in TASKS}
"""K of each task's few-shot prompts."""

PER_TASK = ("results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples")
"""Sections of lm-eval's results with one entry per task."""


def task_manager(data: Path | None, style: str = PAPER) -> TaskManager:
    """lm-eval's manager of our nine tasks alone: indexing its own takes longer than a small evaluation."""
    metadata = {"style": style} | ({"rows_from": str(data)} if data else {})
    return TaskManager(include_path=Path(__file__).parents[1] / "tasks", include_defaults=False, metadata=metadata)


def read_hub_texts(task: str) -> Iterator[tuple[str, str]]:
    """Row id and text of everything in a task's scored rows on the hub."""
    return load_hub_texts(task_manager(None).task_index[task].cfg)


class Evaluation:
    """Tasks to score at each of ``shots`` (numbers, or "few" for the paper's K), on the first ``limit`` rows if set.

    ``choice`` selects the shots (HANS only), ``style`` the prompts and scores. A task that cannot run is listed in
    ``not_run``, and the others go on.
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
    ) -> None:
        """Read the rows of every task from the folder ``data`` or the hub; ``Failure`` if no task has any."""
        self.choice, self.style = choice, style
        self.shots, self.limit, self.rows_from = tuple(shots), limit, str(data) if data else "hub"
        self.not_run: list[dict[str, str]] = []
        self.scores: dict[str, dict[str, dict[str, Any]]] = {}
        self.results: dict[str, Any] = {section: {} for section in PER_TASK}
        self.tasks: dict[str, PaperTask] = {}
        manager = task_manager(data, style)
        for name in names:
            try:
                self.tasks[name] = manager.load([name])["tasks"][name]
            except Failure as failure:
                self._skip(name, failure)
        if not self.tasks:
            first = self.not_run[0]
            raise Failure(f"no task can run; {first['task']}: {first['why']}")

    def run(self, lm: DecoderLM, out: Path) -> None:
        """Score every task, and write its samples under ``out`` when it ends."""
        for gap in self.not_run:
            say(f"{gap['task']}: not run: {gap['why']}")
        for name, task in self.tasks.items():
            if left_out := task.rows.left_out:
                say(f"{name}: {len(left_out)} malformed rows give no shots, the first {left_out[0]}")
        # Until the end samples/ mixes two runs; without results.json nobody takes it for one.
        (out / "results.json").unlink(missing_ok=True)
        total = sum(task.count_requests(self.limit) for task in self.tasks.values()) * len(self.shots)
        with progress("scoring", total, "requests") as advance:
            for name, task in self.tasks.items():
                task.lm = lm
                try:
                    truncated = [row for shots in self.shots for row in self._score(lm, name, shots, out, advance)]
                except Failure as failure:
                    self._skip(name, failure)
                    say(f"{name}: not run: {failure}")
                    continue
                if truncated:
                    rows = f"{len(set(truncated))} rows are longer than the context of {lm.max_length} tokens"
                    say(f"{name}: {rows} and lose their beginning, the first {truncated[0]}")

    def _score(self, lm: DecoderLM, name: str, shots: str, out: Path, advance: Advance) -> list[str]:
        """Score one task at one number of shots, write its samples, and return the ids of truncated rows."""
        entry, task = f"{name}_{shots}", self.tasks[name]
        lm.on_scored = partial(advance, note=f"{name} {shots}")
        task.set_shots(FEW_SHOTS[name] if shots == "few" else int(shots), self.choice)
        results = evaluator.evaluate(lm, {"tasks": {entry: task}}, limit=self.limit, bootstrap_iters=1)
        results["configs"][entry]["metadata"].pop("config_source", None)  # a path of this machine
        for section in PER_TASK:
            self.results[section] |= results[section]

        samples = [_sample(task, n, sample) for n, sample in enumerate(results["samples"][entry])]
        lines = (json.dumps(sample, ensure_ascii=False, default=handle_non_serializable) for sample in samples)
        write_text(out / "samples" / f"{entry}.jsonl", "".join(f"{line}\n" for line in lines))

        truncated = [sample["doc"]["id"] for sample in samples if sample["truncated"]]
        stderr = results["results"][entry]["acc_stderr,none"]
        self.scores.setdefault(name, {})[shots] = {
            "metric": "acc",
            "value": results["results"][entry]["acc,none"],
            "stderr": None if stderr == "N/A" else stderr,
            "documents": len(samples),
            "shots_used": mean(fit.shots for fit in task.prompt_fits),
            "shots_used_min": min(fit.shots for fit in task.prompt_fits),
            "truncated": len(truncated),
        }
        return truncated

    def _skip(self, name: str, reason: Failure) -> None:
        """List a task as not run and drop the scores it already has."""
        self.scores.pop(name, None)
        for section in self.results.values():
            for shots in self.shots:
                section.pop(f"{name}_{shots}", None)
        self.not_run.append({"task": name, "why": str(reason)})

    def write(self, lm: DecoderLM, checkpoint: Checkpoint, out: Path, seconds: float) -> dict[str, Any]:
        """Write results.json and summary.json, delete samples of earlier runs, and return the summary."""
        write_json(out / "results.json", self.results | self._settings(lm, checkpoint))
        for path in (out / "samples").glob("*.jsonl"):
            if path.stem not in self.results["results"]:
                path.unlink()
        summary = {
            "version": 1,
            **checkpoint_identity(checkpoint),
            "tasks": self.scores,
            "not_run": self.not_run,
            "seconds": round(seconds, 3),
            "rows_from": self.rows_from,
            "prompt_style": self.style,
        }
        path = out / "summary.json"
        earlier: dict[str, Any] = {}
        with suppress(FileNotFoundError, ValueError):
            earlier = json.loads(path.read_bytes())
        if json.loads(json.dumps(summary)) == earlier | {"seconds": summary["seconds"]}:
            return earlier  # a rerun with every answer in the store changes no byte
        write_json(path, summary)
        return summary

    def _settings(self, lm: DecoderLM, checkpoint: Checkpoint) -> dict[str, Any]:
        """The part of results.json that describes the model and the run, under lm-eval's keys."""
        identity = checkpoint_identity(checkpoint)
        model_args = {"checkpoint": identity["checkpoint"], "digest": identity["digest"]}
        return {
            "config": {
                "model": "mtnlg",
                "model_args": model_args | {"step": checkpoint.progress.step},
                "model_num_parameters": checkpoint.config.parameters,
                "model_dtype": lm.precision,
                "limit": self.limit,
                "fewshot_seed": SEED,
                "shots": asdict(self.choice),
                "prompt_style": self.style,
            },
            "lm_eval_version": version("lm_eval"),
            "max_length": lm.max_length,
            "eot_token_id": lm.eot_token_id,
        }


def _sample(task: PaperTask, number: int, sample: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's record of a document in the form of its own tracker, with scores and shots; numbers stay numbers."""
    fit = task.prompt_fits[number]
    arguments = {f"gen_args_{n}": {"arg_0": pair[0], "arg_1": pair[1]} for n, pair in enumerate(sample["arguments"])}
    scores = task.scores(sample["doc"], sample["filtered_resps"])
    return sample | {"arguments": arguments, "scores": scores, "shots": fit.shots, "truncated": fit.truncated}
