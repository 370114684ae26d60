"""One stage by itself, on paths: what the commands ``extract``, ``score``, ``clean``, ``dedup``, … run.

Inputs are files and folders of any format: WARC, JSON lines (plain or compressed; the Pile is such), Parquet, and the
shards of another stage. Files that are not shards are extracted first, into the folder ``documents`` of the output. The
output is what the stage leaves in a curation (shards with their manifests, or token stores), ``summary.json`` and the
report. The same call resumes an interrupted one.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

import pyarrow.compute as pc

from mtnlg_data.clean.stage import Rule, clean_documents
from mtnlg_data.console import Failure, UsageFailure
from mtnlg_data.decontaminate.ngrams import check_task_texts
from mtnlg_data.decontaminate.stage import decontaminate_documents
from mtnlg_data.dedup.stage import deduplicate_documents
from mtnlg_data.document import read_documents, shard_source
from mtnlg_data.engine import StageFolder, listed_shards, lock_folder
from mtnlg_data.exact.stage import remove_repeats
from mtnlg_data.extract.language import LanguageSettings
from mtnlg_data.extract.stage import extract_documents
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.files import write_json
from mtnlg_data.filters.lists import check_list
from mtnlg_data.filters.rules import expand_rules
from mtnlg_data.filters.settings import check_rules, list_paths
from mtnlg_data.filters.stage import apply_filters
from mtnlg_data.pipeline import FOLDERS, RECIPE, TOKENS
from mtnlg_data.quality.stage import filter_documents
from mtnlg_data.report import write_report
from mtnlg_data.tally import merge_summaries, say_summary
from mtnlg_data.tokens.blend import check_weights
from mtnlg_data.tokens.stage import tokenize_documents
from mtnlg_data.transfer.url_files import fetch_files, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.clean.stage import CleanSettings
    from mtnlg_data.decontaminate.cut_planning import DecontaminateSettings
    from mtnlg_data.dedup.stage import DeduplicateSettings
    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.exact.settings import ExactSettings
    from mtnlg_data.filters.settings import FilterSettings
    from mtnlg_data.quality.stage import QualitySettings
    from mtnlg_data.tokens.tokenizer import TokenizeSettings

    from .stage_inputs import Inputs


#: Folders of an output that hold copies of its inputs, which a run replaces.
COPIES = ("documents", "positives", "inputs")


def parse_rules(names: str) -> tuple[Rule, ...]:
    """The rules of ``clean`` in a comma-separated list. Raises ``UsageFailure`` for one that does not exist."""
    known: dict[str, Rule] = {rule: rule for rule in get_args(Rule)}
    if unknown := [name for name in names.split(",") if name not in known]:
        raise UsageFailure(f"--rules {names}: {unknown[0]!r} is none of {', '.join(known)}")
    return tuple(known[name] for name in names.split(","))


def parse_filters(names: str) -> tuple[str, ...]:
    """The rules of ``filter`` in a comma-separated list. Raises ``UsageFailure`` for one that does not exist."""
    try:
        return expand_rules(names.split(","))
    except ValueError as error:
        raise UsageFailure(f"--rules {names}: {error}") from None


def parse_weights(arguments: Sequence[str]) -> dict[str, float]:
    """The weights in ``NAME=SHARE`` arguments. Raises ``UsageFailure`` for one outside (0, 1], or two of one name."""
    weights: dict[str, float] = {}
    for argument in arguments:
        name, _, share = argument.partition("=")
        if name in weights:
            raise UsageFailure(f"--weight {argument}: {name} has a weight already")
        try:
            weights[name] = float(share)
        except ValueError:
            weights[name] = 0.0
        if not 0 < weights[name] <= 1:
            raise UsageFailure(f"--weight {argument}: expected NAME=SHARE, a number above 0 up to 1")
    return weights


class StandaloneRunner:
    """A stage running in a folder: extracts its inputs if they are no shards yet, and collects the summaries."""

    def __init__(self, out: Path, engine: Engine) -> None:
        self.out = out
        self.engine = engine
        self.summaries: list[Summary] = []

    def shards(self, inputs: Inputs, folder: str = "documents", settings: ExtractSettings | None = None) -> list[Path]:
        """The shards of the inputs; files are extracted into this folder of the output."""
        shards = [*inputs.shards, *self._fetched_shards(inputs)]
        target = self.out / folder
        if inputs.files:
            summary = self.run(
                lambda: extract_documents(inputs.files, target, settings or ExtractSettings(), self.engine)
            )
            shards += [target / name for name in summary["shards"]]
        else:
            StageFolder(target, "extract", self.engine).clear()
        by_name: dict[str, Path] = {}
        for shard in shards:
            if (first := by_name.setdefault(shard.name, shard)) != shard:
                raise UsageFailure(f"{shard}: {first} has the same file name; give one of them another source by NAME=")
        return shards

    def _fetched_shards(self, inputs: Inputs) -> Iterator[Path]:
        """The shards of stages at URLs, as copies in the folder ``inputs`` of the output."""
        for url, files in inputs.stages.items():
            folder = self.out / "inputs" / hashlib.sha256(url.encode()).hexdigest()[:16]
            fetch_files(files, folder, label=f"fetch {url}", exact=True)
            yield from listed_shards(folder) or ()

    def run(self, stage: Callable[[], Summary]) -> Summary:
        """Run a stage, time it, and keep its summary."""
        started = time.monotonic()
        summary = {**stage(), "seconds": 0.0}
        summary["seconds"] = round(time.monotonic() - started, 3)
        self.summaries.append(summary)
        say_summary(summary, f"{summary['seconds']:.1f} s")
        return summary

    def summary(self) -> Summary:
        """The content of ``summary.json``."""
        return merge_summaries(self.summaries)


@contextmanager
def standalone_runner(stage: str, out: Path, engine: Engine, *inputs: Inputs) -> Iterator[StandaloneRunner]:
    """Lock ``out`` for one run of a stage; write summary and report when the block ends.

    Raises ``UsageFailure`` where ``out`` is in an input folder, or has the input in one of its own: what is written
    there would overwrite the input, or be read as one by the next run; and where it is a run's folder, or one of its
    stages'. Raises ``Failure`` where it is the folder of another stage, before anything changes.
    """
    for folder in (out, out.parent) if out.resolve().name in {*FOLDERS.values(), TOKENS} else (out,):
        if (folder / RECIPE).exists():
            raise UsageFailure(f"--out {out} is a folder of the run {folder}, whose results would go; give another")
    for path in (path for given in inputs for path in given.paths):
        folder = path if path.is_dir() else path.parent
        if out.resolve() == folder.resolve() or (path.is_dir() and folder.resolve() in out.resolve().parents):
            raise UsageFailure(f"--out {out} is in the input {path}; give a folder outside of it")
        for own in (out.resolve() / name for name in COPIES):
            if own == folder.resolve() or own in folder.resolve().parents:
                raise UsageFailure(f"--out {out} keeps copies of its inputs in {own}, where {path} is; give another")
    with lock_folder(out):
        StageFolder(out, stage, engine)
        runner = StandaloneRunner(out, engine)
        yield runner
        write_json(out / "summary.json", runner.summary())
        write_report(out)


def extract(inputs: Inputs, out: Path, settings: ExtractSettings, engine: Engine) -> Summary:
    """Records to documents: ``out/<source>-<number>.parquet``."""
    with standalone_runner("extract", out, engine, inputs) as runner:
        runner.run(lambda: extract_documents(inputs.files, out, settings, engine))
    return runner.summary()


def score(inputs: Inputs, out: Path, settings: QualitySettings, engine: Engine, *, positives: Inputs) -> Summary:
    """Score the inputs and keep what the Pareto draw keeps.

    The classifier is ``settings.model``, or one trained on ``positives`` against the inputs.
    """
    filtered, curated = inputs.sources, positives.sources
    if both := set(filtered) & set(curated):
        raise UsageFailure(f"{both.pop()}: a source of both the inputs and the positives; rename one by NAME=PATH")
    if settings.model is None and not curated:
        raise UsageFailure("score needs --positive INPUT, examples of good documents, or --model FILE")
    settings.check(curated)
    with standalone_runner("quality", out, engine, inputs, positives) as runner:
        shards = [*runner.shards(inputs), *runner.shards(positives, "positives")]
        before = _count_documents(shards)
        runner.run(lambda: filter_documents(shards, out, settings, filtered, curated, before=before, engine=engine))
    return runner.summary()


def _count_documents(shards: Sequence[Path]) -> dict[str, Summary]:
    """Documents and characters by source, under the keys of a stage's summary."""
    counts: dict[str, Summary] = {}
    for shard in shards:
        count = counts.setdefault(shard_source(shard), {"documents_out": 0, "characters_out": 0})
        for batch in read_documents(shard, ["text"]):
            count["documents_out"] += batch.num_rows
            count["characters_out"] += pc.sum(pc.utf8_length(batch["text"])).as_py()
    return counts


def clean(inputs: Inputs, out: Path, settings: CleanSettings, engine: Engine, *, rules: Sequence[Rule]) -> Summary:
    """Apply these rules to every document."""
    rules_by_source = dict.fromkeys(inputs.sources, tuple(rules))
    wanted = {name: getattr(settings, name) for name in LanguageSettings.model_fields}
    settings.check_model()
    with standalone_runner("clean", out, engine, inputs) as runner:
        shards = runner.shards(inputs, settings=ExtractSettings(**wanted))
        runner.run(lambda: clean_documents(shards, out, settings, rules_by_source, engine))
    return runner.summary()


def filter_by_rules(
    inputs: Inputs, out: Path, settings: FilterSettings, engine: Engine, *, rules: Sequence[str]
) -> Summary:
    """Drop and edit documents by these rules of the stage filter."""
    rules_by_source = dict.fromkeys(inputs.sources, tuple(rules))
    for path in list_paths(settings):
        check_list(path)
    check_rules(settings, [rules])
    with standalone_runner("filter", out, engine, inputs) as runner:
        shards = runner.shards(inputs)
        before: dict[str, Summary] = {source: {} for source in inputs.sources}  # of none that passes unread
        runner.run(lambda: apply_filters(shards, out, settings, rules_by_source, before=before, engine=engine))
    return runner.summary()


def dedup(inputs: Inputs, out: Path, settings: DeduplicateSettings, engine: Engine) -> Summary:
    """Keep one of near duplicates, the copy from the source that the inputs name first."""
    with standalone_runner("deduplicate", out, engine, inputs) as runner:
        shards = runner.shards(inputs)
        runner.run(lambda: deduplicate_documents(shards, out, settings, inputs.sources, engine))
    return runner.summary()


def exact(inputs: Inputs, out: Path, settings: ExactSettings, engine: Engine) -> Summary:
    """Keep one copy of equal documents, lines and passages, the one from the source that the inputs name first."""
    with standalone_runner("exact", out, engine, inputs) as runner:
        shards = runner.shards(inputs)
        runner.run(lambda: remove_repeats(shards, out, settings, inputs.sources, engine))
    return runner.summary()


def decontaminate(
    inputs: Inputs, out: Path, settings: DecontaminateSettings, engine: Engine, *, texts: Path
) -> Summary:
    """Cut the n-grams of the task texts out of the documents."""
    texts = local_path(texts)
    if not texts.is_file():
        raise Failure(f"{texts}: no such file of task texts; mtnlg-eval texts --out {texts} writes it")
    check_task_texts(texts)
    with standalone_runner("decontaminate", out, engine, inputs) as runner:
        shards = runner.shards(inputs)
        runner.run(lambda: decontaminate_documents(shards, out, settings, texts, engine))
    return runner.summary()


def tokenize(
    inputs: Inputs, out: Path, settings: TokenizeSettings, engine: Engine, *, weights: Mapping[str, float]
) -> Summary:
    """Documents to token stores, ``tokenizer.json`` and ``blend.json``; a single source needs no weight."""
    weights = weights or (dict.fromkeys(inputs.sources, 1.0) if len(inputs.sources) == 1 else {})
    if set(weights) != set(inputs.sources):
        raise UsageFailure(f"--weight needs NAME=SHARE for each of {', '.join(inputs.sources)}")
    try:
        check_weights(weights)
    except ValueError as error:
        raise UsageFailure(f"--weight: {error}") from None
    settings.check()
    with standalone_runner("tokenize", out, engine, inputs) as runner:
        shards = runner.shards(inputs)
        by_source = {source: [s for s in shards if shard_source(s) == source] for source in inputs.sources}
        runner.run(lambda: tokenize_documents(by_source, out, settings, weights, engine))
    return runner.summary()
