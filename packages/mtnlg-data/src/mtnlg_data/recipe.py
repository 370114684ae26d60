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

import glob
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, StringConstraints, ValidationInfo, field_validator, model_validator

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
from mtnlg_data.transfer.snapshot import downloaded_files
from mtnlg_data.transfer.url_files import RemoteFile, list_files, local_path
from mtnlg_data.transfer.urls import check_local, url_of

from .console import Failure
from .settings import Settings, load, setting
from .sources import Kind, SourceFile, check_regular, is_hidden, name_below

if TYPE_CHECKING:
    from collections.abc import Sequence

RECIPE_FILE = "data.toml"
TEXT_RULES: tuple[Rule, ...] = ("unicode", "language", "javascript", "short")
PAGE_RULES: tuple[Rule, ...] = ("unicode", "whitespace", "language", "javascript", "short")

SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class Source(Settings):
    """Files, weight and treatment of one source of documents."""

    kind: Kind = Field(description="Format of the files; warc where a snapshot is given.")
    paths: list[str] | None = setting(
        None, "Files and patterns such as own/**/*.jsonl.gz or s3://bucket/*.parquet.", min_length=1
    )
    snapshot: str | None = setting(None, "Instead of paths: a folder filled by mtnlg-data fetch.")
    weight: float = Field(
        gt=0, le=1, description="Share of the training samples; that of the paper's dataset of the same name."
    )
    filtered: bool = setting(False, "Keep or drop its documents by their quality score.", paper="the two crawls")
    curated: bool = setting(
        False,
        "Its documents are the quality classifier's positive examples.",
        paper="OpenWebText2, Wikipedia, Books3",
    )
    field: str = setting("text", "Key or column of the text (jsonl, parquet, arrow).", min_length=1)
    subset: str | None = setting(None, "Of the Pile: the pile_set_name of the documents to read.")
    filters: list[str] = setting(
        [],
        "Families of rules of filter (url, gopher_repetition, gopher_quality, c4, fineweb, pii), or rules of theirs.",
    )
    rules: list[Rule] = Field(description="Rules of clean; those of the paper for its kind and name if not given.")

    @field_validator("filters")
    @classmethod
    def _check_filters(cls, filters: list[str]) -> list[str]:
        expand_rules(filters)
        return filters

    @model_validator(mode="after")
    def _check_keys_fit_kind(self) -> Self:
        if (self.paths is None) == (self.snapshot is None):
            raise ValueError("a source takes either paths or a snapshot, a folder filled by mtnlg-data fetch")
        if self.snapshot is not None and self.kind != "warc":
            raise ValueError(f"snapshot = {self.snapshot!r} needs kind = 'warc', not {self.kind!r}")
        if self.subset is not None and self.kind != "pile":
            raise ValueError(f"subset = {self.subset!r} needs kind = 'pile', not {self.kind!r}")
        if self.field != "text" and self.kind not in {"jsonl", "parquet", "arrow"}:
            raise ValueError(f"field = {self.field!r} needs kind = 'jsonl', 'parquet' or 'arrow', not {self.kind!r}")
        if self.filtered and self.curated:
            raise ValueError("a source cannot be both curated and filtered: the filter is trained on curated sources")
        return self


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
        source = self.sources[name]
        paths: Sequence[tuple[str, Path | RemoteFile]]
        if source.snapshot is None:
            paths = sorted(self._matching_files(name, source.paths or ()).items())
        else:
            paths = self._fetched_files(name, source.snapshot)
        return [SourceFile(name, path, inner, source.kind, source.field, source.subset) for inner, path in paths]

    def _fetched_files(self, name: str, snapshot: str) -> Sequence[tuple[str, Path]]:
        """The files of a snapshot fetched so far, in the order of its listing, so that later ones come last."""
        folder = check_local(self._below_input(snapshot))
        files = downloaded_files(folder)
        if not files:
            known = DATASETS.get(name)
            which = (known and known.snapshot) or "SNAPSHOT"
            raise Failure(
                f"{folder}: no file of source {name} is here yet; fetch some by mtnlg-data fetch {which} --out {folder}"
            )
        return files

    def _matching_files(self, name: str, patterns: Sequence[str]) -> dict[str, Path | RemoteFile]:
        """The files that match, by their path below the pattern's fixed folder; hidden ones where it names such."""
        files: dict[str, Path | RemoteFile] = {}
        read: dict[str, tuple[str, str]] = {}  # name and pattern of each file, by where it really is
        for pattern in patterns:
            full_pattern = self._below_input(pattern)
            url = url_of(full_pattern)
            matches = self._matches_here(name, pattern) if url is None else _matches_at(url, name)
            for own, path in matches.items():
                place = path.url if isinstance(path, RemoteFile) else str(path.resolve())
                first, by = read.setdefault(place, (own, pattern))
                if first != own:
                    raise Failure(
                        f"{path}: source {name} reads it twice, as {first} by {by} and as {own} by {pattern}; let one "
                        "of them match it"
                    )
                if str(files.setdefault(own, path)) != str(path):
                    raise Failure(f"{path}: {files[own]} of source {name} has the same name; rename one of the two")
        return files

    def _matches_here(self, name: str, pattern: str) -> dict[str, Path]:
        """The files of this machine that match a pattern, by name."""
        base, full_pattern = self.input / _fixed_folder(Path(pattern)), self.input / pattern
        if full_pattern.is_dir():
            raise Failure(f"{full_pattern}: a folder (source {name}); give a pattern of its files, such as *.jsonl")
        inner = str(full_pattern.relative_to(base))
        try:
            matches, links = list(base.glob(inner)), _passed_links(base, inner)
        except ValueError as error:
            raise Failure(f"{full_pattern}: no pattern of files (source {name}): {error}") from None
        if not full_pattern.suffix:  # such as own/**, which matches folders on the way
            matches = [path for path in matches if not path.is_dir()]
        if not is_hidden(inner):
            matches, links = ([p for p in paths if not is_hidden(name_below(p, base))] for paths in (matches, links))
        if links:
            raise Failure(
                f"{links[0]}: a link to a folder, which ** does not follow (source {name}); name it and the folders "
                "beside it in patterns of their own"
            )
        if not matches:
            raise Failure(
                f"{full_pattern}: no such file (source {name}); paths start at {self.input}, --input takes another"
            )
        for path in matches:
            check_regular(path)
        return {name_below(path, base): path for path in matches}

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
    read = load(local_path(recipe), RECIPE_FILE, Recipe, overrides)
    own = recipe if recipe.is_dir() else recipe.parent
    start = folder or (read.input if url_of(read.input) else own / read.input)
    return read.model_copy(update={"input": start if url_of(start) else start.absolute()})


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


def _matches_at(url: str, source: str) -> dict[str, RemoteFile]:
    """The files at a URL, by name."""
    listed = list_files(url)
    seen = {own: file for own, file in listed.items() if not is_hidden(own) or url.endswith(f"/{own}")}
    if not seen:
        raise Failure(f"{url}: no file there but hidden ones (source {source})")
    return seen


def _passed_links(base: Path, pattern: str) -> list[Path]:
    """The links to folders that a ``**`` of the pattern meets and does not follow."""
    parts = Path(pattern).parts
    if "**" not in parts:
        return []
    met = "/".join((*parts[: parts.index("**")], "**", "*", ""))
    return [folder for folder in base.glob(met) if folder.is_symlink()]


def _fixed_folder(pattern: Path) -> Path:
    """The deepest folder of a pattern that holds no wildcard."""
    parts = pattern.parent.parts
    fixed = next((count for count, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:fixed])
