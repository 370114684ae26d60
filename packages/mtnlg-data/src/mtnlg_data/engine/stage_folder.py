"""The folder of a step: the tasks that write into it, and the record of their output, ``stage.json``.

The record is written once the step is done. It has the step's name, its shards, the key of what it ran on, its summary,
and the size and modification time of every file that stays: while these agree, the step is not run again. A step that
takes the folder as input reads the record, not the list of files. A file that has a task's manifest but is not in the
record is removed after the record is written, here or by the next run, so no text stays of a source file that was taken
down. A file without a task's manifest is the user's own, and stays.
"""

from __future__ import annotations

import json
import os
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtnlg_data.console import Failure, say
from mtnlg_data.files import read_small, sync_directory, write_json

from .folder_lock import remove_partial_files
from .tasks import manifest_path, read_manifest, run_tasks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from .tasks import Engine, Summary, Task

RECORD, RECORD_BYTES = "stage.json", 1 << 28  # size limit: the record of a snapshot has some 100,000 names
RECIPE = "recipe.toml"  # in the folder of a run
STATE = "state"  # folder, in a step's folder, of files that it keeps for reruns
#: Folders of a step's records of dropped documents, of cuts in documents, and of the values of rules.
DROPPED, CUTS, VALUES = "dropped", "cuts", "values"
#: Suffixes of outputs that hold documents or tokens; other outputs, such as a classifier, stay, since others use them.
DOCUMENT_SUFFIXES = {".parquet", ".bin", ".idx", ".crc"}


@dataclass(frozen=True)
class StageRecord:
    """The output of a finished step."""

    stage: str
    shards: list[str] | None  # names, sorted; None where it leaves token stores, whose list is ``blend.json``
    key: str = ""  # of its inputs, settings and code
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, list[int]] = field(default_factory=dict)  # name → size and modification time

    def shard_paths(self, folder: Path) -> list[Path]:
        """Paths of its shards, of which some may have been removed since."""
        return [folder / name for name in self.shards or ()]


class StageFolder:
    """The folder of a running step; ``shards`` are the names of the shards that it has written."""

    def __init__(self, path: Path, stage: str, engine: Engine) -> None:
        """Open the folder for this step. Raises ``Failure`` if it holds the output of another step."""
        self.path = path
        self.state = path / STATE
        self.shards: Sequence[str] | None = ()
        self._engine = engine
        self._outputs: set[Path] = set()
        self._record = read_record(path) or StageRecord(stage, [])
        if self._record.stage != stage:
            raise Failure(
                f"{path}: holds the output of the stage {self._record.stage}, which would be replaced; "
                "give another --out"
            )

    def run(self, tasks: Sequence[Task], label: str, *, scratch: bool = False) -> list[Summary]:
        """Run tasks of the step, as ``run_tasks`` does; ``scratch`` outputs are removed at the end."""
        summaries = run_tasks(self._engine, tasks, label)
        if not scratch:
            for task, summary in zip(tasks, summaries, strict=True):
                self._outputs.update(
                    task.output.parent / name for name in (task.output.name, *summary.get("files", ()))
                )
        return summaries

    def finished(self, key: str) -> Summary | None:
        """The summary of the step, if it ran with this key and its files are unchanged since; else None."""
        files = self._stats() if self._record.key == key else {}
        if self._record.key != key or any(files.get(name) != stats for name, stats in self._record.files.items()):
            return None
        self._remove_unlisted()  # files of a killed run
        return dict(self._record.summary)

    def finish(self, summary: Summary, key: str = "") -> None:
        """Record that the step is done, and remove outputs of tasks that it did not run or skip as finished.

        Partial files go too: those of a worker that died, whose task another has done.
        """
        remove_partial_files(self.path)
        gone = [path for path in self._found() if path not in self._outputs and read_manifest(path) is not None]
        going = {file.relative_to(self.path).as_posix() for path in gone for file in (path, manifest_path(path))}
        files = {name: stats for name, stats in self._stats().items() if name not in going}
        shards = None if self.shards is None else sorted(self.shards)
        self._write(StageRecord(self._record.stage, shards, key, summary, files))

    def release(self, shards: Collection[Path]) -> None:
        """Remove these shards and all state; manifests of shards stay, so rerunning a finished run does nothing."""
        files = {
            name: stats
            for name, stats in self._record.files.items()
            if not name.startswith(f"{STATE}/") and self.path / name not in shards
        }
        if files != self._record.files:
            self._write(replace(self._record, files=files))

    def clear(self) -> None:
        """Remove an earlier output of the step, which has no input now, and the folder if it is empty then."""
        if read_record(self.path) is None:
            return
        self._write(StageRecord(self._record.stage, []))
        (self.path / RECORD).unlink()  # last: as long as it exists, a killed run resumes
        for folder, _, _ in os.walk(self.path, topdown=False):
            with suppress(OSError):  # not empty: a classifier, or files of the user
                Path(folder).rmdir()

    def _write(self, record: StageRecord) -> None:
        self._record = record
        write_json(self.path / RECORD, asdict(record))
        self._remove_unlisted()

    def _remove_unlisted(self) -> None:
        """Remove files that have a manifest but are not in the record, and manifests that are not in it either."""
        listed = {self.path / name for name in self._record.files}
        gone = [path for path in self._found() if path not in listed and read_manifest(path) is not None]
        for path in gone:
            path.unlink(missing_ok=True)
        for folder in {path.parent for path in gone}:
            sync_directory(folder)  # before the manifests, by which the next run finds the files of a killed one
        stale = [path for path in gone if manifest_path(path) not in listed]
        for path in stale:
            manifest_path(path).unlink()
        if removed := sum(path.parent == self.path for path in stale):
            say(f"{self.path}: removed {removed} files of inputs or settings that are gone")

    def _found(self) -> Iterator[Path]:
        """Files, existing or removed, that have a manifest: documents in the folder, records of them, all its state."""
        for folder in (self.path, *(self.path / name for name in (DROPPED, CUTS, VALUES))):
            outputs = (path.with_suffix("") for path in folder.glob("*.json"))
            yield from (path for path in outputs if path.suffix in DOCUMENT_SUFFIXES)
        yield from (path.with_suffix("") for path in self.state.rglob("*.json"))

    def _stats(self) -> dict[str, list[int]]:
        """Size and modification time of every file: enough to see a change since the step finished."""
        paths = {path.relative_to(self.path).as_posix(): path for path in sorted(self.path.rglob("*"))}
        return {
            name: [path.stat().st_size, path.stat().st_mtime_ns]
            for name, path in paths.items()
            if name != RECORD and not f"/{name}".count("/.") and path.is_file()
        }


def read_record(folder: Path) -> StageRecord | None:
    """The record of the step that finished in a folder; None if there is none."""
    try:
        record = StageRecord(**json.loads(read_small(folder / RECORD, RECORD_BYTES)))
        names_are_plain = all("/" not in name for name in record.shards or ())
    except (OSError, ValueError, TypeError):
        return None
    return record if names_are_plain else None


def stage_folders(folder: Path) -> list[tuple[Path, StageRecord]]:
    """The finished stages in the folder of a run, in the order of its recipe's steps; by name without a recipe."""
    paths = sorted(path for path in folder.iterdir() if path.is_dir())
    stages = [(path, record) for path in paths if (record := read_record(path)) is not None]
    try:
        steps = tomllib.loads(read_small(folder / RECIPE).decode()).get("steps")
    except (FileNotFoundError, ValueError):
        steps = None
    if not isinstance(steps, list):
        return stages
    return sorted((stage for stage in stages if stage[1].stage in steps), key=lambda stage: steps.index(stage[1].stage))


def listed_shards(folder: Path) -> list[Path] | None:
    """The shards of a stage's folder, by its record; None if the folder is not that of a stage.

    Raises ``Failure`` if the stage has not finished, left no shards, or a shard of the record is missing.
    """
    record = read_record(folder)
    if record is None:
        if any(read_manifest(path) is not None for path in folder.glob("*.parquet")):
            raise Failure(f"{folder}: its stage has not finished; run it again")
        return None
    if not record.shards:
        raise Failure(f"{folder}: the stage {record.stage} wrote no shards here; give the folder of another stage")
    shards = record.shard_paths(folder)
    for shard in shards:
        if not shard.exists():
            raise Failure(f"{shard}: lost, or removed by --keep last; it is in {RECORD}: run the stage again")
    return shards
