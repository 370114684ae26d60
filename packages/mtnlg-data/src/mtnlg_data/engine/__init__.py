"""Where units of work run: the processes of this machine, the machines of a Ray cluster, the tasks of a job array.

A stage hands its units to ``run_units`` with an engine and neither knows nor cares which it is. What a unit writes is
a function of its key alone, so engines, workers and tasks may change in the middle of a run and move no byte.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from mtnlg_data.console import Failure

from .job_array import Claims, Sharded, at_work_in
from .local import Local
from .units import Engine, Summary, U, Unit, checksum, finished, key_of, manifest_path, noted, run_units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .ray_cluster import Ray

__all__ = [
    "Claims",
    "Engine",
    "EngineName",
    "Local",
    "Sharded",
    "Summary",
    "U",
    "Unit",
    "at_work_in",
    "checksum",
    "engine_named",
    "finished",
    "key_of",
    "manifest_path",
    "noted",
    "run_units",
]

EngineName = Literal["local", "ray"]


@contextmanager
def engine_named(name: EngineName, workers: int | None = None) -> Iterator[Engine]:
    """The engine of this name, up until the end of the block; ``None`` workers are all the cores that there are.

    Raises ``Failure`` where Ray is wanted and not installed.
    """
    match name:
        case "local":
            engine: Local | Ray = Local(workers)
        case "ray":
            if find_spec("ray") is None:
                raise Failure("--engine ray needs Ray: pip install 'mtnlg-data[ray]', or take --engine local")
            from .ray_cluster import Ray  # noqa: PLC0415  (an extra: only where it is asked for)

            engine = Ray(workers)
    try:
        yield engine
    finally:
        engine.close()
