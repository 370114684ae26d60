"""The recipe of a curation, ``data.toml``: where documents come from and what each stage does to them.

A source takes a few lines; the order in which sources stand is their priority, so that of duplicates the copy from the
first is kept::

    [sources.Wikipedia]                  # a dataset of the paper's corpus: its weight, subset and cleaning are known
    kind = "pile"
    paths = ["pile/*.jsonl.zst"]

    [sources.own]
    kind = "jsonl"                       # or "parquet", "pile", "warc"
    paths = ["own/**/*.jsonl.gz"]        # relative to ``input``, which is relative to the working directory
    weight = 0.1

    [sources.crawl]
    snapshot = "raw/CC-MAIN-2020-50"     # a folder that ``mtnlg-data fetch`` fills: the files that have landed so far
    weight = 0.3
    filtered = true                      # judged by the classifier that learns from sources with ``curated = true``

Everything that cannot work is refused here, before anything starts.
"""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from mtnlg_data.clean.stage import VARIANTS, CleanSettings, Rule
from mtnlg_data.decontaminate.cut_planning import DecontaminateSettings
from mtnlg_data.dedup.stage import DeduplicateSettings
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.quality.stage import QualitySettings
from mtnlg_data.sources.corpus import DATASETS
from mtnlg_data.sources.snapshot import landed_files
from mtnlg_data.tokens.tokenizer import TokenizeSettings  # noqa: TC001  (pydantic reads the annotations)

from .console import Failure
from .settings import Settings, load
from .sources import Kind, SourceFile

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE = "data.toml"
TOLERANCE = 1e-3
TEXT_RULES: tuple[Rule, ...] = ("unicode", "language", "javascript", "short")
PAGE_RULES: tuple[Rule, ...] = ("unicode", "whitespace", "language", "javascript", "short")

SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class Source(Settings):
    """One source of documents."""

    kind: Kind
    paths: list[str] | None = Field(None, min_length=1)
    snapshot: str | None = None  # in place of paths: a folder that ``mtnlg-data fetch`` fills
    weight: float = Field(gt=0, le=1)  # share of the training samples
    filtered: bool = False  # judged by the quality classifier
    curated: bool = False  # what the quality classifier takes for good
    field: str = Field("text", min_length=1)  # key or column of the text (jsonl, parquet)
    subset: str | None = None  # the meta.pile_set_name that is wanted (pile)
    rules: list[Rule]  # of ``clean``; where the recipe names none, the usual ones of its kind

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if (self.paths is None) == (self.snapshot is None):
            raise ValueError("a source has either paths or a snapshot, the folder of one that was fetched")
        if self.snapshot is not None and self.kind != "warc":
            raise ValueError(f"snapshot = {self.snapshot!r} is of kind 'warc', not of kind {self.kind!r}")
        if self.subset is not None and self.kind != "pile":
            raise ValueError(f"subset = {self.subset!r} is of kind 'pile', not of kind {self.kind!r}")
        if self.field != "text" and self.kind not in {"jsonl", "parquet"}:
            raise ValueError(f"field = {self.field!r} is of kinds 'jsonl' and 'parquet', not of kind {self.kind!r}")
        if self.filtered and self.curated:
            raise ValueError("a source cannot be both curated and filtered by what is learnt from the curated")
        return self


class Recipe(Settings):
    """A whole curation."""

    input: Path = Path()  # the folder that relative paths below start from
    texts: str | None = None  # texts of the tasks, which training must not see (mtnlg-eval texts writes them)
    sources: dict[SourceName, Source] = Field(min_length=1)
    extract: ExtractSettings = ExtractSettings()
    quality: QualitySettings = QualitySettings()
    clean: CleanSettings = CleanSettings()
    deduplicate: DeduplicateSettings = DeduplicateSettings()
    decontaminate: DecontaminateSettings = DecontaminateSettings()
    tokenize: TokenizeSettings

    @field_validator("sources", mode="before")
    @classmethod
    def _as_the_corpus_has_it(cls, sources: Any) -> Any:  # noqa: ANN401  (whatever the TOML holds)
        """Fill in what the paper says of a source that bears the name of one of its datasets, and the usual rules."""
        if not isinstance(sources, dict):
            return sources
        return {name: _filled(name, table) if isinstance(table, dict) else table for name, table in sources.items()}

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total = sum(self.weights.values())
        if abs(total - 1) > TOLERANCE:
            each = " + ".join(f"{name} {weight:g}" for name, weight in self.weights.items())
            raise ValueError(f"the weights of the sources sum to {total:g}, not to 1: {each}")
        if self.filtered and not self.curated and self.quality.model is None:
            raise ValueError(
                f"{self.filtered[0]} has filtered = true, but no source has curated = true to tell what is good, "
                "and quality.model names no classifier"
            )
        return self

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every source."""
        return {name: source.weight for name, source in self.sources.items()}

    @property
    def filtered(self) -> tuple[str, ...]:
        """Names of the sources that the classifier judges."""
        return tuple(name for name, source in self.sources.items() if source.filtered)

    @property
    def curated(self) -> tuple[str, ...]:
        """Names of the sources that the classifier takes for good."""
        return tuple(name for name, source in self.sources.items() if source.curated)

    @property
    def judging(self) -> QualitySettings:
        """``quality``, with the path of its model from ``input`` on."""
        model = self.quality.model
        return self.quality if model is None else self.quality.model_copy(update={"model": self.input / model})

    @property
    def encoding(self) -> TokenizeSettings:
        """``tokenize``, with the path of its tokenizer from ``input`` on."""
        path = self.tokenize.path
        return self.tokenize if path is None else self.tokenize.model_copy(update={"path": self.input / path})

    def files(self) -> list[SourceFile]:
        """Every file of every source, in order. Raises ``Failure`` where a pattern finds none."""
        return [file for name, source in self.sources.items() for file in self._files_of(name, source)]

    def _files_of(self, name: str, source: Source) -> list[SourceFile]:
        kept = (source.kind, source.field, source.subset)
        if source.snapshot is not None:
            return [SourceFile(name, path, inner, *kept) for inner, path in self._landed(name, source.snapshot)]
        found = self._found(name, source.paths or ())
        return [SourceFile(name, found[inner], inner, *kept) for inner in sorted(found)]

    def _landed(self, name: str, snapshot: str) -> list[tuple[str, Path]]:
        """What has landed of a snapshot, in the order of its listing: what lands later comes behind."""
        folder = self.input / snapshot
        files = landed_files(folder)
        if not files:
            known = DATASETS.get(name)
            which = (known and known.snapshot) or "SNAPSHOT"
            raise Failure(f"{folder}: no file of source {name} has landed; mtnlg-data fetch {which} --out {folder}")
        return files

    def _found(self, name: str, patterns: Sequence[str]) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for pattern in patterns:
            whole = self.input / pattern
            base = _fixed_part(whole)
            matches = [path for path in base.glob(str(whole.relative_to(base))) if path.is_file()]
            if not matches:
                raise Failure(f"{whole}: no such file, which source {name} names; paths start at input = {self.input}")
            for path in matches:
                inner = path.relative_to(base).as_posix()
                if found.setdefault(inner, path) != path:
                    raise Failure(f"{path}: {found[inner]} of source {name} has the same name; rename one of the two")
        return found

    def texts_file(self) -> Path | None:
        """The texts of the tasks. Raises ``Failure`` where the recipe names a file that is none."""
        path = None if self.texts is None else self.input / self.texts
        if path is not None and not path.is_file():
            raise Failure(f"{path}: no such file of task texts; mtnlg-eval texts --out {path} writes it")
        return path


def load_recipe(recipe: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read ``recipe``, a TOML file or a folder that holds data.toml, with ``key=value`` overrides."""
    return load(recipe, FILE, Recipe, overrides)


def _filled(name: str, table: dict[str, Any]) -> dict[str, Any]:
    known = DATASETS.get(name)
    table = {"kind": "warc", **table} if "snapshot" in table else table
    rules = PAGE_RULES if table.get("kind") == "warc" or (known and known.whitespace) else TEXT_RULES
    filled = {"rules": [*rules, *VARIANTS.get(name, ())], **table}
    if known is not None:
        filled = {"weight": known.weight, **filled}
        if table.get("kind") == "pile":
            filled = {"subset": known.subset, **filled}
    return filled


def _fixed_part(pattern: Path) -> Path:
    """The folder of a pattern below which anything may vary."""
    parts = pattern.parent.parts
    fixed = next((count for count, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:fixed])
