"""Score a checkpoint on the paper's tasks: the function behind ``mtnlg-eval run``, and the checks of its arguments.

Nothing slow is imported until a checkpoint is scored, so that the command line starts fast.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from typing import TYPE_CHECKING, Any

from mtnlg_eval.tasks.published import TASKS
from mtnlg_model.console import Failure, UsageFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Literal

TASK_NAMES = tuple(task.name for task in TASKS)
MOST = 10**9
"""Rows or tokens that an option takes, a bound for what is cut to as many as there are."""


def evaluate(
    checkpoint: Path,
    out: Path,
    *,
    tasks: Sequence[str] | None = None,
    shots: Sequence[str] = ("0", "1", "few"),
    data: Path | None = None,
    limit: int | None = None,
    style: Literal["paper", "gpt3", "lm_eval"] = "paper",
    layout: str | None = None,
    batch_tokens: int = 8192,
    shot_source: Literal["any", "other_subcases"] = "any",
    shot_labels: Literal["drawn", "interleaved", "negative"] = "drawn",
    seeds: Sequence[int] = (1234,),
    task_files: Sequence[Path] = (),
    revisions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Score a checkpoint on ``tasks`` at each number of ``shots`` and return the scores.

    ``tasks`` are names of the paper's, all nine by default; ``task_files`` are lm-eval YAMLs of one's own, which come
    alone unless ``tasks`` names others. ``revisions`` are commits, branches or tags of tasks' data sets on the hub.
    ``checkpoint`` is a checkpoint, a folder of them (the newest counts) or a Hugging Face folder; rows come from
    ``data`` or the hub; ``layout`` (tp=2,pp=2,dp=1) shards the model; other options are those of ``mtnlg-eval run``.
    Adds a file per result and its samples to ``out``, and makes ``out/results.json`` of all results there; none is
    overwritten. Called again after an interruption, it resumes.

    A task that cannot run is listed under ``not_run``. Raises ``UsageFailure`` for a wrong argument and ``Failure`` if
    no task can run. Under torchrun, ranks other than 0 return an empty dictionary.
    """
    if tasks is None:
        tasks = () if task_files else TASK_NAMES
    check_tasks(tasks, task_files)
    check_shots(shots)
    check_seeds(seeds)
    check_data(data)
    check_revisions(revisions or {}, tasks, data)
    if (shot_source, shot_labels) != ("any", "drawn") and list(tasks) != ["hans"]:
        raise UsageFailure("--shot-source and --shot-labels are modes of the HANS study; use them with --tasks hans")

    from mtnlg_eval.scoring.harness import Evaluation  # noqa: PLC0415  (slow to import)
    from mtnlg_eval.scoring.open_model import open_checkpoint, open_lm  # noqa: PLC0415  (slow to import)
    from mtnlg_eval.tasks.shots import ShotChoice  # noqa: PLC0415  (slow to import)

    opened = open_checkpoint(checkpoint, out)
    choice = ShotChoice(shot_source, shot_labels)
    # Rows are read and checked before the model is loaded.
    evaluation = Evaluation(
        tasks, shots, data, limit, choice=choice, style=style, seeds=seeds, files=task_files, revisions=revisions
    )
    with open_lm(opened, out, layout) as lm:
        if lm is None:
            return {}
        lm.batch_tokens = batch_tokens
        return evaluation.run(lm, opened, out, layout)


def check_tasks(names: Sequence[str], files: Sequence[Path] = ()) -> None:
    """Raise ``UsageFailure`` unless these are names of tasks, and there is one of them or a file."""
    if unknown := [name for name in names if name not in TASK_NAMES]:
        raise UsageFailure(f"--tasks: no task {', '.join(unknown)}; choose from {', '.join(TASK_NAMES)}")
    if not names and not files:
        raise UsageFailure(f"--tasks names no task; choose from {', '.join(TASK_NAMES)}")


def check_shots(shots: Sequence[str]) -> None:
    """Raise ``UsageFailure`` unless each is a number of examples, of four digits at most, or "few"."""
    for count in shots or [""]:
        if not re.fullmatch("few|0|[1-9][0-9]{0,3}", count):
            reason = "neither a number of examples up to 9,999 nor few"
            raise UsageFailure(f"--shots: {count[:20]!r} is {reason}; such as 0,1,few")


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise ``UsageFailure`` unless there are seeds, each once."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageFailure(f"--seeds {','.join(map(str, seeds))}: pass different numbers, such as 1,2,3")


def check_data(data: Path | None) -> None:
    """Raise ``Failure`` for a folder of rows that does not exist."""
    if data is not None and not data.is_dir():
        raise Failure(f"{data}: no such folder")


def check_revisions(revisions: Mapping[str, str], tasks: Sequence[str], data: Path | None) -> None:
    """Raise ``UsageFailure`` unless these are tasks to score whose rows come from a data set of the hub."""
    for task, revision in revisions.items():
        if task not in tasks or task == "hans":
            choices = ", ".join(name for name in tasks if name != "hans")
            raise UsageFailure(
                f"--revision {task}={revision}: no task with a data set of the hub; choose from {choices}"
            )
        if data:
            raise UsageFailure(f"--revision {task}={revision}: --data gives the rows; leave one of the two out")


def silence_lm_eval() -> None:
    """Switch off the progress bars, logs and warnings of lm-eval and its libraries; errors and our progress remain.

    Call it before lm_eval or datasets is imported: they read these variables at import.
    """
    os.environ |= {
        "TQDM_DISABLE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "critical",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "DATASETS_VERBOSITY": "critical",
    }
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Transformer Engine and Apex are not installed")  # nor are they needed
