"""The recipe of a curation, ``data.toml``: the sources of documents and the settings of every stage.

The order of the sources is their priority: of duplicates, the copy from the earliest source is kept::

    [sources.Wikipedia]                  # a dataset of the paper: its weight, subset and cleaning rules are built in
    kind = "pile"
    paths = ["pile/*.jsonl.zst"]

    [sources.own]
    kind = "jsonl"                       # or "arrow", "parquet", "pile", "warc"
    paths = ["own/**/*.jsonl.gz"]        # relative to the recipe's folder, or to --input; or a URL such as s3://…
    weight = 0.1

    [sources.crawl]
    snapshot = "raw/CC-MAIN-2020-50"     # a folder filled by ``mtnlg-data fetch``: the files fetched so far are read
    weight = 0.3
    filtered = true                      # by the classifier trained on sources with ``curated = true``

A recipe that cannot work is refused here, before any stage starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import ConfigDict, Field, PrivateAttr, StringConstraints, ValidationInfo, field_validator, model_validator

from mtnlg_data.clean.stage import VARIANTS, CleanSettings, Rule
from mtnlg_data.decontaminate.cut_planning import DecontaminateSettings
from mtnlg_data.dedup.stage import DeduplicateSettings
from mtnlg_data.exact.settings import ExactSettings
from mtnlg_data.extract.language import LanguageSettings
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.filters.rules import expand_rules
from mtnlg_data.filters.settings import LIST_FIELDS, FilterSettings
from mtnlg_data.quality.stage import QualitySettings
from mtnlg_data.sources.corpus import DATASETS
from mtnlg_data.tokens.blend import check_weights
from mtnlg_data.tokens.gpt2 import GPT2
from mtnlg_data.tokens.tokenizer import TokenizeSettings  # noqa: TC001  (pydantic reads the annotations)
from mtnlg_data.transfer.url_files import local_path
from mtnlg_data.transfer.urls import url_of

from .console import Failure, UsageFailure
from .registry import did_you_mean, recipe_folder, references_from
from .settings import Settings, load, setting
from .sources import Reader, SourceFile
from .sources.matching import matching_files
from .sources.reader import load_reader, open_reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_data.transfer.url_files import RemoteFile

RECIPE_FILE = "data.toml"
TEXT_RULES: tuple[Rule, ...] = ("unicode", "language", "javascript", "short")
PAGE_RULES: tuple[Rule, ...] = ("unicode", "whitespace", "language", "javascript", "short")

SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class Source(Settings):
    """Files, weight and treatment of one source of documents; further keys are those of its reader."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(
        description="Format of the files: the name of a reader, or package.module:name or path/file.py:name of your "
        "own; warc where a snapshot is given."
    )
    paths: list[str] | None = setting(
        None, "Files and patterns such as own/**/*.jsonl.gz or s3://bucket/*.parquet.", min_length=1
    )
    weight: float = Field(
        gt=0, le=1, description="Share of the training samples; that of the paper's dataset of the same name."
    )
    filtered: bool = setting(False, "Keep or drop its documents by their quality score.", paper="the two crawls")
    curated: bool = setting(
        False,
        "Its documents are the quality classifier's positive examples.",
        paper="OpenWebText2, Wikipedia, Books3",
    )
    filters: list[str] = setting(
        [],
        "Families of rules of filter (url, gopher_repetition, gopher_quality, c4, fineweb, pii), or rules of theirs.",
    )
    rules: list[Rule] = Field(description="Rules of clean; those of the paper for its kind and name if not given.")
    _folder: Path | None = PrivateAttr(default_factory=recipe_folder)

    @field_validator("filters")
    @classmethod
    def _check_filters(cls, filters: list[str]) -> list[str]:
        expand_rules(filters)
        return filters

    @property
    def reader(self) -> Reader:
        """What reads its files."""
        return open_reader(self.kind, self.model_extra or {}, self._folder)

    @model_validator(mode="before")
    @classmethod
    def _check_keys_of_reader(cls, table: Any) -> Any:  # noqa: ANN401  (whatever the TOML holds)
        if not isinstance(table, dict) or "kind" not in table:
            return table
        try:
            known = {*cls.model_fields, *load_reader(str(table["kind"]), recipe_folder()).model_fields}
        except UsageFailure as error:
            raise ValueError(f"kind = {table['kind']!r}: {error}") from None
        if unknown := [key for key in table if key not in known]:
            hint = f"{did_you_mean(unknown[0], known)}keys of kind {table['kind']}: {', '.join(sorted(known))}"
            raise ValueError(f"{unknown[0]} = {table[unknown[0]]!r}: unknown key; {hint}")
        return table

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        try:
            finds_files = self.reader.finds_files
        except UsageFailure as error:
            raise ValueError(str(error)) from None
        if (self.paths is None) != finds_files:
            raise ValueError("a source takes either paths or a snapshot, a folder filled by mtnlg-data fetch")
        if self.filtered and self.curated:
            raise ValueError("a source cannot be both curated and filtered: the filter is trained on curated sources")
        return self

    def files(self, name: str, folder: Path) -> list[SourceFile]:
        """Its files, below the folder, as those of a source of this name. Raises ``Failure`` where there are none."""
        if self.paths is None:
            found: list[tuple[str, Path | RemoteFile]] = [*self.reader.find(folder)]
        else:
            found = sorted(matching_files(name, self.paths, folder).items())
        options = self.model_extra or {}
        return [SourceFile(name, path, own, self.kind, options, folder=self._folder) for own, path in found]


class Recipe(Settings):
    """Sources and settings of a whole curation."""

    input: Path = setting(Path(), "Folder of all paths below, from the recipe's own; --input gives another.")
    texts: str | None = setting(None, "Texts of the evaluation tasks, to be cut from the documents (mtnlg-eval texts).")
    sources: dict[SourceName, Source] = Field(min_length=1)
    extract: ExtractSettings = ExtractSettings()
    quality: QualitySettings = QualitySettings()
    clean: CleanSettings = Field(CleanSettings(), validate_default=True)
    filter: FilterSettings = FilterSettings()
    deduplicate: DeduplicateSettings = DeduplicateSettings()
    exact: ExactSettings = ExactSettings()
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

    @field_validator("clean")
    @classmethod
    def _fill_in_languages(cls, clean: CleanSettings, info: ValidationInfo) -> CleanSettings:
        """``clean`` wants the languages that ``extract`` wants, where it names none."""
        extract = info.data.get("extract", clean)
        unset = set(LanguageSettings.model_fields) - clean.model_fields_set
        return clean.model_copy(update={name: getattr(extract, name) for name in unset})

    @model_validator(mode="after")
    def _check_weights_and_classifier(self) -> Self:
        check_weights(self.weights)
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
    def resolved_extract(self) -> ExtractSettings:
        """``extract`` with the path of its language model below ``input``."""
        return self.extract.model_copy(update=self._language_model(self.extract))

    @property
    def resolved_clean(self) -> CleanSettings:
        """``clean`` with the path of its language model below ``input``."""
        return self.clean.model_copy(update=self._language_model(self.clean))

    def _language_model(self, settings: LanguageSettings) -> dict[str, Path | None]:
        return {"language_model": settings.language_model and self.local_file(settings.language_model)}

    @property
    def resolved_quality(self) -> QualitySettings:
        """``quality`` with the path of its model below ``input``."""
        model = self.quality.model
        return self.quality if model is None else self.quality.model_copy(update={"model": self.local_file(model)})

    @property
    def filters(self) -> dict[str, tuple[str, ...]]:
        """The rules of ``filter`` of every source that has some."""
        return {name: expand_rules(source.filters) for name, source in self.sources.items() if source.filters}

    @property
    def resolved_filter(self) -> FilterSettings:
        """``filter`` with the files of its lists below ``input``."""
        lists = {name: tuple(map(self.local_file, getattr(self.filter, name))) for name in LIST_FIELDS}
        return self.filter.model_copy(update=lists)

    @property
    def resolved_tokenize(self) -> TokenizeSettings:
        """``tokenize`` with the path of its tokenizer below ``input``."""
        given = self.tokenize.tokenizer
        if given in {None, GPT2}:
            return self.tokenize
        return self.tokenize.model_copy(update={"tokenizer": str(self.local_file(str(given)))})

    def _below_input(self, path: str | Path) -> Path:
        """A path of the recipe: below ``input``, or a URL."""
        return Path(path) if url_of(path) else self.input / path

    def local_file(self, path: str | Path) -> Path:
        """A file, or folder, of the recipe; of a URL, a copy on this machine."""
        return local_path(self._below_input(path))

    def files(self) -> list[SourceFile]:
        """Every file of every source, sources in order. Raises ``Failure`` for a pattern that matches no file."""
        return [file for name in self.sources for file in self.source_files(name)]

    def source_files(self, name: str) -> list[SourceFile]:
        """Every file of a source. Raises ``Failure`` for a pattern that matches no file."""
        return self.sources[name].files(name, self.input)

    def texts_file(self) -> Path | None:
        """The file of task texts, if the recipe names one. Raises ``Failure`` if it does not exist."""
        path = None if self.texts is None else self.local_file(self.texts)
        if path is not None and not path.is_file():
            raise Failure(f"{path}: no such file of task texts; mtnlg-eval texts --out {path} writes it")
        return path


def load_recipe(recipe: Path, overrides: Sequence[str] = (), folder: Path | None = None) -> Recipe:
    """Read a recipe, a TOML file or a folder with data.toml, and apply ``key=value`` overrides.

    Its paths start at ``folder``, or else at its ``input``, which starts at the recipe's own folder. Raises ``Failure``
    if there is no such file, and ``UsageFailure`` with a line for every mistake in it.
    """
    copy = local_path(recipe)
    with references_from((copy if copy.is_dir() else copy.parent).absolute()):
        read = load(copy, RECIPE_FILE, Recipe, overrides)
    own = recipe if recipe.is_dir() else recipe.parent
    start = folder or (read.input if url_of(read.input) else own / read.input)
    return read.model_copy(update={"input": start if url_of(start) else start.absolute()})


def _with_defaults(name: str, table: dict[str, Any]) -> dict[str, Any]:
    known = DATASETS.get(name)
    table = {"kind": "warc", **table} if "snapshot" in table else table
    try:
        reader = load_reader(str(table.get("kind")), recipe_folder())
    except UsageFailure:  # which the source reports
        reader = Reader
    rules = PAGE_RULES if reader.pages or (known and known.whitespace) else TEXT_RULES
    filled = {"rules": [*rules, *VARIANTS.get(name, ())], **table}
    if known is not None:
        filled = {"weight": known.weight, **filled}
        if "subset" in reader.model_fields:
            filled = {"subset": known.subset, **filled}
    return filled
