"""The Ray engine: workers of a Ray cluster, over a folder that all machines share.

Without a cluster, Ray is started on this machine. Ray carries units to workers and summaries back; documents go through
the folder. A worker that dies with its machine is replaced and its unit run again, which is safe: a unit writes aside
and renames.
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

OBJECT_STORE_BYTES = 100_000_000  # Ray's minimum is 75 MiB; only units and summaries pass through it


class Ray:
    """An engine on the cluster of RAY_ADDRESS or of this machine, or else on one started here with ``workers`` CPUs."""

    task = (0, 1)

    def __init__(self, workers: int | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send nothing anywhere
        os.environ.setdefault("RAY_task_oom_retries", "3")  # Ray's default is to retry for ever
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # report the first error, as with any engine
        options: dict[str, Any] = {
            "runtime_env": {"env_vars": ONE_THREAD},
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        }
        try:
            ray.init("auto", **options)
        except ConnectionError:
            ray.init(
                "local", num_cpus=workers, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **options
            )
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self.workers = workers or int(resources.get("CPU", 1))
        self._run: Any = ray.remote(_run_in_folder)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        ray.shutdown()

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """Yield units as they finish. Raises ``Failure`` where the workers of a unit keep dying."""
        waiting = iter(units)
        folder = Path.cwd()
        running = {self._run.remote(folder, function, unit): unit for unit in islice(waiting, self.workers)}
        try:
            while running:
                (done,), _ = ray.wait(list(running))
                unit = running.pop(done)
                summary = _result(done, unit)
                running.update({self._run.remote(folder, function, next_): next_ for next_ in islice(waiting, 1)})
                yield unit, summary
        finally:
            for reference in running:
                ray.cancel(reference)


def _result(reference: Any, unit: U) -> Summary:  # noqa: ANN401  (ray.ObjectRef)
    try:
        return cast("Summary", ray.get(reference))
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        line = str(error).partition("\n")[0]
        raise Failure(f"{unit.output}: its worker died again and again: {line}") from None


def _run_in_folder(folder: Path, function: Callable[[U], Summary], unit: U) -> Summary:
    """Run a unit in the driver's working directory, so that its relative paths mean the same files."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror} on {os.uname().nodename}; Ray needs a folder that all see") from None
    return function(unit)
