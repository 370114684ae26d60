"""Engines run tasks: in processes of this machine, or on a Ray cluster.

A step passes its tasks to ``run_tasks`` together with an engine. What a task writes depends on its key alone, so the
engine and the workers may change in the middle of a run without changing a byte.
"""

from __future__ import annotations

from contextlib import closing
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from mtnlg_data.console import Failure, UsageFailure

from .folder_lock import lock_folder, make_folder
from .local import Local
from .stage_folder import CUTS, DROPPED, VALUES, StageFolder, StageRecord, listed_shards, read_record, stage_folders
from .tasks import Engine, Summary, Task, checksum, manifest_path, run_tasks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = [
    "CUTS",
    "DROPPED",
    "VALUES",
    "Engine",
    "EngineName",
    "Keep",
    "Local",
    "StageFolder",
    "StageRecord",
    "Summary",
    "Task",
    "checksum",
    "listed_shards",
    "lock_folder",
    "make_folder",
    "manifest_path",
    "open_engine",
    "read_record",
    "run_tasks",
    "stage_folders",
]

EngineName = Literal["local", "ray"]
Keep = Literal["all", "last"]  # which shards and state of a run's stages are kept


def open_engine(
    name: EngineName, workers: int | None = None, ray_address: str | None = None
) -> AbstractContextManager[Engine]:
    """An engine as a context manager, which closes it; ``workers`` None means one per core.

    ``ray_address`` is the address of a Ray cluster. Raises ``Failure`` if Ray is asked for but not installed.
    """
    if ray_address and name != "ray":
        raise UsageFailure(f"--ray {ray_address}: goes with --engine ray")
    if name == "local":
        return closing(Local(workers))
    if find_spec("ray") is None:
        raise Failure("--engine ray needs Ray: pip install 'mtnlg-data[ray]', or use --engine local")
    from .ray_cluster import Ray  # noqa: PLC0415  (an optional extra)

    return closing(Ray(workers, ray_address))
