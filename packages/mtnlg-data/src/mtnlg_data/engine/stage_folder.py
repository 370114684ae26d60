"""The folder of a stage: the tasks that write into it, the list of its shards, and nothing of inputs that are gone.

A finished stage leaves ``stage.json``, which names its shards. Whoever takes the folder as input reads that list, not
what happens to lie there. Outputs of tasks that are no longer part of the stage are removed when it finishes: of a
source file that was taken down, no text stays. A file without a task's manifest is the user's own, and stays.
"""

from __future__ import annotations

import json
import os
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.console import Failure, say
from mtnlg_data.files import read_small, sync_directory, write_json

from .tasks import manifest_path, read_manifest, run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .tasks import Engine, Summary, Task

LIST, LIST_BYTES = "stage.json", 1 << 28  # at most: that of a snapshot has some 100,000 names
RECIPE = "recipe.toml"  # in the folder of a run
ACCOUNT = "account.json"  # by which a run knows a finished stage (``pipeline``)
STATE = "state"  # folder of what a stage keeps for its reruns, in its own
DROPPED, CUTS = "dropped", "cuts"  # folders of its records of dropped documents, and of cuts in documents
#: Kinds of outputs that hold documents or their tokens; others, such as a classifier, stay for whoever refers to them.
DOCUMENT_SUFFIXES = {".parquet", ".bin", ".idx", ".crc"}


class StageList(NamedTuple):
    """What a finished stage left: the names of its shards, sorted; None where it leaves token stores."""

    stage: str
    shards: list[str] | None


class StageFolder:
    """The folder of a stage at work."""

    def __init__(self, path: Path, stage: str, engine: Engine) -> None:
        """Open the folder for this stage. Raises ``Failure`` where another one has left its output there."""
        self.path = path
        self.state = path / STATE
        self._stage = stage
        self._engine = engine
        self._outputs: set[Path] = set()
        self.stale: list[Path] = []
        if (left := read_list(path)) is not None and left.stage != stage:
            raise Failure(f"{path}: holds the output of the stage {left.stage}, which would go; give another --out")

    def run(self, tasks: Sequence[Task], label: str, *, scratch: bool = False) -> list[Summary]:
        """Run tasks of the stage, as ``run_tasks`` does; of ``scratch`` ones the outputs go at the end."""
        summaries = run_tasks(self._engine, tasks, label)
        if not scratch:
            for task, summary in zip(tasks, summaries, strict=True):
                self._outputs.update(
                    task.output.parent / name for name in (task.output.name, *summary.get("files", ()))
                )
        return summaries

    def clear(self) -> None:
        """Remove what the stage left here before, if it did, and the folder if that empties it: no input is left."""
        if read_list(self.path) is None:
            return
        self.finish(())
        self.remove_stale()
        for name in (ACCOUNT, LIST):  # the list last: where it is, a killed run goes on
            (self.path / name).unlink(missing_ok=True)
        for folder, _, _ in os.walk(self.path, topdown=False):
            with suppress(OSError):  # not empty: a classifier, or files of the user
                Path(folder).rmdir()

    def finish(self, shards: Iterable[Path] | None) -> None:
        """List these shards as the stage's result; ``stale`` are the outputs of tasks that are not part of the stage.

        None where the result is not shards but token stores, whose list is ``blend.json``.
        """
        left = StageList(self._stage, None if shards is None else sorted(shard.name for shard in shards))
        if read_list(self.path) != left:  # a list written again would look like a change
            write_json(self.path / LIST, left._asdict())
        self.stale = [path for path in self._found() if path not in self._outputs and read_manifest(path) is not None]

    def remove_stale(self) -> None:
        """Remove them, once the stage is known to be done: a killed run would make again what the stage handed on."""
        for path in self.stale:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in self.stale}:
            sync_directory(folder)  # before the manifests go, by which the next run finds what is left of a killed one
        for path in self.stale:
            manifest_path(path).unlink(missing_ok=True)
        if removed := sum(path.parent == self.path for path in self.stale):
            say(f"{self.path}: removed {removed} files of inputs or settings that are gone")

    def _found(self) -> Iterator[Path]:
        """What stands beside a manifest, or did: documents in the folder itself, records of them, all in its state."""
        for folder in (self.path, self.path / DROPPED, self.path / CUTS):
            outputs = (path.with_suffix("") for path in folder.glob("*.json"))
            yield from (path for path in outputs if path.suffix in DOCUMENT_SUFFIXES)
        if read_list(self.state) is None:  # else it is the folder of another stage
            yield from (path.with_suffix("") for path in self.state.rglob("*.json"))


def read_list(folder: Path) -> StageList | None:
    """What a stage has left in a folder; None where none has."""
    try:
        left = StageList(**json.loads(read_small(folder / LIST, LIST_BYTES)))
        names_are_plain = all("/" not in name for name in left.shards or ())
    except (OSError, ValueError, TypeError):
        return None
    return left if names_are_plain else None


def stage_folders(folder: Path) -> list[tuple[Path, StageList]]:
    """The finished stages in the folder of a run, in the order of its recipe's steps; by name without a recipe."""
    paths = sorted(path for path in folder.iterdir() if path.is_dir())
    stages = [(path, left) for path in paths if (left := read_list(path)) is not None]
    try:
        steps = tomllib.loads(read_small(folder / RECIPE).decode()).get("steps")
    except (FileNotFoundError, ValueError):
        steps = None
    if not isinstance(steps, list):
        return stages
    return sorted((stage for stage in stages if stage[1].stage in steps), key=lambda stage: steps.index(stage[1].stage))


def listed_shards(folder: Path) -> list[Path] | None:
    """The shards of a stage's folder, by its list; None where the folder is not that of a stage.

    Raises ``Failure`` where the stage has not finished yet, leaves no shards, or one of the list is missing.
    """
    left = read_list(folder)
    if left is None:
        if any(read_manifest(path) is not None for path in folder.glob("*.parquet")):
            raise Failure(f"{folder}: its stage has not finished; run it again")
        return None
    if not left.shards:
        raise Failure(f"{folder}: the stage {left.stage} left no shards here; give the folder of another")
    shards = [folder / name for name in left.shards]
    for shard in shards:
        if not shard.exists():
            raise Failure(f"{shard}: lost, or removed by --keep last; it is in the list {LIST}: run the stage again")
    return shards
