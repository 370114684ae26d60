"""Each stage by itself: what the commands ``extract``, ``score``, ``clean``, ``dedup``, … run.

Inputs are files and folders of any format: WARC, JSON lines (plain, .gz, .zst; the Pile's are such), Parquet, and what
another stage has left. Documents that lie in no shards yet are brought into them first, by ``extract``, in the folder
``documents`` of the output. The output is what the stage leaves in a curation: shards with their manifests (or token
stores), ``summary.json`` and the page. The same call goes on where a killed one was.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.clean.stage import Rule
from mtnlg_data.extract.text import ExtractSettings

from .clean import stage as cleaning
from .console import Failure, UsageFailure, say
from .decontaminate import stage as decontamination
from .dedup import stage as deduplication
from .document import SCHEMA, read_documents, source_of
from .engine import at_work_in, manifest_path
from .extract import stage
from .files import write_json
from .quality import stage as judging
from .report import report
from .sources import SourceFile
from .tally import line, together
from .tokens import stage as tokenization

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mtnlg_data.clean.stage import CleanSettings
    from mtnlg_data.decontaminate.cut_planning import DecontaminateSettings
    from mtnlg_data.dedup.stage import DeduplicateSettings
    from mtnlg_data.quality.stage import QualitySettings
    from mtnlg_data.tokens.tokenizer import TokenizeSettings

    from .engine import Engine, Summary
    from .sources import Kind

NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})=(.+)", re.DOTALL)
KINDS: tuple[tuple[str, Kind], ...] = (
    (r"\.w?arc(\.gz)?$", "warc"),
    (r"\.(jsonl|ndjson|json)(\.gz|\.zst)?$", "jsonl"),
    (r"\.parquet$", "parquet"),
)


@dataclass
class Inputs:
    """What a stage is given: shards that another stage left, and files that are none yet, in the order of the words."""

    shards: list[Path] = field(default_factory=list)
    files: list[SourceFile] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)  # in the order of their priority


def inputs_of(
    words: Iterable[str],
    *,
    raw: bool = False,
    unnamed: str = "documents",
    **how: Any,  # noqa: ANN401  (of SourceFile)
) -> Inputs:
    """Find what ``PATH`` and ``NAME=PATH`` stand for: files of the source NAME; a folder stands for all below it.

    With ``raw`` no Parquet file counts as a shard. ``how`` goes to every ``SourceFile``. Raises ``Failure`` where there
    is no such file, or none of a known format, and ``UsageFailure`` where shards are given another name.
    """
    found = Inputs()
    for word in words:
        named = None if Path(word).exists() else NAMED.fullmatch(word)
        source, path = (named[1], Path(named[2])) if named else (unnamed, Path(word))
        if not path.exists():
            raise Failure(f"{path}: no such file or folder; an input is PATH or NAME=PATH")
        shards = [] if raw else [file for file in _listed(path) if _is_shard(file)]
        if shards and named:
            raise UsageFailure(f"{word}: its documents are of {source_of(shards[0])} already; NAME= is for other files")
        if shards:
            found.shards += shards
            found.sources += map(source_of, shards)
        else:
            found.files += _files(source, path, how)
            found.sources.append(source)
    found.sources = list(dict.fromkeys(found.sources))
    return found


def _listed(path: Path) -> list[Path]:
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


def _is_shard(path: Path) -> bool:
    if path.suffix != ".parquet" or not manifest_path(path).exists():
        return False
    try:
        return bool(pq.read_schema(path).equals(SCHEMA))
    except pa.ArrowException:
        return False


def _files(source: str, path: Path, how: Mapping[str, Any]) -> list[SourceFile]:
    """The files that a path stands for; a suffix that is not known is passed over in a folder, and refused alone."""
    base, paths = (path, sorted(path.rglob("*"))) if path.is_dir() else (path.parent, [path])
    files = [
        SourceFile(source, file, file.relative_to(base).as_posix(), **{"kind": kind, **how})
        for file in paths
        if file.is_file() and (kind := _kind(file)) is not None
    ]
    if not files:
        raise Failure(f"{path}: nothing that ends in .warc.gz, .jsonl (.gz, .zst) or .parquet")
    return files


def _kind(path: Path) -> Kind | None:
    return next((kind for pattern, kind in KINDS if re.search(pattern, path.name)), None)


def rules_of(words: str) -> tuple[Rule, ...]:
    """The rules of ``clean`` that stand between commas. Raises ``UsageFailure`` naming one that is none."""
    known: dict[str, Rule] = {rule: rule for rule in get_args(Rule)}
    if unknown := [word for word in words.split(",") if word not in known]:
        raise UsageFailure(f"--rules {words}: {unknown[0]!r} is none of {', '.join(known)}")
    return tuple(known[word] for word in words.split(","))


def weights_of(words: Sequence[str]) -> dict[str, float]:
    """The weights of ``NAME=SHARE``. Raises ``UsageFailure`` where one is no positive number."""
    weights = {}
    for word in words:
        name, _, share = word.partition("=")
        try:
            weights[name] = float(share)
        except ValueError:
            weights[name] = 0.0
        if not 0 < weights[name] <= 1:
            raise UsageFailure(f"--weight {word}: expected NAME=SHARE, a number above 0 up to 1")
    return weights


class Alone:
    """A stage at work in a folder: brings its inputs into shards, and in the end tells what became of them."""

    def __init__(self, out: Path, engine: Engine) -> None:
        self.out = out
        self.engine = engine
        self.accounts: list[Summary] = []

    def shards(self, inputs: Inputs, folder: str = "documents") -> list[Path]:
        """The shards of the inputs, those that were files first made in this folder of the output."""
        made: list[Path] = []
        if inputs.files:
            at = self.out / folder
            account = self.timed(lambda: stage.extract_documents(inputs.files, at, ExtractSettings(), self.engine))
            made = [at / name for name in account["shards"]]
        shards = [*inputs.shards, *made]
        names: dict[str, Path] = {}
        for shard in shards:
            if (other := names.setdefault(shard.name, shard)) != shard:
                raise UsageFailure(f"{shard}: {other} has the same file name; give one of them another source by NAME=")
        return shards

    def timed(self, work: Callable[[], Summary]) -> Summary:
        """Do a stage's work and keep its account."""
        began = time.monotonic()
        account = {**work(), "seconds": 0.0}
        account["seconds"] = round(time.monotonic() - began, 3)
        self.accounts.append(account)
        say(f"{line(account)} ({account['seconds']:.1f} s)")
        return account

    def summary(self) -> Summary:
        """What ``summary.json`` holds."""
        return together(self.accounts)


@contextmanager
def alone(out: Path, engine: Engine) -> Iterator[Alone]:
    """Work in ``out``, where nobody else does; in the end write summary and page."""
    with at_work_in(out, "a stage by itself", shared=False):
        work = Alone(out, engine)
        yield work
        write_json(out / "summary.json", work.summary())
        report(out)


def extract(inputs: Inputs, out: Path, settings: ExtractSettings, engine: Engine) -> Summary:
    """Records → documents: ``out/<source>-<number>.parquet``."""
    with alone(out, engine) as work:
        work.timed(lambda: stage.extract_documents(inputs.files, out, settings, engine))
    return work.summary()


def score(inputs: Inputs, out: Path, settings: QualitySettings, engine: Engine, *, positives: Inputs) -> Summary:
    """Score the inputs, and keep what the draw keeps.

    The classifier is ``settings.model``, or else one that learns to tell ``positives`` from the inputs.
    """
    roles = (inputs.sources, positives.sources)
    if both := set(roles[0]) & set(roles[1]):
        raise UsageFailure(f"{both.pop()}: a source of the inputs and of the positives; name one of them by NAME=PATH")
    if settings.model is None and not positives.sources:
        raise UsageFailure("score takes --positive INPUT, to learn from it what is good, or --set model=FILE")
    settings.check()
    with alone(out, engine) as work:
        judged, good = work.shards(inputs), work.shards(positives, "positives")
        before = _counted([*judged, *good])
        work.timed(
            lambda: judging.filter_documents([*judged, *good], out, settings, *roles, before=before, engine=engine)
        )
    return work.summary()


def _counted(shards: Sequence[Path]) -> dict[str, Summary]:
    """What an account would say of these shards."""
    counts: dict[str, Summary] = {}
    for shard in shards:
        count = counts.setdefault(source_of(shard), {"documents_out": 0, "characters_out": 0})
        for batch in read_documents(shard, ["text"]):
            count["documents_out"] += batch.num_rows
            count["characters_out"] += pc.sum(pc.utf8_length(batch["text"])).as_py()
    return counts


def clean(inputs: Inputs, out: Path, settings: CleanSettings, engine: Engine, *, rules: Sequence[Rule]) -> Summary:
    """Apply these rules to every document."""
    with alone(out, engine) as work:
        shards = work.shards(inputs)
        of = dict.fromkeys(inputs.sources, tuple(rules))
        work.timed(lambda: cleaning.clean_documents(shards, out, settings, of, engine))
    return work.summary()


def dedup(inputs: Inputs, out: Path, settings: DeduplicateSettings, engine: Engine) -> Summary:
    """Of near duplicates keep one, from the source that the inputs name first."""
    with alone(out, engine) as work:
        shards = work.shards(inputs)
        work.timed(lambda: deduplication.deduplicate_documents(shards, out, settings, inputs.sources, engine))
    return work.summary()


def decontaminate(
    inputs: Inputs, out: Path, settings: DecontaminateSettings, engine: Engine, *, texts: Path
) -> Summary:
    """Take the texts of the tasks out of the documents."""
    if not texts.is_file():
        raise Failure(f"{texts}: no such file of task texts; mtnlg-eval texts --out {texts} writes it")
    with alone(out, engine) as work:
        shards = work.shards(inputs)
        work.timed(lambda: decontamination.decontaminate_documents(shards, out, settings, texts, engine))
    return work.summary()


def tokenize(
    inputs: Inputs, out: Path, settings: TokenizeSettings, engine: Engine, *, weights: Mapping[str, float]
) -> Summary:
    """Documents → token stores, ``tokenizer.json`` and ``blend.json``; ``weights`` by source, one alone needs none."""
    weights = weights or (dict.fromkeys(inputs.sources, 1.0) if len(inputs.sources) == 1 else {})
    if set(weights) != set(inputs.sources):
        raise UsageFailure(f"--weight takes a NAME=SHARE for each of {', '.join(inputs.sources)}")
    with alone(out, engine) as work:
        shards = work.shards(inputs)
        by_source = {source: [s for s in shards if source_of(s) == source] for source in inputs.sources}
        work.timed(lambda: tokenization.tokenize_documents(by_source, out, settings, weights, engine))
    return work.summary()
