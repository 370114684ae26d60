"""The whole curation: extract, quality, clean, deduplicate, decontaminate, tokenize, each in a folder of its own.

A finished stage leaves ``account.json``: the key of its inputs, settings and code, its summary, and size and
modification time of its files. While these agree the stage is not run again; an interrupted one resumes from its last
finished unit.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from mtnlg_data.clean.stage import clean_documents
from mtnlg_data.decontaminate.stage import decontaminate_documents
from mtnlg_data.dedup.stage import deduplicate_documents
from mtnlg_data.extract.stage import extract_documents
from mtnlg_data.quality.stage import filter_documents
from mtnlg_data.tokens.stage import tokenize_documents
from mtnlg_data.tokens.tokenizer import tokenizer_files

from .console import say
from .document import DamagedShard, shard_source
from .engine import (
    JobArray,
    StageFolder,
    checksum,
    code_digest,
    key_of,
    library_version,
    lock_folder,
    manifest_path,
)
from .files import sha256, write_json, write_text
from .settings import dump
from .tally import merge_summaries, summary_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .engine import Engine, Summary
    from .recipe import Recipe
    from .sources import SourceFile

STAGES: dict[str, Callable[..., Summary]] = {
    "extract": extract_documents,
    "quality": filter_documents,
    "clean": clean_documents,
    "deduplicate": deduplicate_documents,
    "decontaminate": decontaminate_documents,
    "tokenize": tokenize_documents,
}
ACCOUNT = "account.json"


def curate(recipe: Recipe, out: Path, engine: Engine, task: tuple[int, int] | None = None) -> Summary:
    """Run every stage of ``recipe`` into ``out``; returns what ``out/summary.json`` holds.

    ``task`` is (i, n) for task i of n that run the same recipe into one shared folder; each returns the whole summary.
    Raises ``Failure`` before any work if an input is missing, or another run is at work in ``out``.
    """
    files, texts = recipe.files(), recipe.texts_file()
    recipe.resolved_quality.check()
    recipe.resolved_tokenize.check()
    resolved = dump(recipe)
    inputs = [(asdict(file), _file_stats(file.path)) for file in files]
    key = key_of(code_digest(__name__), resolved, inputs, texts and sha256(texts))
    with lock_folder(out, key, shared=task is not None) as claims:
        if task is not None:
            engine = JobArray(engine, task, claims)
        write_text(out / "recipe.toml", resolved)
        remade: set[Path] = set()
        while True:
            try:
                summary = _run_stages(recipe, files, texts, out, engine)
            except DamagedShard as damaged:  # a disk lost bytes of a finished stage, which only its reader notices
                if damaged.path in remade or out not in damaged.path.parents:
                    raise
                say(f"{damaged}; it is made again")
                manifest_path(damaged.path).unlink(missing_ok=True)
                remade.add(damaged.path)
            else:
                write_json(out / "summary.json", summary)
                return summary


def _run_stages(recipe: Recipe, files: Sequence[SourceFile], texts: Path | None, out: Path, engine: Engine) -> Summary:
    """Run every stage that is not finished; returns the summary of all."""
    priority = list(recipe.sources)
    runner = _StageRunner(out)

    inputs = [(asdict(file), _file_stats(file.path)) for file in files]
    extracted = runner.run(
        "extract",
        [inputs, recipe.extract, library_version(recipe.extract.method)],
        lambda folder: extract_documents(files, folder, recipe.extract, engine),
    )
    shards = [extracted / name for name in runner.summaries[-1]["shards"]]

    if recipe.filtered:
        before = runner.summaries[-1]["sources"]
        roles, quality = (recipe.filtered, recipe.curated), recipe.resolved_quality
        good = runner.run(
            "quality",
            [_checksums(shards), roles, quality, quality.model_key()],
            lambda folder: filter_documents(shards, folder, quality, *roles, before=before, engine=engine),
        )
        shards = [good / shard.name if shard_source(shard) in recipe.filtered else shard for shard in shards]
    else:
        StageFolder(runner.folder("quality"), "quality", engine).clear()

    rules = {name: source.rules for name, source in recipe.sources.items()}
    clean = runner.run(
        "clean",
        [_checksums(shards), rules, recipe.clean],
        lambda folder: clean_documents(shards, folder, recipe.clean, rules, engine),
    )

    clean_shards = [clean / shard.name for shard in shards]
    unique = runner.run(
        "deduplicate",
        [_checksums(clean_shards), priority, recipe.deduplicate],
        lambda folder: deduplicate_documents(clean_shards, folder, recipe.deduplicate, priority, engine),
    )

    unique_shards = [unique / shard.name for shard in shards]
    decontaminated = runner.run(
        "decontaminate",
        [_checksums(unique_shards), texts and sha256(texts), recipe.decontaminate],
        lambda folder: decontaminate_documents(unique_shards, folder, recipe.decontaminate, texts, engine),
    )

    tokenize = recipe.resolved_tokenize
    tokenizer = [sha256(file) for file in tokenizer_files(tokenize)]
    by_source = {name: [decontaminated / s.name for s in shards if shard_source(s) == name] for name in priority}
    runner.run(
        "tokenize",
        [[_checksums(source_shards) for source_shards in by_source.values()], recipe.weights, tokenize, tokenizer],
        lambda _: tokenize_documents(by_source, out / "tokens", tokenize, recipe.weights, engine),
        results=out / "tokens",
    )
    return merge_summaries(runner.summaries)


class _StageRunner:
    """Runs stages one after another, skips those that are finished, and collects their summaries."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.summaries: list[Summary] = []

    def folder(self, name: str) -> Path:
        """The folder of a stage."""
        return self.out / f"{list(STAGES).index(name) + 1:02d}-{name}"

    def run(self, name: str, inputs: object, stage: Callable[[Path], Summary], results: Path | None = None) -> Path:
        """Run a stage unless it has finished on these inputs; returns its folder.

        ``results`` is the folder of its output, if that is another.
        """
        folder = self.folder(name)
        key = key_of(code_digest(STAGES[name].__module__), inputs)
        summary = _finished_summary(folder / ACCOUNT, key, results or folder)
        if summary is not None:
            say(f"{summary_line(summary)} (done before)")
        else:
            started = time.monotonic()
            summary = stage(folder)
            summary["seconds"] = round(time.monotonic() - started, 3)
            files = _stats_of_files(results or folder)
            write_json(folder / ACCOUNT, {"key": key, "account": summary, "files": files})
            say(f"{summary_line(summary)} ({summary['seconds']:.1f} s)")
        self.summaries.append(summary)
        return folder


def _finished_summary(path: Path, key: str, results: Path) -> Summary | None:
    """The summary in a stage's account, if the stage ran on these inputs and its results are untouched since."""
    try:
        account = json.loads(path.read_text(encoding="utf-8"))
        unchanged = account["key"] == key and account["files"] == _stats_of_files(results)
    except (OSError, ValueError, KeyError):
        return None
    return dict(account["account"]) if unchanged else None


def _stats_of_files(results: Path) -> dict[str, list[int]]:
    """Size and modification time of every file but the account: enough to see a change since the stage finished."""
    paths = (path for path in results.rglob("*") if path.name != ACCOUNT and not path.name.startswith("."))
    return {path.relative_to(results).as_posix(): _file_stats(path) for path in sorted(paths) if path.is_file()}


def _file_stats(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _checksums(shards: Sequence[Path]) -> list[tuple[str, str]]:
    return [(shard.name, checksum(shard)) for shard in shards]
