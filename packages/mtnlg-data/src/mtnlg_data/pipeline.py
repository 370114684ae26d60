"""The whole curation: the steps of a recipe, each in its folder.

A step that no source goes through does not run, and leaves no folder. A finished step leaves ``account.json``: the key
of its inputs, settings and code, its summary, and size and modification time of its files. While these agree it is not
run again; an interrupted one resumes from its last finished task.

With ``keep = "last"`` the shards that a step has read go when it has finished, and so does the ``state`` of the steps
before it. Their manifests stay, so a finished run still does nothing; the account names what was removed before it is,
so a kill in between costs nothing.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from .console import MISTAKES, Failure, Failures, IoFailure, error_line, say
from .document import shard_source
from .engine import StageFolder, checksum, lock_folder, manifest_path, open_engine, read_list
from .engine.folder_lock import LOCK
from .engine.stage_folder import ACCOUNT, RECIPE, STATE
from .files import read_small, write_json, write_text
from .fingerprint import fingerprint
from .job import Job
from .summary import merge_summaries, say_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from .engine import Engine, Keep
    from .recipe import Recipe
    from .sources import SourceFile
    from .step import Step
    from .summary import Summary

TOKENS = "tokens"  # in the folder of the run: what training reads
WRITTEN = (RECIPE, "summary.json", "report.html")
LARGEST_ACCOUNT = 1 << 28


def curate(recipe: Recipe, out: Path | str, engine: Engine | None = None, keep: Keep = "all") -> Summary:
    """Run every step of ``recipe`` into ``out``; returns what ``out/summary.json`` holds.

    Without an engine a worker process per core does the work. With ``keep`` "last" only the last shards and the tokens
    stay of the text. Raises ``Failure`` before any work where what the recipe names cannot be used, or another run is
    at work in ``out``.
    """
    if engine is None:
        with open_engine("local") as own:
            return curate(recipe, out, own, keep)
    files, out = check_inputs(recipe), Path(out)
    if (stage := read_list(out)) is not None:
        raise Failure(f"{out}: holds the output of the stage {stage.stage} alone; give another --out")
    if not (out / LOCK).exists() and (others := [name for name in WRITTEN if (out / name).exists()]):
        raise Failure(f"{out / others[0]}: is there before the first run, which writes one; give another --out")
    with lock_folder(out):
        write_text(out / RECIPE, recipe.dump())
        run = _Run(recipe, out, engine, keep, files)
        for step in recipe.steps:
            run.step(step)
        summary = merge_summaries(run.summaries)
        write_json(out / "summary.json", summary)
        return summary


def check_inputs(recipe: Recipe) -> list[SourceFile]:
    """Open all that the recipe names beside documents, by what reads it; returns the files of the sources, in order.

    A step may begin hours after its run. Raises ``Failures`` with a line for each mistake, and at once an
    ``IoFailure``, which another attempt may not meet.
    """
    mistakes: list[str] = []
    files: list[SourceFile] = []

    def attempt(check: Callable[[], Any]) -> Any:  # noqa: ANN401
        try:
            return check()
        except IoFailure:
            raise
        except (Failure, *MISTAKES) as error:
            mistakes.append(error_line(error))

    for name in recipe.sources:
        files += attempt(partial(recipe.source_files, name)) or []
    for step in recipe.steps:
        attempt(step.check)
    if mistakes:
        raise Failures("\n".join(dict.fromkeys(mistakes)))
    return files


class _Run:
    """The steps of a run so far: their summaries, and the shards that the next one is given."""

    def __init__(self, recipe: Recipe, out: Path, engine: Engine, keep: Keep, files: Sequence[SourceFile]) -> None:
        self.summaries: list[Summary] = []
        self._recipe = recipe
        self._out = out
        self._engine = engine
        self._keep = keep
        self._files = files
        self._shards: list[Path] = []
        self._results: list[tuple[Path, Path]] = []  # account and folder of the results of each step so far
        self._releases: list[tuple[Path, Path, set[Path]]] = []  # arguments of ``_release``

    def step(self, step: Step[Any, Any]) -> None:
        """Run a step unless it has finished on these shards, or none goes through it."""
        folder = self._out / self._recipe.folders[step.name]
        roles = {name: step.role_of(name) for name in step.sources}
        if "through" not in roles.values():
            StageFolder(folder, step.name, self._engine).clear()
            return
        results = self._out / TOKENS if step.gives == "tokens" else folder
        given, files = self._shards, self._files if step.takes == "files" else []
        before = self.summaries[-1]["sources"] if self.summaries else None
        account, read = folder / ACCOUNT, [path for path in given if roles.get(shard_source(path)) != "past"]
        key = fingerprint([step.run_key(), [(path.name, checksum(path)) for path in read], files])
        summary = _finished_summary(account, key, results)
        if has_run := summary is None:
            if missing := [path for path in read if not path.exists()]:
                raise Failure(
                    f"{step.name}: {missing[0]} and {len(missing) - 1} more of its inputs were removed by --keep last; "
                    f"rm {self._out}/*/{ACCOUNT} and run the same command: it makes them again"
                )
            started = time.monotonic()
            job = Job(step, given, folder, self._engine, files=files, before=before, results=results)
            summary = step.apply(job)
            summary["seconds"] = round(time.monotonic() - started, 3)
            _write_account(account, key, summary, results, job.folder.stale)
            job.folder.remove_stale()
        else:
            _remove_named(account, results)  # what a killed run has left
        say_summary(summary, f"{summary['seconds']:.1f} s" if has_run else "done before")
        self.summaries.append(summary)
        if failure := summary.get("failure"):
            say(f"WARNING: {failure}")
        if step.takes == "files":
            _check_sources(summary, self._recipe)
        if step.gives == "documents":
            made = summary.get("shards") or [path.name for path in given]
            rewritten = [folder / name for name in made]
            self._shards = [
                path if roles.get(shard_source(path)) == "through" else kept
                for path, kept in zip(rewritten, given or rewritten, strict=True)
            ]
        self._release_inputs(account, results, {*given} - {*self._shards}, has_run, step is self._recipe.steps[-1])

    def _release_inputs(self, account: Path, results: Path, read: set[Path], has_run: bool, is_last: bool) -> None:
        """With ``keep`` "last", remove what this step has read, or where it need not run, what the next one has."""
        if self._keep == "last":
            self._releases += [(*earlier, read) for earlier in self._results]
            self._releases += [(account, results, set())] if is_last else []
            if has_run or is_last:
                for release in self._releases:
                    _release(*release)
                self._releases.clear()
        self._results.append((account, results))


def _check_sources(extracted: Summary, recipe: Recipe) -> None:
    """Raise ``Failures`` where a source has no documents, of which no store could be made, hours later."""
    empty = []
    for source, counts in extracted["sources"].items():
        if not counts["documents_out"] and recipe.steps[-1].gives == "tokens":
            dropped = ", ".join(f"{reason} {number:,}" for reason, number in counts["dropped"].items())
            unread = [one for one in (*extracted["lost"], *extracted["errors"]) if one["source"] == source]
            first = f": {unread[0]['where']}: {unread[0]['what']}" if unread else ""
            reasons = f" ({dropped})" if dropped else ""
            empty.append(
                f"source {source} has no document after extract{reasons}{first}; mend its files or take it out "
                "of the recipe"
            )
    if empty:
        raise Failures("\n".join(empty))


def _finished_summary(path: Path, key: str, results: Path) -> Summary | None:
    """The summary in a step's account, if the step ran on these inputs and its results are untouched since."""
    try:
        account = json.loads(read_small(path, LARGEST_ACCOUNT))
        removed = set(account["removed"])
        files = {name: stats for name, stats in _stats_of_files(results).items() if name not in removed}
        unchanged = account["key"] == key and account["files"] == files
    except (OSError, ValueError, KeyError):
        return None
    return dict(account["account"]) if unchanged else None


def _write_account(path: Path, key: str, summary: Summary, results: Path, stale: Sequence[Path]) -> None:
    """Record that a step is done; ``stale`` files of its results go now."""
    going = {file.relative_to(results).as_posix() for one in stale for file in (one, manifest_path(one))}
    files = {name: stats for name, stats in _stats_of_files(results).items() if name not in going}
    write_json(path, {"key": key, "account": summary, "files": files, "removed": sorted(going)})


def _stats_of_files(results: Path) -> dict[str, list[int]]:
    """Size and modification time of every file but the account: enough to see a change since the step finished."""
    paths = (path for path in results.rglob("*") if path.name != ACCOUNT and not path.name.startswith("."))
    return {
        path.relative_to(results).as_posix(): [path.stat().st_size, path.stat().st_mtime_ns]
        for path in sorted(paths)
        if path.is_file()
    }


def _release(path: Path, results: Path, shards: Collection[Path]) -> None:
    """Remove these shards and all state from a step's results, named in its account at ``path`` before."""
    account = json.loads(read_small(path, LARGEST_ACCOUNT))
    going = {name for name in account["files"] if name.startswith(f"{STATE}/") or results / name in shards}
    if going:
        account["files"] = {name: stats for name, stats in account["files"].items() if name not in going}
        account["removed"] = sorted({*account["removed"], *going})
        write_json(path, account)
    _remove_named(path, results)


def _remove_named(path: Path, results: Path) -> None:
    """Remove the files that an account names as removed.

    Raises ``Failure`` for a name that leads out of the results: no run has written it.
    """
    for name in json.loads(read_small(path, LARGEST_ACCOUNT))["removed"]:
        if PurePosixPath(name).root or ".." in PurePosixPath(name).parts:
            raise Failure(f"{path}: names {name!r}, which is not below {results}; remove that file of the run")
        (results / name).unlink(missing_ok=True)
