"""lm-eval's own tasks: any by its name, a YAML file or a folder of them.

Prompts, shots, scores and metrics are the installed lm-eval's, from its own YAML, but a scored row is never among its
own shots. A prompt that is too long loses its beginning, including shots.

A task's YAML is data: its templates run in `Sandbox`. Code that it names, by ``!function`` or as a metric to fetch,
runs only if the user trusts it; code that is installed with lm-eval is trusted.
"""

from __future__ import annotations

import random
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval.tasks
import numpy as np
from lm_eval.api import task as lm_eval_task
from lm_eval.api.registry import METRIC_REGISTRY
from lm_eval.api.samplers import ContextSampler
from lm_eval.tasks import TaskManager, _yaml_loader
from lm_eval.tasks._yaml_loader import load_yaml

from mtnlg_eval.hub import reach_hub
from mtnlg_model.console import Failure, UsageFailure, say
from mtnlg_model.files import regular
from mtnlg_model.settings import did_you_mean

from .published import TASKS_BY_NAME
from .sandbox import sandboxed_templates
from .sources import TaskRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lm_eval.api.task import Task

    from .rows import Document

LM_EVAL = "lm_eval"
"""Style of the results of lm-eval's own tasks."""


@cache
def lm_eval_manager(include_path: str | None, defaults: bool) -> TaskManager:
    """lm-eval's task manager, with its own tasks (takes some seconds to load) or without."""
    return TaskManager(include_path=include_path, include_defaults=defaults)


@contextmanager
def installed_code_alone() -> Iterator[None]:
    """Make a task raise ``Failure`` during the block if it names code that is not installed with lm-eval."""
    installed = [Path(str(lm_eval.tasks.__file__)).parent, Path(__file__).parent]
    find, get = _yaml_loader._import_func_in_yml, lm_eval_task.get_metric  # noqa: SLF001  (lm-eval has no public hooks)

    def find_installed(name: str, folder: Path) -> Callable[..., Any]:
        if not any(folder.is_relative_to(each) for each in installed):
            raise Failure(f"{folder}: !function {name} runs code; pass --trust-task-code if you trust its author")
        function: Callable[..., Any] = find(name, folder)
        return function

    def get_installed(name: str, fetched: bool = False) -> Callable[..., Any] | None:
        if fetched or name not in METRIC_REGISTRY:
            raise Failure(f"metric {name} is downloaded code; pass --trust-task-code if you trust its author")
        metric: Callable[..., Any] | None = get(name)
        return metric

    _yaml_loader._import_func_in_yml, lm_eval_task.get_metric = find_installed, get_installed  # noqa: SLF001
    try:
        yield
    finally:
        _yaml_loader._import_func_in_yml, lm_eval_task.get_metric = find, get  # noqa: SLF001


@sandboxed_templates()
def load_lm_eval_tasks(
    name: str, include_path: Path | None = None, *, trusted: bool = False
) -> tuple[dict[str, Task], dict[str, list[str]]]:
    """Load an lm-eval task, group or tag by name, or a YAML file: the tasks, and the names of each group's tasks.

    Code that a task brings runs only if it is ``trusted``. Raises ``UsageFailure`` for an unknown name and ``Failure``
    for a task that cannot be loaded.
    """
    random.seed(0)
    np.random.seed(1234)  # noqa: NPY002  (what lm-eval's tasks draw from)
    place = str(include_path) if include_path else None
    is_file = name.endswith((".yaml", ".yml"))
    manager = lm_eval_manager(place, defaults=False)
    if not is_file and name not in manager.task_index:
        manager = lm_eval_manager(place, defaults=True)
        if name not in manager.task_index:
            hint = did_you_mean(name, [*TASKS_BY_NAME, *manager.task_index])
            raise UsageFailure(f"--tasks: no task {name}; {hint}`lm-eval ls tasks` lists lm-eval's")
        if (cloze := f"{name}_continuation") in manager.task_index:
            say(f"{name}: lm-eval has a cloze form, {cloze}; if scored too, the page shows both")
    reach_hub()
    try:
        with nullcontext() if trusted else installed_code_alone():
            loaded = manager.load([_read_config(Path(name)) if is_file else name])
    except Failure:
        raise
    except Exception as error:  # noqa: BLE001  (lm-eval, datasets and templates raise errors of many libraries)
        reason = next(iter(str(error).splitlines()), "")
        if mark := getattr(error, "problem_mark", None):  # of YAML
            reason = f"line {mark.line + 1}, column {mark.column + 1} of {mark.name}: {vars(error)['problem']}"
        raise Failure(f"not a task that lm-eval can load: {type(error).__name__}: {reason}") from None
    tasks: dict[str, Task] = loaded["tasks"]
    groups = {group.name: [task.task_name for task in group.get_all_tasks()] for group in loaded["groups"].values()}
    if not is_file and name not in tasks:
        groups.setdefault(name, list(tasks))  # a tag
    return tasks, groups


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise Failure(f"{path}: no such file")
    config: dict[str, Any] = load_yaml(regular(path))
    if not isinstance(config.get("task"), str):
        raise UsageFailure(
            f"{path}: task = {config.get('task')!r}: needs one name; a group: --include-path and its name"
        )
    return config


def lm_eval_rows(task: Task) -> TaskRows:
    """The rows of a task that lm-eval has read."""
    config, pool = task.config, getattr(getattr(task, "sampler", None), "df", ())
    scored = config.test_split or config.validation_split
    return TaskRows(task.eval_docs, pool, str(scored), str(config.fewshot_split or config.training_split or scored))


class OwnShots(ContextSampler):  # type: ignore[misc]  # lm-eval carries no types
    """lm-eval's sampler of a task, with another row drawn instead of the scored one.

    lm-eval itself excludes the scored row only if the pool is the test split.
    """

    def __init__(self, sampler: ContextSampler) -> None:
        self._sampler, self._spares = copy(sampler), count()
        self.scored: Document = {}
        self.drawn: list[Document] = []

    def sample(self, n: int, *args: Any, **options: Any) -> Sequence[Document]:  # noqa: ANN401  (lm-eval's signature)
        """Draw ``n`` shots for the row ``scored``, or all if there are fewer."""
        drawn: list[Document] = list(self._sampler.sample(n, *args, **options))
        spare = random.Random(next(self._spares))  # so that lm-eval's own state is unchanged
        if self.scored in drawn:
            others = [row for row in self._sampler.fewshot_docs() if row != self.scored and row not in drawn]
            kept = [row for row in drawn if row != self.scored]
            drawn = kept + spare.sample(others, min(n - len(kept), len(others)))
        self.drawn = drawn
        return drawn

    def set_rnd(self, rnd: int | None) -> ContextSampler:
        """Seed the draws."""
        return self._sampler.set_rnd(rnd)


def _context_of(task: Task, doc: Document, *args: Any, **options: Any) -> Any:  # noqa: ANN401  (lm-eval's signature)
    task.sampler.scored = doc
    return type(task).fewshot_context(task, doc, *args, **options)


def with_shots(task: Task, shots: int, seed: int) -> Task:
    """A copy of an lm-eval task with ``shots`` shots, or all if there are fewer, drawn with ``seed``."""
    made = copy(task)
    made._config = copy(task.config)  # noqa: SLF001  (Task's own)
    if hasattr(task, "sampler"):
        split = task.fewshot_cfg.split  # lm-eval draws one more if it excludes the scored row
        pool = len(task.sampler.df) - (split is not None and split == task.config.test_split)
        made.sampler = OwnShots(task.sampler)
        made.fewshot_context = partial(_context_of, made)
        shots = min(shots, pool) if shots else 0
    made.set_config("num_fewshot", shots)
    made.set_fewshot_seed(seed)
    if (options := task.get_config("generation_kwargs")) and (options.get("do_sample") or options.get("temperature")):
        made.set_config("generation_kwargs", {**options, "seed": options.get("seed", seed)})
    return made
