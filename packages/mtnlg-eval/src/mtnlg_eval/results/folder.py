"""The results in an evaluation's folder, ``--out``: one file per result, so commands add files and overwrite none.

    OUT/results/<name>.json     one result (result.py)
    OUT/samples/<name>.jsonl    its rows: prompts, loglikelihoods, scores, right or wrong, shots shown
    OUT/not_run/<task>.json     why a task could not run when it was last asked for
    OUT/results.json            all results, in lm-eval's schema with an entry per result; built from the files above

Files are written atomically. Commands may run concurrently: each rebuilds results.json, one after another.
"""

from __future__ import annotations

import fcntl
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from mtnlg_eval.records import Record, parse_record
from mtnlg_eval.tasks.published import task_order
from mtnlg_model.files import open_to_update, read_small, write_json, write_text

from .compare import compared, group_means, group_runs
from .result import Result

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

T = TypeVar("T", bound=Record)
VERSION = 3
LM_EVAL_SECTIONS = ("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples")


class Gap(Record):
    """Why a task could not run."""

    task: str
    why: str
    checkpoint: str


class ResultFolder:
    """Reads and adds to the results of one folder."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def add(self, result: Result, samples: Iterable[str]) -> Result:
        """Store a result with the lines of its samples.

        Returns the stored result: if only the provenance differs, that is the earlier one.
        """
        path = self.out / "results" / f"{result.name}.json"
        with suppress(FileNotFoundError, ValidationError):
            earlier = Result.model_validate_json(read_small(path))
            if (
                earlier.model_copy(update={"provenance": result.provenance}) == result
                and self.samples(earlier).exists()
            ):
                return earlier
        write_text(self.samples(result), "".join(f"{line}\n" for line in samples))
        write_json(path, result.model_dump())
        return result

    def samples(self, result: Result) -> Path:
        """The file with the samples of a result."""
        return self.out / "samples" / f"{result.name}.jsonl"

    def add_gap(self, task: str, why: str, checkpoint: str) -> None:
        """Store the reason why a task could not run on a checkpoint."""
        write_json(self._gap(task), {"task": task, "why": why, "checkpoint": checkpoint})

    def clear_gap(self, task: str) -> None:
        """Remove the reason why a task could not run."""
        self._gap(task).unlink(missing_ok=True)

    def _gap(self, task: str) -> Path:
        return self.out / "not_run" / f"{task}.json"

    def results(self) -> list[Result]:
        """Every result: by checkpoint, then by task in the paper's order, style, shots, seed and date."""
        return sorted((_read(path, Result) for path in (self.out / "results").glob("*.json")), key=_order)

    def gaps(self) -> list[Gap]:
        """Tasks that could not run, each with the reason."""
        found = []
        for path in sorted((self.out / "not_run").glob("*.json")):
            with suppress(FileNotFoundError):  # of a task that another command has run since
                found.append(_read(path, Gap))
        return found

    def collect(self) -> None:
        """Write results.json if it changes; if commands run concurrently, the last one writes the results of all."""
        path = self.out / "results.json"
        with open_to_update(self.out / ".results.lock") as lock:
            with suppress(OSError):  # file systems without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            text = json.dumps(collected(self.results(), self.gaps()), indent=2, ensure_ascii=False) + "\n"
            if not path.exists() or read_small(path) != text.encode():
                write_text(path, text)


def collected(results: Iterable[Result], gaps: Iterable[Gap]) -> dict[str, Any]:
    """The content of results.json: lm-eval's sections, each keyed by result, and our own records under ``scores``.

    ``comparison`` has the runs side by side, with means over seeds, ``groups`` the means of lm-eval's groups for each.
    """
    results = list(results)
    runs = group_runs(results)
    sections: dict[str, Any] = {section: {} for section in LM_EVAL_SECTIONS}
    scores: dict[str, Any] = {}
    for result in results:
        for section in LM_EVAL_SECTIONS:
            sections[section][result.name] = result.lm_eval[section]
        scores[result.name] = result.model_dump(exclude={"lm_eval", "values", "clusters", "version"}) | {
            "interval_95": list(result.estimate[1:])
        }
    groups = {run.label: group_means(run.results) for run in runs}
    sides = {"groups": groups, "comparison": compared(runs) if runs else []}
    return {"version": VERSION, **sections, "scores": scores, **sides, "not_run": [gap.model_dump() for gap in gaps]}


def _read(path: Path, kind: type[T]) -> T:
    return parse_record(read_small(path), kind, str(path), "remove it and score the task again")


def _order(result: Result) -> tuple[object, ...]:
    model, shots = result.model, result.shots
    by_task = task_order(result.task), result.style, shots.count, shots.asked, shots.seed or 0
    return model.tokens, model.digest, by_task, result.provenance.date, result.name
