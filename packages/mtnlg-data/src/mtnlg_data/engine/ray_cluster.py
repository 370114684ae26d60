"""The machines of a Ray cluster, over a folder that all of them see; without a cluster, one of this machine's cores.

Ray carries units to workers and summaries back; documents go through the folder. A worker that dies with its machine is
replaced and its unit run again, which is safe: a unit writes aside and renames.
"""

from __future__ import annotations

import logging
import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ray
from ray.exceptions import RayError, RayTaskError

from mtnlg_data.console import Failure

from .local import ONE_THREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .units import Summary, U

OBJECT_STORE = 100_000_000  # bytes: Ray's least is 75 MiB, and what goes through it here is small


class Ray:
    """The cluster that RAY_ADDRESS names or that runs on this machine, or one started here with so many workers."""

    part = (0, 1)

    def __init__(self, workers: int | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
        os.environ.setdefault("RAY_task_oom_retries", "3")  # Ray's own figure is no end of them
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the first is told, as with any engine
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        how: dict[str, Any] = {"runtime_env": {"env_vars": ONE_THREAD}, **quiet}
        started: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE, **how}
        try:
            ray.init("auto", **how)
        except ConnectionError:
            ray.init("local", num_cpus=workers, **started)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.workers = workers or int(resources.get("CPU", 1))
        self._run: Any = ray.remote(_run_at)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        ray.shutdown()

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """See ``Engine``."""
        waiting = iter(units)
        here = Path.cwd()
        running = {self._run.remote(here, function, unit): unit for unit in islice(waiting, self.workers)}
        try:
            while running:
                (done,), _ = ray.wait(list(running))
                unit = running.pop(done)
                summary = _gotten(done, unit)
                running.update({self._run.remote(here, function, next_): next_ for next_ in islice(waiting, 1)})
                yield unit, summary
        finally:
            for left in running:
                ray.cancel(left)


def _gotten(done: Any, unit: U) -> Summary:  # noqa: ANN401  (Ray's reference)
    try:
        return cast("Summary", ray.get(done))
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        line = str(error).partition("\n")[0]
        raise Failure(f"{unit.output}: its worker died again and again: {line}") from None


def _run_at(folder: Path, function: Callable[[U], Summary], unit: U) -> Summary:
    """Run a unit with its relative paths starting where they do for the one who started the run."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror} on {os.uname().nodename}; Ray needs a folder that all see") from None
    return function(unit)
