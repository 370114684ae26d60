"""The recipe of a curation, ``data.toml``: the sources of documents, the steps, and the settings of every step.

The order of the sources is their priority: of duplicates, the copy from the earliest source is kept::

    steps = ["extract", "clean", "long", "deduplicate", "tokenize"]   # ours in their order, if not given

    [sources.Wikipedia]                  # a dataset of the paper: its weight, subset and cleaning rules are built in
    kind = "pile"
    paths = ["pile/*.jsonl.zst"]

    [sources.own]
    kind = "jsonl"                       # or "arrow", "csv", "parquet", "pile", "tar", "text", "warc"
    paths = ["own/**/*.jsonl.gz"]        # relative to the recipe's folder, or to --input; or a URL such as s3://…
    weight = 0.1

    [sources.crawl]
    snapshot = "raw/CC-MAIN-2020-50"     # a folder filled by ``mtnlg-data fetch``: the files fetched so far are read
    weight = 0.3
    filtered = true                      # by the classifier trained on sources with ``curated = true``

    [long]                               # a step of one's own
    use = "filters.py:keep_long"         # a file beside the recipe, package.module:name, or an entry point's name
    least = 200                          # a parameter of the function
    only = ["own"]                       # sources; also except = […]
    where.language.zh = { least = 80 }   # also where.source.NAME

Each step declares the keys that it reads of a source's table. A recipe that cannot work is refused here, before any
step starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import ConfigDict, Field, PrivateAttr, StringConstraints, create_model, model_validator

from .console import UsageFailure, say
from .extract.language import check_language
from .registry import recipe_folder, references_from
from .settings import Settings, did_you_mean, dump, partial_settings, read_toml, setting, validate
from .sources import Reader, SourceFile
from .sources.matching import matching_files
from .sources.reader import load_reader, open_reader, reader_in_recipe
from .step import Step, Where
from .steps import OWN_STEPS
from .transfer.url_files import local_path
from .transfer.urls import FilePath, Url, local_only, located, location
from .user_code import function_step, open_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .transfer.url_files import RemoteFile
    from .transfer.urls import Location

RECIPE_FILE = "data.toml"

SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class Source(Settings):
    """Where the documents of a source come from; each step, and the reader of its kind, adds the keys that it reads."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(
        description="Format of the files: the name of a reader, or package.module:name or path/file.py:name of your "
        "own; warc where a snapshot is given."
    )
    paths: list[str] | None = setting(
        None, "Files and patterns such as own/**/*.jsonl.gz or s3://bucket/*.parquet.", min_length=1
    )
    _folder: Path | None = PrivateAttr(default_factory=recipe_folder)

    @property
    def reader(self) -> Reader:
        """The reader of its files."""
        return open_reader(self.kind, self.model_extra or {}, self._folder)

    @model_validator(mode="before")
    @classmethod
    def _check_keys_of_reader(cls, table: Any) -> Any:  # noqa: ANN401  (whatever the TOML holds)
        if not isinstance(table, dict) or "kind" not in table:
            return table
        try:
            keys = load_reader(str(table["kind"]), recipe_folder()).model_fields
        except UsageFailure as error:
            raise ValueError(f"kind = {table['kind']!r}: {error}") from None
        if clash := {*cls.model_fields} & {*keys}:
            raise ValueError(f"kind = {table['kind']!r}: its key {clash.pop()} is a key of every source; rename it")
        valid = {*cls.model_fields, *keys}
        if unknown := [key for key in table if key not in valid]:
            hint = f"{did_you_mean(unknown[0], valid)}keys of kind {table['kind']}: {', '.join(sorted(valid))}"
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
        return self

    def files(self, name: str, folder: Location) -> list[SourceFile]:
        """Its files below ``folder``, for a source called ``name``. Raises ``Failure`` if there are none."""
        if self.paths is None:
            paths: list[tuple[str, Path | RemoteFile]] = [*self.reader.find(local_only(folder))]
        else:
            paths = sorted(matching_files(name, self.paths, folder).items())
        options = self.model_extra or {}
        return [SourceFile(name, path, own, self.kind, options, folder=self._folder) for own, path in paths]


class Tables(Settings):
    """The keys that every recipe has; ``recipe_schema`` adds the tables of its steps."""

    input: FilePath = setting(Path(), "Base folder of all paths below, relative to the recipe's; --input overrides it.")
    steps: list[str] = setting([], "Steps in their order; default all. Steps may be left out, tokenize too.")
    sources: dict[SourceName, Source] = Field(min_length=1)


class StepKeys(Settings):
    """Keys that the table of a step may have beside its settings."""

    use: str | None = setting(None, "The step: a name, package.module:name, or file.py:name beside the recipe.")
    only: list[str] | None = setting(None, "Sources whose documents the step reads; all if not given.")
    except_: list[str] = setting([], "Sources whose documents pass the step unchanged.", alias="except")


class VaryingKeys(Settings):
    """Key of a step's table for settings that differ between documents."""

    where: Where = setting(Where(), "Settings by source and by language: where.source.NAME, where.language.CODE.")


Factory = tuple[type[Step[Any, Any]], str, Path | None]  # class, reference and folder of a step


def own_factories() -> dict[str, Factory]:
    """Our own steps by name, in their order."""
    classes = {name: open_step(name) for name in OWN_STEPS}
    ordered = sorted(classes, key=lambda name: (classes[name].number or 0, name))
    return {name: (classes[name], OWN_STEPS[name], None) for name in ordered}


def recipe_schema(factories: Mapping[str, Factory], run: Iterable[str] = ()) -> type[Tables]:
    """The class that reads a recipe with these steps; source keys of steps that are not in ``run`` are optional."""
    required = {*run}
    source_keys: list[Any] = []
    for name, (cls, _, _) in factories.items():
        if cls.SourceKeys is not Settings:
            source_keys.append(cls.SourceKeys if name in required else partial_settings(cls.SourceKeys))
    source: Any = create_model("Source", __base__=(*source_keys, Source)) if source_keys else Source
    tables: dict[str, Any] = {}
    for name, (cls, _, _) in factories.items():
        bases: list[Any] = [cls.Settings, *[StepKeys] * (cls.takes == cls.gives), *[VaryingKeys] * bool(cls.varies)]
        if clash := {*StepKeys.model_fields, *VaryingKeys.model_fields} & {*cls.Settings.model_fields}:
            raise UsageFailure(f"{name}: a setting cannot be called {clash.pop()}, which is a key of every step")
        table = create_model(f"{name}_table", __base__=tuple(base for base in bases if base is not Settings))
        missing = Field(default_factory=table) if name in required else None
        tables[name] = (table if name in required else table | None, missing)
    return create_model("Tables", __base__=Tables, sources=(dict[SourceName, source], Field(min_length=1)), **tables)


@dataclass(frozen=True)
class Recipe:
    """A curation: where documents come from, and the steps that they go through, bound to their sources."""

    input: Location
    tables: Tables
    steps: tuple[Step[Any, Any], ...]

    @classmethod
    def of(
        cls,
        sources: Mapping[str, Mapping[str, Any]],
        steps: Sequence[Step[Any, Any] | Callable[..., object]],
        folder: Path | None = None,
    ) -> Recipe:
        """The recipe of these sources, best first, and steps: instances, or functions with their defaults.

        Paths of sources start at ``folder``. Raises ``UsageFailure`` with a line for every mistake.
        """
        made = [
            step if isinstance(step, Step) else function_step(step, f"{step.__module__}:{step.__qualname__}")()
            for step in steps
        ]
        content: dict[str, Any] = {"steps": [step.name for step in made], "sources": sources}
        factories = {}
        for step in made:
            content[step.name] = step.table()
            factories[step.name] = (type(step), *step.reference)
        start = (folder or Path()).absolute()
        with references_from(start):
            return _resolve(content, factories, "recipe", start)

    @property
    def sources(self) -> Mapping[str, Any]:
        """The tables of the sources, in the order of their priority."""
        return self.tables.sources

    @property
    def folders(self) -> dict[str, str]:
        """Folder name of every step in the run's folder: our steps are numbered, others take the number before them."""
        folders, number = {}, 0
        for step in self.steps:
            number = number if step.number is None else step.number
            folders[step.name] = f"{number:02d}-{step.name}"
        return folders

    def step(self, name: str) -> Any:  # noqa: ANN401  (any class of steps)
        """The step of this name."""
        return next(step for step in self.steps if step.name == name)

    def dump(self) -> str:
        """The recipe as TOML with every default written out; ``load_recipe`` reads it back from any folder."""
        files = {step.name: str(step.reference[1] / step.reference[0]) for step in self.steps if step.reference[1]}
        used = {name: getattr(self.tables, name).model_copy(update={"use": file}) for name, file in files.items()}
        return dump(self.tables.model_copy(update=used))

    def files(self) -> list[SourceFile]:
        """Every file of every source, sources in order. Raises ``Failure`` for a pattern that matches no file."""
        return [file for name in self.sources for file in self.source_files(name)]

    def source_files(self, name: str) -> list[SourceFile]:
        """Every file of a source. Raises ``Failure`` for a pattern that matches no file."""
        files: list[SourceFile] = self.sources[name].files(name, self.input)
        return files


def load_recipe(recipe: Location | str, overrides: Sequence[str] = (), folder: Location | str | None = None) -> Recipe:
    """Read a recipe, a TOML file or a folder with data.toml, and apply ``key=value`` overrides.

    Its paths start at ``folder``, or else at its ``input``, which starts at the recipe's own folder. Raises ``Failure``
    if there is no such file, and ``UsageFailure`` with a line for every mistake in it.
    """
    recipe = location(recipe)
    path, content = read_toml(local_path(recipe), RECIPE_FILE, overrides)
    factories, beside = own_factories(), path.parent.absolute()
    own = recipe.parent if isinstance(recipe, Url) else beside
    tables = {name: table for name, table in content.items() if isinstance(table, dict)}
    if "steps" not in content and "tokenize" not in content:
        say(f"{path}: has no [tokenize], so it ends at documents; mtnlg-data export writes them")
    steps = content.setdefault("steps", [name for name in factories if name != "tokenize" or name in content])
    if not isinstance(steps, list) or not all(isinstance(name, str) for name in steps) or len({*steps}) < len(steps):
        raise UsageFailure(f"{path}: steps = {steps!r}: give the name of every step once")
    for name, table in tables.items():
        if "use" in table and name not in steps:
            say(f"{path}: {name} is not in steps, so it does not run")
            del content[name]
    for name in steps:
        use = str(tables.get(name, {}).get("use", name))
        if use != name or name not in factories:
            try:
                step = open_step(use, beside)
            except UsageFailure as error:
                raise UsageFailure(f"{path}: steps: {error}") from None
            factories[name] = (step, use, beside if ".py:" in use else None)
    start = location(folder) if folder else located(str(content.get("input", ".")), own)
    start = start.absolute() if isinstance(start, Path) else start
    with references_from(beside):
        return _resolve(content, factories, str(path), start)


def _resolve(content: dict[str, Any], factories: Mapping[str, Factory], place: str, start: Location) -> Recipe:
    """The recipe of this content. Raises ``UsageFailure`` with a line for every mistake."""
    content, kind = {**content, "input": str(start)}, "files"
    for name in content["steps"]:
        cls = factories[name][0]
        if cls.takes != kind:
            raise UsageFailure(f"{place}: steps: {name} takes {cls.takes}, but the step before it gives {kind}")
        kind = cls.gives
    for name, (cls, _, _) in factories.items():
        top_level = {key: content.pop(key) for key in cls.top_level if key in content}
        for other, keys in cls.follows.items():
            followed = content.get(other, {})
            top_level |= {key: followed[key] for key in keys if isinstance(followed, dict) and key in followed}
        if top_level and isinstance(table := content.get(name, {}), dict):
            content[name] = top_level | table
    if isinstance(sources := content.get("sources"), dict):
        content["sources"] = {name: _with_defaults(name, table, factories) for name, table in sources.items()}
    tables = validate(content, recipe_schema(factories, content["steps"]), place)
    steps: list[Step[Any, Any]] = []
    for name in tables.steps:
        cls, reference, folder = factories[name]
        table = getattr(tables, name)
        options = {key: getattr(table, key) for key in ("only", "except_", "where") if hasattr(table, key)}
        _check_sources(place, name, options, tables.sources)
        values = {key: getattr(table, key) for key in cls.Settings.model_fields}
        own = {
            source: {key: getattr(said, key) for key in cls.SourceKeys.model_fields}
            for source, said in tables.sources.items()
        }
        settings = cls.Settings.model_construct(**cls.localize(values, lambda place: local_path(located(place, start))))
        try:
            steps.append(step := cls(settings, own, name=name, reference=(reference, folder), **options))
            step.validate()
            by_cld2 = all(one.number and not getattr(one.settings, "language_model", None) for one in steps)
            for code in step.variants["language"] if by_cld2 else ():
                check_language(f"{name}.where.language", code)
        except (ValueError, UsageFailure) as error:
            raise UsageFailure("\n".join(f"{place}: {line}" for line in str(error).split("\n"))) from None
    _say_if_text(place, tables.sources)
    return Recipe(start, tables, tuple(steps))


def _say_if_text(place: str, sources: Mapping[str, Any]) -> None:
    """Say of which sources the messages are tokenized as text."""
    texts = [name for name, said in sources.items() if getattr(said, "message", None) and not getattr(said, "chat", 1)]
    if texts:
        learned = "tokenized as text, all of it learned; message = 'json' and chat = true learn answers only"
        say(f"{place}: messages of {', '.join(texts)} are {learned}")


def _check_sources(place: str, name: str, options: Mapping[str, Any], sources: Mapping[str, Any]) -> None:
    where = options.get("where")
    named = [*(options.get("only") or ()), *options.get("except_", ()), *(where.source if where else ())]
    if unknown := [source for source in named if source not in sources]:
        hint = f"{did_you_mean(unknown[0], sources)}those are {', '.join(sources)}"
        raise UsageFailure(f"{place}: {name}: no source {unknown[0]!r}; {hint}")


def _with_defaults(name: str, table: Any, factories: Mapping[str, Factory]) -> Any:  # noqa: ANN401  (whatever TOML holds)
    """Fill in the defaults that steps and the reader have for a source of this name."""
    if not isinstance(table, dict):
        return table
    table = {"kind": "warc", **table} if "snapshot" in table else table
    filled: dict[str, Any] = {}
    for cls, _, _ in factories.values():
        filled |= cls.source_defaults(name, table)
    return filled | reader_in_recipe(table.get("kind")).source_defaults(name) | table
