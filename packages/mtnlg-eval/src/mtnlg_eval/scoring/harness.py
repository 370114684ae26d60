"""An evaluation: tasks x numbers of shots, each through ``lm_eval.evaluate``, and the files that tell of it.

    OUT/scores.sqlite                   every answer as it comes (store.py): the same command again goes on from here
    OUT/samples/<task>_<shots>.jsonl    a document a line: prompts, loglikelihoods, scores, right or wrong, shots shown
    OUT/results.json                    lm-eval's schema; an entry is <task>_<shots>
    OUT/summary.json                    what the report reads

No file but summary.json, which holds the seconds of the run that scored, depends on when or how often it was run.
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

from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.utils import handle_non_serializable

from mtnlg_eval.tasks.paper_task import PAPER, SEED
from mtnlg_eval.tasks.published import TASKS
from mtnlg_eval.tasks.shots import ANY
from mtnlg_eval.tasks.sources import hub_texts
from mtnlg_model.console import Failure, progress, say
from mtnlg_model.files import write_json, write_text

from .open_model import subject

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_eval.tasks.paper_task import PaperTask
    from mtnlg_eval.tasks.shots import Choice
    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.console import Advance

    from .decoder_lm import DecoderLM

FEW = {task.name: task.few for task in TASKS}
"""K of the few-shot columns, by task."""

BY_TASK = ("results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples")
"""The parts of lm-eval's results that go by task."""


def task_manager(data: Path | None, style: str = PAPER) -> TaskManager:
    """lm-eval's manager over our nine tasks alone: to index its own takes it longer than a whole small evaluation."""
    metadata = {"style": style} | ({"rows_from": str(data)} if data else {})
    return TaskManager(include_path=Path(__file__).parents[1] / "tasks", include_defaults=False, metadata=metadata)


def texts_from_hub(task: str) -> Iterator[tuple[str, str]]:
    """Id and text of all that a task's scored rows on the hub say."""
    return hub_texts(task_manager(None).task_index[task].cfg)


class Evaluation:
    """Tasks by name at each of ``shots`` (numbers, or "few" for the paper's K), on the first ``limit`` rows if given.

    ``choice`` says which rows may be shots (HANS alone knows others than any), ``style`` whose prompts and scores.

    Whatever keeps a task from running ends up in ``not_run``, and the others go on.
    """

    def __init__(
        self,
        names: Sequence[str],
        shots: Sequence[str],
        data: Path | None,
        limit: int | None = None,
        *,
        choice: Choice = ANY,
        style: str = PAPER,
    ) -> None:
        """Read the rows of every task, from the folder ``data`` or from the hub; ``Failure`` where no task has any."""
        self.choice, self.style = choice, style
        self.shots, self.limit, self.rows_from = tuple(shots), limit, str(data) if data else "hub"
        self.not_run: list[dict[str, str]] = []
        self.scores: dict[str, dict[str, dict[str, Any]]] = {}
        self.results: dict[str, Any] = {part: {} for part in BY_TASK}
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
        """Score everything, each task's samples being written under ``out`` as it ends."""
        self._tell_gaps()
        # Until this run has ended samples/ is of two runs, and nothing may take it for one.
        (out / "results.json").unlink(missing_ok=True)
        total = sum(task.requests(self.limit) for task in self.tasks.values()) * len(self.shots)
        with progress("scoring", total, "requests") as advance:
            for name, task in self.tasks.items():
                task.bind(lm)
                try:
                    cut = [self._score(lm, name, asked, out, advance) for asked in self.shots]
                except Failure as failure:
                    self._skip(name, failure)
                    say(f"{name}: not run: {failure}")
                    continue
                if rows := list(dict.fromkeys(row for rows in cut for row in rows)):
                    told = f"{len(rows)} rows are longer than the context of {lm.max_length} tokens"
                    say(f"{name}: {told} and lose their beginning, the first {rows[0]}")

    def write(self, lm: DecoderLM, checkpoint: Checkpoint, out: Path, seconds: float) -> dict[str, Any]:
        """Write results.json and summary.json, remove the samples of other runs, and return the summary."""
        asked = subject(checkpoint)
        config = {
            "model": "mtnlg",
            "model_args": {
                "checkpoint": asked["checkpoint"],
                "digest": asked["digest"],
                "step": checkpoint.progress.step,
            },
            "model_num_parameters": checkpoint.config.parameters,
            "model_dtype": lm.precision,
            "limit": self.limit,
            "fewshot_seed": SEED,
            "shots": asdict(self.choice),
            "prompt_style": self.style,
        }
        about = {"config": config, "lm_eval_version": version("lm_eval"), "max_length": lm.max_length}
        write_json(out / "results.json", self.results | about | {"eot_token_id": lm.eot_token_id})
        for path in (out / "samples").glob("*.jsonl"):
            if path.stem not in self.results["results"]:
                path.unlink()
        summary = {
            "version": 1,
            **asked,
            "tasks": self.scores,
            "not_run": self.not_run,
            "seconds": round(seconds, 3),
            "rows_from": self.rows_from,
            "prompt_style": self.style,
        }
        path = out / "summary.json"
        before: dict[str, Any] = {}
        with suppress(FileNotFoundError, ValueError):
            before = json.loads(path.read_bytes())
        if json.loads(json.dumps(summary)) == before | {"seconds": summary["seconds"]}:
            return before  # a rerun that finds everything done changes no byte
        write_json(path, summary)
        return summary

    def _score(self, lm: DecoderLM, name: str, asked: str, out: Path, advance: Advance) -> list[str]:
        """Score one task at one number of shots; returns the ids of the rows that do not fit the context."""
        entry, task = f"{name}_{asked}", self.tasks[name]
        lm.scored = partial(advance, note=f"{name} {asked}")
        task.ask(FEW[name] if asked == "few" else int(asked), self.choice)
        told = evaluate(lm, {"tasks": {entry: task}}, limit=self.limit, bootstrap_iters=1)
        return self._collect(name, asked, told, out / "samples" / f"{entry}.jsonl")

    def _tell_gaps(self) -> None:
        """Say which tasks have no sound rows, and which pools have some that are not."""
        for gap in self.not_run:
            say(f"{gap['task']}: not run: {gap['why']}")
        for name, task in self.tasks.items():
            if left_out := task.rows.left_out:
                say(f"{name}: {len(left_out)} malformed rows give no shots, the first {left_out[0]}")

    def _skip(self, name: str, why: Failure) -> None:
        """Note that a task could not run; what it had scored before does not count."""
        self.scores.pop(name, None)
        for asked, part in ((asked, part) for asked in self.shots for part in BY_TASK):
            self.results[part].pop(f"{name}_{asked}", None)
        self.not_run.append({"task": name, "why": str(why)})

    def _collect(self, name: str, asked: str, told: dict[str, Any], samples_to: Path) -> list[str]:
        """Take over what lm-eval tells of one task at one number of shots."""
        entry, task = samples_to.stem, self.tasks[name]
        told["configs"][entry]["metadata"].pop("config_source", None)  # a path of this machine
        for part in BY_TASK:
            self.results[part] |= told[part]
        samples = [_sample(task, n, sample) for n, sample in enumerate(told["samples"][entry])]
        lines = (json.dumps(sample, ensure_ascii=False, default=handle_non_serializable) for sample in samples)
        write_text(samples_to, "".join(f"{line}\n" for line in lines))
        accuracy, error = (told["results"][entry][f"{metric},none"] for metric in ("acc", "acc_stderr"))
        cut = [sample["doc"]["id"] for sample in samples if sample["truncated"]]
        self.scores.setdefault(name, {})[asked] = {
            "metric": "acc",
            "value": accuracy,
            "stderr": None if error == "N/A" else error,
            "documents": len(samples),
            "shots_used": mean(shown.shots for shown in task.shown),
            "shots_used_min": min(shown.shots for shown in task.shown),
            "truncated": len(cut),
        }
        return cut


def _sample(task: PaperTask, number: int, sample: dict[str, Any]) -> dict[str, Any]:
    """lm-eval's record of a document as its own tracker writes it, with scores and shots; numbers stay numbers."""
    shown = task.shown[number]
    asked = {f"gen_args_{n}": {"arg_0": pair[0], "arg_1": pair[1]} for n, pair in enumerate(sample["arguments"])}
    scores = task.scores(sample["doc"], sample["filtered_resps"])
    return sample | {"arguments": asked, "scores": scores, "shots": shown.shots, "truncated": shown.truncated}
