"""The whole curation: the steps of a recipe, each in its folder.

A step that no source goes through does not run, and leaves no folder. A finished step leaves a record
(``engine.stage_folder``) and is not run again while the record is valid; an interrupted step resumes after its last
finished task. The folder of a step that the recipe leaves out later stays and is named; only its own name opens it.

With ``keep = "last"`` the shards that a step has read are removed when it has finished, and so is the ``state`` of the
steps before it. Manifests stay, so rerunning a finished run still does nothing; shards leave the record before they are
removed, so a kill in between does no harm.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import MISTAKES, Failure, Failures, IoFailure, error_line, say
from .document import shard_source
from .engine import StageFolder, checksum, lock_folder, open_engine, read_record
from .engine.folder_lock import LOCK
from .engine.stage_folder import RECIPE, RECORD
from .files import write_json, write_text
from .fingerprint import fingerprint
from .job import Job
from .settings import toml_content
from .summary import merge_summaries, say_summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .engine import Engine, Keep
    from .recipe import Recipe
    from .sources import SourceFile
    from .step import Step
    from .summary import Summary

TOKENS = "tokens"  # in the folder of the run: what training reads
WRITTEN = (RECIPE, "summary.json", "report.html")


def curate(recipe: Recipe, out: Path | str, engine: Engine | None = None, keep: Keep = "all") -> Summary:
    """Run every step of ``recipe`` into ``out``; returns what ``out/summary.json`` holds.

    Without an engine, one worker process per core does the work. With ``keep`` "last", the last shards and the tokens
    are the only text that is kept. Raises ``Failure`` before any work if something that the recipe names cannot be
    used, or another run is using ``out``.
    """
    if engine is None:
        with open_engine("local") as local_engine:
            return curate(recipe, out, local_engine, keep)
    files, out = check_inputs(recipe), Path(out)
    if (stage := read_record(out)) is not None:
        raise Failure(f"{out}: holds the output of the stage {stage.stage} alone; give another --out")
    others = [name for name in WRITTEN if (out / name).exists()]
    if others and not ((out / LOCK).exists() and "sources" in toml_content(out / RECIPE, "recipe")):
        raise Failure(f"{out / others[0]}: exists before the first run, which writes it; give another --out")
    with lock_folder(out):
        write_text(out / RECIPE, recipe.dump())
        run = _Run(recipe, out, engine, keep, files)
        for step in recipe.steps:
            run.step(step)
        run.check_other_folders()
        summary = merge_summaries(run.summaries)
        write_json(out / "summary.json", summary)
        return summary


def check_inputs(recipe: Recipe) -> list[SourceFile]:
    """Open what the recipe names beside documents, with the code that reads it; returns the sources' files in order.

    A step may begin hours after its run, so it is checked here. Raises ``Failures`` with a line for each mistake, but
    an ``IoFailure`` at once, since a retry may succeed.
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
        self._folders: list[StageFolder] = []
        self._passed: set[Path] = set()  # shards that a later step has rewritten

    def step(self, step: Step[Any, Any]) -> None:
        """Run a step, unless it has finished on these shards or no source goes through it."""
        out = self._out / (TOKENS if step.gives == "tokens" else self._recipe.folders[step.name])
        roles = {name: step.role_of(name) for name in step.sources}
        if "through" not in roles.values():
            StageFolder(out, step.name, self._engine).clear()
            return
        shards, files = self._shards, self._files if step.takes == "files" else []
        before = self.summaries[-1]["sources"] if self.summaries else None
        job = Job(step, shards, out, self._engine, files=files, before=before)
        passing = [
            (before or {}).get(name) for name, role in roles.items() if role != "through"
        ]  # the summary includes these counts
        key = fingerprint([step.run_key(), [(path.name, checksum(path)) for path in job.paths], files, passing])
        summary = job.folder.finished(key)
        if has_run := summary is None:
            if missing := [path for path in job.paths if not path.exists()]:
                raise Failure(
                    f"{step.name}: {missing[0]} and {len(missing) - 1} more of its inputs were removed by --keep last; "
                    f"rm {self._out}/*/{RECORD} and run the same command, which makes them again"
                )
            summary = job.do(key)
        say_summary(summary, f"{summary['seconds']:.1f} s" if has_run else "done before")
        self.summaries.append(summary)
        if failure := summary.get("failure"):
            say(f"WARNING: {failure}")
        if step.takes == "files":
            _check_sources(summary, self._recipe)
        if step.gives == "documents":
            made = summary.get("shards") or [path.name for path in shards]
            rewritten = [out / name for name in made]
            self._shards = [
                path if roles.get(shard_source(path)) == "through" else kept
                for path, kept in zip(rewritten, shards or rewritten, strict=True)
            ]
        self._passed |= {*shards} - {*self._shards}
        is_last = step is self._recipe.steps[-1]
        if self._keep == "last" and (has_run or is_last):
            for folder in (*self._folders, *([job.folder] if is_last else [])):
                folder.release(self._passed)
        self._folders.append(job.folder)

    def check_other_folders(self) -> None:
        """Clear the former folder of a step that has moved, and say which step's output the recipe no longer makes."""
        for path in sorted({*self._out.iterdir()} - {folder.path for folder in self._folders}):
            if (record := read_record(path)) is None:
                continue
            if record.stage not in self._recipe.folders:
                say(f"{path}: output of {record.stage}, which steps leaves out now: neither read nor updated")
            elif path.name[3:] == record.stage:  # no copy by the user
                StageFolder(path, record.stage, self._engine).clear()


def _check_sources(extracted: Summary, recipe: Recipe) -> None:
    """Raise ``Failures`` if a source has no documents: tokenize could make no store of it, hours later."""
    empty = []
    for source, counts in extracted["sources"].items():
        if not counts["documents_out"] and recipe.steps[-1].gives == "tokens":
            dropped = ", ".join(f"{reason} {number:,}" for reason, number in counts["dropped"].items())
            unread = [one for one in (*extracted["lost"], *extracted["errors"]) if one["source"] == source]
            first = f": {unread[0]['where']}: {unread[0]['what']}" if unread else ""
            reasons = f" ({dropped})" if dropped else ""
            empty.append(
                f"source {source} has no document after extract{reasons}{first}; repair its files or remove it "
                "of the recipe"
            )
    if empty:
        raise Failures("\n".join(empty))
