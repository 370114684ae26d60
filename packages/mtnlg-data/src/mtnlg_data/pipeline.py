"""The whole curation: extract, quality, clean, filter, deduplicate, exact, decontaminate, tokenize, each in its folder.

Stages that nobody asks for (quality, filter, exact) do not run, and leave no folder.

A stage that has finished on the same inputs is not run again (``engine.stage_runner``); an interrupted one resumes from
its last finished unit.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from mtnlg_data.clean.stage import clean_documents
from mtnlg_data.decontaminate.stage import decontaminate_documents
from mtnlg_data.dedup.stage import deduplicate_documents
from mtnlg_data.exact.stage import remove_repeats
from mtnlg_data.extract.stage import extract_documents
from mtnlg_data.filters.settings import ListFiles
from mtnlg_data.filters.stage import apply_filters
from mtnlg_data.planning.preflight import check_inputs
from mtnlg_data.quality.stage import filter_documents
from mtnlg_data.tokens.stage import tokenize_documents
from mtnlg_data.tokens.tokenizer import tokenizer_files

from .console import Failure, Failures, say
from .document import DamagedShard, shard_source
from .engine import StageFolder, library_version, lock_folder, manifest_path, read_list
from .engine.folder_lock import LOCK
from .engine.stage_runner import RemovedInputs, StageRunner
from .files import sha256, write_json, write_text
from .settings import dump
from .tally import merge_summaries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .engine import Engine, Keep, Summary
    from .recipe import Recipe
    from .sources import SourceFile

STAGES: dict[str, Callable[..., Summary]] = {
    "extract": extract_documents,
    "quality": filter_documents,
    "clean": clean_documents,
    "filter": apply_filters,
    "deduplicate": deduplicate_documents,
    "exact": remove_repeats,
    "decontaminate": decontaminate_documents,
    "tokenize": tokenize_documents,
}
RECIPE, TOKENS = "recipe.toml", "tokens"  # in the folder of the run: what it runs, and what training reads
WRITTEN = (RECIPE, "summary.json", "report.html")
#: Their folders in that of the run. ``filter`` and ``exact`` share a number, so that the others do not depend on them.
FOLDERS = {
    "extract": "01-extract",
    "quality": "02-quality",
    "clean": "03-clean",
    "filter": "03-filter",
    "deduplicate": "04-deduplicate",
    "exact": "04-exact",
    "decontaminate": "05-decontaminate",
    "tokenize": "06-tokenize",
}


def curate(recipe: Recipe, out: Path, engine: Engine, keep: Keep = "all") -> Summary:
    """Run every stage of ``recipe`` into ``out``; returns what ``out/summary.json`` holds.

    With ``keep`` "last" only the last shards and the tokens stay of the text. Raises ``Failure`` before any work where
    what the recipe names cannot be used, or another run is at work in ``out``.
    """
    files, texts = check_inputs(recipe)
    if (stage := read_list(out)) is not None:
        raise Failure(f"{out}: holds the output of the stage {stage.stage} alone; give another --out")
    if not (out / LOCK).exists() and (others := [name for name in WRITTEN if (out / name).exists()]):
        raise Failure(f"{out / others[0]}: is there before the first run, which writes one; give another --out")
    with lock_folder(out):
        write_text(out / RECIPE, dump(recipe))
        remade: set[Path] = set()
        while True:
            try:
                summary = _run_stages(recipe, files, texts, StageRunner(out, STAGES, FOLDERS, keep), engine)
            except DamagedShard as damaged:  # a disk lost bytes of a finished stage, which only its reader notices
                if damaged.path in remade or out not in damaged.path.parents:
                    raise
                say(f"{damaged}; it is made again")
                manifest_path(damaged.path).unlink(missing_ok=True)
                remade.add(damaged.path)
            except RemovedInputs:  # a stage must run, and --keep last removed its inputs: those before it go first
                continue
            else:
                write_json(out / "summary.json", summary)
                return summary


def _run_stages(
    recipe: Recipe, files: Sequence[SourceFile], texts: Path | None, runner: StageRunner, engine: Engine
) -> Summary:
    """Run every stage that is not finished; returns the summary of all."""
    priority = list(recipe.sources)
    inputs = [(asdict(file), file.stats) for file in files]
    extracted = runner.run(
        "extract",
        (),
        [inputs, recipe.extract, recipe.resolved_extract.key(), library_version(recipe.extract.method)],
        lambda folder: extract_documents(files, folder, recipe.resolved_extract, engine),
    )
    shards = [extracted / name for name in runner.summaries[-1]["shards"]]
    if failure := runner.summaries[-1].get("failure"):
        say(f"WARNING: {failure}")
    _check_sources(runner.summaries[-1])

    if recipe.filtered:
        before = runner.summaries[-1]["sources"]
        roles, quality = (recipe.filtered, recipe.curated), recipe.resolved_quality
        good = runner.run(
            "quality",
            shards,
            [roles, quality, quality.model_key()],
            lambda folder: filter_documents(shards, folder, quality, *roles, before=before, engine=engine),
            passing=[shard for shard in shards if shard_source(shard) not in recipe.filtered],
        )
        shards = [good / shard.name if shard_source(shard) in recipe.filtered else shard for shard in shards]
    else:
        StageFolder(runner.folder("quality"), "quality", engine).clear()

    rules = {name: source.rules for name, source in recipe.sources.items()}
    clean = runner.run(
        "clean",
        shards,
        [rules, recipe.clean, recipe.resolved_clean.key()],
        lambda folder: clean_documents(shards, folder, recipe.resolved_clean, rules, engine),
    )

    clean_shards = [clean / shard.name for shard in shards]
    if filters := recipe.filters:
        before, settings = runner.summaries[-1]["sources"], recipe.resolved_filter
        chosen = runner.run(
            "filter",
            clean_shards,
            [filters, recipe.filter, ListFiles.of(settings).digests()],
            lambda folder: apply_filters(clean_shards, folder, settings, filters, before=before, engine=engine),
            passing=[shard for shard in clean_shards if shard_source(shard) not in filters],
        )
        clean_shards = [chosen / s.name if shard_source(s) in filters else s for s in clean_shards]
    else:
        StageFolder(runner.folder("filter"), "filter", engine).clear()

    unique = runner.run(
        "deduplicate",
        clean_shards,
        [priority, recipe.deduplicate],
        lambda folder: deduplicate_documents(clean_shards, folder, recipe.deduplicate, priority, engine),
    )

    unique_shards = [unique / shard.name for shard in shards]
    if recipe.exact.kinds:
        repeated = unique_shards
        once = runner.run(
            "exact",
            repeated,
            [priority, recipe.exact],
            lambda folder: remove_repeats(repeated, folder, recipe.exact, priority, engine),
        )
        unique_shards = [once / shard.name for shard in shards]
    else:
        StageFolder(runner.folder("exact"), "exact", engine).clear()

    decontaminated = runner.run(
        "decontaminate",
        unique_shards,
        [texts and sha256(texts), recipe.decontaminate],
        lambda folder: decontaminate_documents(unique_shards, folder, recipe.decontaminate, texts, engine),
    )

    tokenize = recipe.resolved_tokenize
    tokenizer = [sha256(file) for file in tokenizer_files(tokenize)]
    pure_shards = [decontaminated / shard.name for shard in shards]
    by_source = {name: [shard for shard in pure_shards if shard_source(shard) == name] for name in priority}
    tokens = runner.out / TOKENS
    runner.run(
        "tokenize",
        pure_shards,
        [priority, recipe.weights, tokenize, tokenizer],
        lambda _: tokenize_documents(by_source, tokens, tokenize, recipe.weights, engine),
        passing=pure_shards,
        results=tokens,
    )
    return merge_summaries(runner.summaries)


def _check_sources(extracted: Summary) -> None:
    """Raise ``Failures`` where a source has no documents, of which tokenize could make no store, hours later."""
    empty = []
    for source, counts in extracted["sources"].items():
        if not counts["documents_out"]:
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
