"""The recipe of a curation, ``data.toml``: the sources of documents and the settings of every stage.

The order of the sources is their priority: of duplicates, the copy from the earliest source is kept::

    [sources.Wikipedia]                  # a dataset of the paper: its weight, subset and cleaning rules are built in
    kind = "pile"
    paths = ["pile/*.jsonl.zst"]

    [sources.own]
    kind = "jsonl"                       # or "parquet", "pile", "warc"
    paths = ["own/**/*.jsonl.gz"]        # relative to ``input``, which is relative to the working directory
    weight = 0.1

    [sources.crawl]
    snapshot = "raw/CC-MAIN-2020-50"     # a folder filled by ``mtnlg-data fetch``: the files fetched so far are read
    weight = 0.3
    filtered = true                      # by the classifier trained on sources with ``curated = true``

A recipe that cannot work is refused here, before any stage starts.
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
from mtnlg_data.sources.snapshot import downloaded_files
from mtnlg_data.tokens.tokenizer import TokenizeSettings  # noqa: TC001  (pydantic reads the annotations)

from .console import Failure
from .settings import Settings, load
from .sources import Kind, SourceFile, name_below

if TYPE_CHECKING:
    from collections.abc import Sequence

RECIPE_FILE = "data.toml"
WEIGHT_TOLERANCE = 1e-3
TEXT_RULES: tuple[Rule, ...] = ("unicode", "language", "javascript", "short")
PAGE_RULES: tuple[Rule, ...] = ("unicode", "whitespace", "language", "javascript", "short")

SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class Source(Settings):
    """Files, weight and treatment of one source of documents."""

    kind: Kind
    paths: list[str] | None = Field(None, min_length=1)
    snapshot: str | None = None  # instead of paths: a folder filled by ``mtnlg-data fetch``
    weight: float = Field(gt=0, le=1)  # share of the training samples
    filtered: bool = False  # its documents are kept or dropped by their quality score
    curated: bool = False  # its documents are the quality classifier's positive examples
    field: str = Field("text", min_length=1)  # key or column of the text (jsonl, parquet)
    subset: str | None = None  # meta.pile_set_name of the documents to read (pile)
    rules: list[Rule]  # of ``clean``; by default those of its kind

    @model_validator(mode="after")
    def _check_keys_fit_kind(self) -> Self:
        if (self.paths is None) == (self.snapshot is None):
            raise ValueError("a source takes either paths or a snapshot, a folder filled by mtnlg-data fetch")
        if self.snapshot is not None and self.kind != "warc":
            raise ValueError(f"snapshot = {self.snapshot!r} needs kind = 'warc', not {self.kind!r}")
        if self.subset is not None and self.kind != "pile":
            raise ValueError(f"subset = {self.subset!r} needs kind = 'pile', not {self.kind!r}")
        if self.field != "text" and self.kind not in {"jsonl", "parquet"}:
            raise ValueError(f"field = {self.field!r} needs kind = 'jsonl' or 'parquet', not {self.kind!r}")
        if self.filtered and self.curated:
            raise ValueError("a source cannot be both curated and filtered: the filter is trained on curated sources")
        return self


class Recipe(Settings):
    """Sources and settings of a whole curation."""

    input: Path = Path()  # the folder of all relative paths below
    texts: str | None = (
        None  # texts of the evaluation tasks, to be cut from the documents (written by mtnlg-eval texts)
    )
    sources: dict[SourceName, Source] = Field(min_length=1)
    extract: ExtractSettings = ExtractSettings()
    quality: QualitySettings = QualitySettings()
    clean: CleanSettings = CleanSettings()
    deduplicate: DeduplicateSettings = DeduplicateSettings()
    decontaminate: DecontaminateSettings = DecontaminateSettings()
    tokenize: TokenizeSettings

    @field_validator("sources", mode="before")
    @classmethod
    def _fill_defaults(cls, sources: Any) -> Any:  # noqa: ANN401  (whatever the TOML holds)
        """Fill in the default rules, and weight and subset of a source named like a dataset of the paper."""
        if not isinstance(sources, dict):
            return sources
        return {
            name: _with_defaults(name, table) if isinstance(table, dict) else table for name, table in sources.items()
        }

    @model_validator(mode="after")
    def _check_weights_and_classifier(self) -> Self:
        total = sum(self.weights.values())
        if abs(total - 1) > WEIGHT_TOLERANCE:
            each = " + ".join(f"{name} {weight:g}" for name, weight in self.weights.items())
            raise ValueError(f"the weights of the sources sum to {total:g}, not to 1: {each}")
        if self.filtered and not self.curated and self.quality.model is None:
            raise ValueError(
                f"{self.filtered[0]} has filtered = true, but no source has curated = true to train a classifier on, "
                "and quality.model names none"
            )
        return self

    @property
    def weights(self) -> dict[str, float]:
        """Share of the training samples, by source."""
        return {name: source.weight for name, source in self.sources.items()}

    @property
    def filtered(self) -> tuple[str, ...]:
        """Names of the sources with ``filtered = true``."""
        return tuple(name for name, source in self.sources.items() if source.filtered)

    @property
    def curated(self) -> tuple[str, ...]:
        """Names of the sources with ``curated = true``."""
        return tuple(name for name, source in self.sources.items() if source.curated)

    @property
    def resolved_quality(self) -> QualitySettings:
        """``quality`` with the path of its model below ``input``."""
        model = self.quality.model
        return self.quality if model is None else self.quality.model_copy(update={"model": self.input / model})

    @property
    def resolved_tokenize(self) -> TokenizeSettings:
        """``tokenize`` with the path of its tokenizer below ``input``."""
        path = self.tokenize.path
        return self.tokenize if path is None else self.tokenize.model_copy(update={"path": self.input / path})

    def files(self) -> list[SourceFile]:
        """Every file of every source, sources in order. Raises ``Failure`` for a pattern that matches no file."""
        files = []
        for name, source in self.sources.items():
            if source.snapshot is None:
                paths = sorted(self._matching_files(name, source.paths or ()).items())
            else:
                paths = self._fetched_files(name, source.snapshot)
            files += [SourceFile(name, path, inner, source.kind, source.field, source.subset) for inner, path in paths]
        return files

    def _fetched_files(self, name: str, snapshot: str) -> list[tuple[str, Path]]:
        """The files of a snapshot fetched so far, in the order of its listing, so that later ones come last."""
        folder = self.input / snapshot
        files = downloaded_files(folder)
        if not files:
            known = DATASETS.get(name)
            which = (known and known.snapshot) or "SNAPSHOT"
            raise Failure(
                f"{folder}: no file of source {name} is here yet; fetch some by mtnlg-data fetch {which} --out {folder}"
            )
        return files

    def _matching_files(self, name: str, patterns: Sequence[str]) -> dict[str, Path]:
        """The files that match, by their path below the pattern's fixed folder."""
        files: dict[str, Path] = {}
        for pattern in patterns:
            full_pattern = self.input / pattern
            base = _fixed_folder(full_pattern)
            matches = [path for path in base.glob(str(full_pattern.relative_to(base))) if path.is_file()]
            if not matches:
                raise Failure(
                    f"{full_pattern}: no such file (source {name}); paths are relative to input = {self.input}"
                )
            for path in matches:
                inner = name_below(path, base)
                if files.setdefault(inner, path) != path:
                    raise Failure(f"{path}: {files[inner]} of source {name} has the same name; rename one of the two")
        return files

    def texts_file(self) -> Path | None:
        """The file of task texts, if the recipe names one. Raises ``Failure`` if it does not exist."""
        path = None if self.texts is None else self.input / self.texts
        if path is not None and not path.is_file():
            raise Failure(f"{path}: no such file of task texts; mtnlg-eval texts --out {path} writes it")
        return path


def load_recipe(recipe: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, a TOML file or a folder with data.toml, and apply ``key=value`` overrides.

    Raises ``Failure`` if there is no such file, and ``UsageFailure`` with a line for every mistake in it.
    """
    return load(recipe, RECIPE_FILE, Recipe, overrides)


def _with_defaults(name: str, table: dict[str, Any]) -> dict[str, Any]:
    known = DATASETS.get(name)
    table = {"kind": "warc", **table} if "snapshot" in table else table
    rules = PAGE_RULES if table.get("kind") == "warc" or (known and known.whitespace) else TEXT_RULES
    filled = {"rules": [*rules, *VARIANTS.get(name, ())], **table}
    if known is not None:
        filled = {"weight": known.weight, **filled}
        if table.get("kind") == "pile":
            filled = {"subset": known.subset, **filled}
    return filled


def _fixed_folder(pattern: Path) -> Path:
    """The deepest folder of a pattern that holds no wildcard."""
    parts = pattern.parent.parts
    fixed = next((count for count, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:fixed])
