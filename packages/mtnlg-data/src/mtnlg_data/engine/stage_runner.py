"""Stages one after another: which of them are finished, and what of the earlier ones may go.

A finished stage leaves ``account.json``: the key of its inputs, settings and code, its summary, and size and
modification time of its files. While these agree the stage is not run again.

With ``keep = "last"`` the shards that a stage has read go when it has finished, and so does the ``state`` of the stages
before it; after a stage that need not run they wait for the next one that runs, which may need a stage before to run
again. Their manifests stay, so a finished run still does nothing; the account names what was removed before it is,
so a kill in between costs nothing. Where a changed setting needs removed shards again, the stages that made them run
again first.
"""

from __future__ import annotations

import json
import time
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from mtnlg_data.console import Failure, say
from mtnlg_data.files import read_small, write_json
from mtnlg_data.tally import say_summary

from .code_digest import code_digest
from .stage_folder import ACCOUNT, STATE
from .units import checksum, key_of, manifest_path

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from . import Keep
    from .units import Summary


class RemovedInputs(Exception):  # noqa: N818  (caught by who runs the stages: they are to run once more)
    """A stage must run, and shards that it reads were removed; those that made them will run again."""


class StageRunner:
    """Runs stages one after another, skips those that are finished, and collects their summaries."""

    def __init__(
        self, out: Path, stages: Mapping[str, Callable[..., Summary]], folders: Mapping[str, str], keep: Keep
    ) -> None:
        self.out = out
        self.summaries: list[Summary] = []
        self._stages = stages
        self._folders = folders
        self._keep = keep
        self._results: list[tuple[Path, Path]] = []  # account and folder of the results of each stage so far
        self._releases: list[tuple[Path, Path, set[Path]]] = []  # arguments of ``_release``

    def folder(self, name: str) -> Path:
        """The folder of a stage."""
        return self.out / self._folders[name]

    def run(
        self,
        name: str,
        shards: Sequence[Path],
        inputs: object,
        stage: Callable[[Path], Summary],
        *,
        passing: Collection[Path] = (),
        results: Path | None = None,
    ) -> Path:
        """Run a stage unless it has finished on these shards and further ``inputs``; returns its folder.

        ``passing`` are shards that the next stage reads too, ``results`` the folder of its output, if that is another.
        Raises ``RemovedInputs`` where it must run and some of the shards are gone.
        """
        folder = self.folder(name)
        account, results = folder / ACCOUNT, results or folder
        digest = code_digest(self._stages[name].__module__)
        key = key_of(digest, [(shard.name, checksum(shard)) for shard in shards], inputs)
        summary = _finished_summary(account, key, results)
        has_run, is_last = summary is None, name == [*self._stages][-1]
        if summary is not None:
            say_summary(summary, "done before")
        else:
            _require(name, shards)
            started = time.monotonic()
            summary = stage(folder)
            summary["seconds"] = round(time.monotonic() - started, 3)
            write_json(account, {"key": key, "account": summary, "files": _stats_of_files(results), "removed": []})
            say_summary(summary, f"{summary['seconds']:.1f} s")
        self.summaries.append(summary)
        if self._keep == "last":
            self._releases += [(*earlier, {*shards} - {*passing}) for earlier in self._results]
            self._releases += [(account, results, set())] if is_last else []
            if has_run or is_last:
                for release in self._releases:
                    _release(*release)
                self._releases.clear()
        self._results.append((account, results))
        return folder


def _finished_summary(path: Path, key: str, results: Path) -> Summary | None:
    """The summary in a stage's account, if the stage ran on these inputs and its results are untouched since."""
    try:
        account = json.loads(read_small(path, 1 << 28))
        removed = set(account["removed"])
        files = {name: stats for name, stats in _stats_of_files(results).items() if name not in removed}
        unchanged = account["key"] == key and account["files"] == files
    except (OSError, ValueError, KeyError):
        return None
    return dict(account["account"]) if unchanged else None


def _stats_of_files(results: Path) -> dict[str, list[int]]:
    """Size and modification time of every file but the account: enough to see a change since the stage finished."""
    paths = (path for path in results.rglob("*") if path.name != ACCOUNT and not path.name.startswith("."))
    return {path.relative_to(results).as_posix(): file_stats(path) for path in sorted(paths) if path.is_file()}


def file_stats(path: Path) -> list[int]:
    """Size in bytes and modification time in nanoseconds."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _require(name: str, shards: Sequence[Path]) -> None:
    """Raise ``RemovedInputs`` where shards are gone; without their manifests the stages that made them run again."""
    if missing := [shard for shard in shards if not shard.exists()]:
        say(f"{name}: {len(missing)} of its {len(shards)} shards were removed (--keep last); they are made again")
        for shard in missing:
            manifest_path(shard).unlink(missing_ok=True)
        raise RemovedInputs


def _release(path: Path, results: Path, shards: Collection[Path]) -> None:
    """Remove these shards and all state from a stage's results, named in its account at ``path`` before.

    Raises ``Failure`` for a name in the account that leads out of the results: no run has written it.
    """
    account = json.loads(read_small(path, 1 << 28))
    going = {name for name in account["files"] if name.startswith(f"{STATE}/") or results / name in shards}
    if going:
        account["files"] = {name: stats for name, stats in account["files"].items() if name not in going}
        account["removed"] = sorted({*account["removed"], *going})
        write_json(path, account)
    for name in account["removed"]:
        if PurePosixPath(name).root or ".." in PurePosixPath(name).parts:
            raise Failure(f"{path}: names {name!r}, which is not below {results}; remove that file of the run")
        (results / name).unlink(missing_ok=True)
