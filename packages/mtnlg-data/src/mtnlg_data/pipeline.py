"""The stages of a curation, chained: records → documents → good, clean, unique, uncontaminated ones → tokens.

Every stage has a folder of its own with an account of what it kept, what it dropped and why. A stage whose inputs,
settings and results are as its account says is not run again; one that was cut off goes on from its last finished unit.
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
from mtnlg_data.tokens.tokenizer import files_of

from .console import say
from .document import Damaged, source_of
from .engine import Sharded, at_work_in, checksum, key_of, manifest_path
from .files import sha256, write_json, write_text
from .settings import dump
from .tally import line, together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .engine import Engine, Summary
    from .recipe import Recipe
    from .sources import SourceFile

STAGES = ("extract", "quality", "clean", "deduplicate", "decontaminate", "tokenize")
ACCOUNT = "account.json"


def curate(recipe: Recipe, out: Path, engine: Engine, shard: tuple[int, int] | None = None) -> Summary:
    """Run every stage of ``recipe`` into ``out``; returns what ``out/summary.json`` holds.

    ``shard`` is (i, n) for task i of n that run the same over one shared folder, each to the end.
    Raises ``Failure`` before any work where an input is missing, and where another run is at work in ``out``.
    """
    files, texts = recipe.files(), recipe.texts_file()
    recipe.judging.check()
    recipe.encoding.check()
    resolved = dump(recipe)
    inputs = [(asdict(file), _state(file.path)) for file in files]
    with at_work_in(out, key_of(resolved, inputs, texts and sha256(texts)), shared=shard is not None) as claims:
        if shard is not None:
            engine = Sharded(engine, shard, claims)
        write_text(out / "recipe.toml", resolved)
        mended: set[Path] = set()
        while True:
            try:
                summary = _stages(recipe, files, texts, out, engine)
            except Damaged as damaged:  # by a disk that lost what it had: only who reads a finished stage notices
                if damaged.path in mended or out not in damaged.path.parents:
                    raise
                say(f"{damaged}; it is made again")
                manifest_path(damaged.path).unlink(missing_ok=True)
                mended.add(damaged.path)
            else:
                write_json(out / "summary.json", summary)
                return summary


def _stages(recipe: Recipe, files: Sequence[SourceFile], texts: Path | None, out: Path, engine: Engine) -> Summary:
    """Run every stage that is not as its account says; returns the summary of all."""
    priority = list(recipe.sources)
    chain = _Chain(out)

    inputs = [(asdict(file), _state(file.path)) for file in files]
    extracted = chain.run(
        "extract", [inputs, recipe.extract], lambda folder: extract_documents(files, folder, recipe.extract, engine)
    )
    shards = [extracted / name for name in chain.accounts[-1]["shards"]]

    if recipe.filtered:
        before = chain.accounts[-1]["sources"]
        roles, judging = (recipe.filtered, recipe.curated), recipe.judging
        judged = chain.run(
            "quality",
            [_checksums(shards), roles, judging, judging.model and sha256(judging.model)],
            lambda folder: filter_documents(shards, folder, judging, *roles, before=before, engine=engine),
        )
        shards = [judged / shard.name if source_of(shard) in recipe.filtered else shard for shard in shards]

    rules = {name: source.rules for name, source in recipe.sources.items()}
    dirty = shards
    cleaned = chain.run(
        "clean",
        [_checksums(dirty), rules, recipe.clean],
        lambda folder: clean_documents(dirty, folder, recipe.clean, rules, engine),
    )

    clean_shards = [cleaned / shard.name for shard in shards]
    unique = chain.run(
        "deduplicate",
        [_checksums(clean_shards), priority, recipe.deduplicate],
        lambda folder: deduplicate_documents(clean_shards, folder, recipe.deduplicate, priority, engine),
    )

    unique_shards = [unique / shard.name for shard in shards]
    pure = chain.run(
        "decontaminate",
        [_checksums(unique_shards), texts and sha256(texts), recipe.decontaminate],
        lambda folder: decontaminate_documents(unique_shards, folder, recipe.decontaminate, texts, engine),
    )

    encoding = recipe.encoding
    tokenizer = [sha256(file) for file in files_of(encoding)]
    by_source = {name: [pure / s.name for s in shards if source_of(s) == name] for name in priority}
    chain.run(
        "tokenize",
        [[_checksums(of) for of in by_source.values()], recipe.weights, encoding, tokenizer],
        lambda _: tokenize_documents(by_source, out / "tokens", encoding, recipe.weights, engine),
        results=out / "tokens",
    )
    return together(chain.accounts)


class _Chain:
    """Runs stages one after the other and gathers their accounts."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.accounts: list[Summary] = []

    def run(self, name: str, inputs: object, work: Callable[[Path], Summary], results: Path | None = None) -> Path:
        """Run one stage, unless its account says that it has run on these inputs; returns the stage's folder.

        ``results`` is where what it makes lies, if not in that folder.
        """
        folder = self.out / f"{STAGES.index(name) + 1:02d}-{name}"
        key = key_of(name, inputs)
        account = _kept_account(folder / ACCOUNT, key, results or folder)
        if account is not None:
            say(f"{line(account)} (done before)")
        else:
            started = time.monotonic()
            account = work(folder)
            account["seconds"] = round(time.monotonic() - started, 3)
            files = _states(results or folder)
            write_json(folder / ACCOUNT, {"key": key, "account": account, "files": files})
            say(f"{line(account)} ({account['seconds']:.1f} s)")
        self.accounts.append(account)
        return folder


def _kept_account(path: Path, key: str, results: Path) -> Summary | None:
    """The account of a stage that has run on these inputs and whose results are as it left them."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        same = kept["key"] == key and kept["files"] == _states(results)
    except (OSError, ValueError, KeyError):
        return None
    return dict(kept["account"]) if same else None


def _states(results: Path) -> dict[str, list[int]]:
    """Size and time of change of every file: enough to see that a finished stage was not touched since."""
    names = (path for path in results.rglob("*") if path.name != ACCOUNT and not path.name.startswith("."))
    paths = (path for path in names if path.is_file())
    return {path.relative_to(results).as_posix(): _state(path) for path in sorted(paths)}


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def _checksums(shards: Sequence[Path]) -> list[tuple[str, str]]:
    return [(shard.name, checksum(shard)) for shard in shards]
