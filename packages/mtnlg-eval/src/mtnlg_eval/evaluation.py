"""Score a model on tasks: the function behind ``mtnlg-eval run`` and ``lm-eval``, and the checks of its arguments.

Nothing slow is imported until a model is scored, so that the command line starts fast.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtnlg_eval.tasks.published import TASKS_BY_NAME
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.local_paths import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Literal

    from mtnlg_eval.scoring.decoder_lm import DecoderLM
    from mtnlg_eval.scoring.open_model import ModelOptions, OpenedModel

TASK_NAMES = tuple(TASKS_BY_NAME)
OTHERS_FILES = ("manifest.json", "recipe.toml", "stage.json")
"""Files of checkpoints, runs and curations, by which a folder is told to be theirs."""


def evaluate(
    checkpoint: Path | str,
    out: Path | str,
    *,
    tasks: Sequence[str] | None = None,
    shots: Sequence[str] | None = None,
    data: Path | str | None = None,
    limit: float | None = None,
    style: Literal["paper", "gpt3"] = "paper",
    shot_source: Literal["any", "other_subcases"] = "any",
    shot_labels: Literal["drawn", "interleaved", "negative"] = "drawn",
    seeds: Sequence[int] = (1234,),
    include_path: Path | str | None = None,
    revisions: Mapping[str, str] | None = None,
    model_args: Mapping[str, Any] | None = None,
    lm_eval: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Score a model on ``tasks`` at each number of ``shots`` and return the scores.

    ``checkpoint`` is a checkpoint, a folder of them (the newest is scored), a Hugging Face folder or a hub id.
    ``tasks`` are names of the paper's tasks (by default all nine), of lm-eval's or of tasks in ``include_path``, or
    YAML files. ``shots`` are numbers or "few", a task's own K. Rows of the nine come from ``data`` or the hub at
    ``revisions``. ``model_args`` are fields of `ModelOptions`, such as a ``layout`` (tp=2,pp=2,dp=1) that shards the
    model; ``lm_eval`` has further fields of `TaskOptions`.

    Adds a file per result and its samples to ``out``, and builds ``out/results.json`` from all results there; none is
    overwritten. Called again after an interruption, it resumes. A task that cannot run is listed under ``not_run``.
    Raises ``UsageFailure`` for a wrong argument and ``Failure`` if no task can run. With several ranks, those other
    than 0 return an empty dictionary.
    """
    asked = dict(locals())  # arguments of the other ranks' calls
    names, folder = list(TASK_NAMES if tasks is None else tasks), None if data is None else Path(data)
    out = local_path(out)
    if taken := next((out / name for name in OTHERS_FILES if (out / name).exists()), None):
        raise UsageFailure(f"--out {out}: {taken} is of another command; give a folder for results, as {out / 'eval'}")
    if not names:
        raise UsageFailure(f"--tasks names no task; choose from {', '.join(TASK_NAMES)}, lm-eval's, or a YAML file")
    check_arguments(shots, seeds, folder)
    check_revisions(revisions or {}, names, folder)
    if (shot_source, shot_labels) != ("any", "drawn") and names != ["hans"]:
        raise UsageFailure("--shot-source and --shot-labels are modes of the HANS study; use them with --tasks hans")
    silence_lm_eval()

    from mtnlg_eval.scoring.cells import TaskOptions  # noqa: PLC0415  (slow to import)
    from mtnlg_eval.scoring.harness import Evaluation  # noqa: PLC0415  (slow to import)
    from mtnlg_eval.scoring.open_model import ModelOptions, open_model  # noqa: PLC0415  (slow to import)
    from mtnlg_eval.tasks.shots import ShotChoice  # noqa: PLC0415  (slow to import)

    options = ModelOptions.parse(model_args or {})
    model = open_model(checkpoint, options)
    settings = TaskOptions(
        data=folder,
        limit=limit,
        style=style,
        choice=ShotChoice(shot_source, shot_labels),
        revisions=revisions or {},
        include_path=None if include_path is None else Path(include_path),
        **(lm_eval or {}),
    )
    # Rows are read and checked before the model is loaded.
    evaluation = Evaluation(names, shots, settings, seeds)
    with model_on_ranks(model, options, out, "mtnlg_eval.evaluation:evaluate", asked) as lm:
        return evaluation.run(lm, out, options.layout)


@contextmanager
def model_on_ranks(
    model: OpenedModel, options: ModelOptions, out: Path, function: str, arguments: Mapping[str, Any]
) -> Iterator[DecoderLM]:
    """Load a model, with answers in ``out/scores.sqlite``; its rank 0 writes the results.

    With a layout, every rank calls ``function`` (MODULE:NAME) with the JSON ``arguments``.
    """
    from mtnlg_eval.scoring.open_model import open_lm  # noqa: PLC0415  (slow to import)

    store = Path(options.store or out) / "scores.sqlite"
    if options.layout is None:
        yield open_lm(model, store, options.batch_tokens)
        return
    check_parallel(f"--layout {options.layout}")
    from mtnlg_eval.sharded.ranks import all_ranks  # noqa: PLC0415  (an extra)

    with all_ranks(options.layout, model.config, function, arguments, out / "logs"):
        from mtnlg_eval.sharded.engine import open_sharded  # noqa: PLC0415  (an extra)

        with open_sharded(model, store, options) as lm:
            yield lm


def check_parallel(option: str) -> None:
    """Raise ``UsageFailure``, naming ``option``, if mtnlg-parallel is not installed."""
    if find_spec("mtnlg_parallel") is None:
        raise UsageFailure(f"{option}: needs the parallel engine: pip install 'mtnlg-eval[parallel]'")


def check_arguments(shots: Sequence[str] | None, seeds: Sequence[int], data: Path | None) -> None:
    """Raise ``UsageFailure`` for wrong numbers of shots or seeds, and ``Failure`` for a folder that does not exist."""
    for count in [""] if shots is not None and not shots else shots or ():
        if not re.fullmatch("few|0|[1-9][0-9]{0,3}", count):
            reason = "neither a number of examples up to 9,999 nor few"
            raise UsageFailure(f"--shots: {count[:20]!r} is {reason}; such as 0,1,few")
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageFailure(f"--seeds {','.join(map(str, seeds))}: pass different numbers, such as 1,2,3")
    if data is not None and not data.is_dir():
        raise Failure(f"{data}: no such folder")


def check_revisions(revisions: Mapping[str, str], tasks: Sequence[str], data: Path | None) -> None:
    """Raise ``UsageFailure`` unless ``revisions`` are of tasks to score whose rows come from a data set of the hub."""
    choices = [name for name in tasks if name in TASK_NAMES and name != "hans"]
    for task, revision in revisions.items():
        if not revision:
            raise UsageFailure(f"--revision {task}: needs TASK=COMMIT, such as boolq=3de24cf8022e")
        if task not in choices:
            reason = f"no such task with a data set on the hub; choose from {', '.join(choices)}"
            raise UsageFailure(f"--revision {task}={revision}: {reason}")
        if data:
            raise UsageFailure(f"--revision {task}={revision}: --data gives the rows; use only one of the two")


def silence_lm_eval() -> None:
    """Switch off progress bars, logs and warnings of lm-eval and its libraries; errors and our own progress remain.

    Must be called before lm_eval or datasets is imported: they read these variables at import.
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
