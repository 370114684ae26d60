"""The recipe of a curation, ``data.toml``: the sources of documents, the steps, and the settings of every step.

The order of the sources is their priority: of duplicates, the copy from the earliest source is kept::

    steps = ["extract", "clean", "long", "deduplicate", "tokenize"]   # ours in their order, if not given

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

    [long]                               # a step of one's own
    use = "filters.py:keep_long"         # a file beside the recipe, package.module:name, or an entry point's name
    least = 200                          # a parameter of the function
    only = ["own"]                       # sources; also except = […]
    where.language.zh = { least = 80 }   # also where.source.NAME

What a step reads of the table of a source is said by the step. A recipe that cannot work is refused here, before any
step starts.
"""

from __future__ import annotations

import glob
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, StringConstraints, create_model, model_validator

from .console import Failure, UsageFailure, say
from .registry import did_you_mean
from .settings import Settings, dump, partial_settings, read_toml, setting, validate
from .sources import Kind, SourceFile, check_regular, is_hidden, name_below
from .sources.corpus import DATASETS
from .step import Step, Where
from .steps import OWN_STEPS
from .transfer.snapshot import downloaded_files
from .transfer.url_files import RemoteFile, list_files, local_path
from .transfer.urls import check_local, url_of
from .user_code import function_step, open_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

RECIPE_FILE = "data.toml"

SourceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=64)]


class Source(Settings):
    """Where the documents of a source come from; each step adds the keys that it reads."""

    kind: Kind = Field(description="Format of the files; warc where a snapshot is given.")
    paths: list[str] | None = setting(
        None, "Files and patterns such as own/**/*.jsonl.gz or s3://bucket/*.parquet.", min_length=1
    )
    snapshot: str | None = setting(None, "Instead of paths: a folder filled by mtnlg-data fetch.")
    field: str = setting("text", "Key or column of the text (jsonl, parquet, arrow).", min_length=1)
    subset: str | None = setting(None, "Of the Pile: the pile_set_name of the documents to read.")

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
        return self


class Tables(Settings):
    """What every recipe has; the tables of its steps are added by ``recipe_schema``."""

    input: Path = setting(Path(), "Folder of all paths below, from the recipe's own; --input gives another.")
    steps: list[str] = setting([], "Steps in their order; ours if not given. May leave some out, and end at documents.")
    sources: dict[SourceName, Source] = Field(min_length=1)


class StepKeys(Settings):
    """What the table of a step may say beside its settings."""

    use: str | None = setting(None, "The step: a name, package.module:name, or file.py:name beside the recipe.")
    only: list[str] | None = setting(None, "Sources whose documents it sees; all if not given.")
    except_: list[str] = setting([], "Sources that pass it unread.", alias="except")
    where: Where = setting(Where(), "Settings by source and by language: where.source.NAME, where.language.CODE.")


Factory = tuple[type[Step[Any, Any]], str, Path | None]  # class, reference and folder of a step


def own_factories() -> dict[str, Factory]:
    """Our own steps by name, in their order."""
    classes = {name: open_step(name) for name in OWN_STEPS}
    ordered = sorted(classes, key=lambda name: (classes[name].number or 0, name))
    return {name: (classes[name], OWN_STEPS[name], None) for name in ordered}


def recipe_schema(factories: Mapping[str, Factory], run: Iterable[str] = ()) -> type[Tables]:
    """The class that reads a recipe with these steps; source keys of steps outside of ``run`` may lack."""
    required = {*run}
    keys: list[Any] = []
    for name, (cls, _, _) in factories.items():
        if cls.SourceKeys is not Settings:
            keys.append(cls.SourceKeys if name in required else partial_settings(cls.SourceKeys))
    source: Any = create_model("Source", __base__=(*keys, Source)) if keys else Source
    tables: dict[str, Any] = {}
    for name, (cls, _, _) in factories.items():
        bases = (cls.Settings, StepKeys) if cls.takes == cls.gives else (cls.Settings,)
        if clash := set(StepKeys.model_fields) & set(cls.Settings.model_fields):
            raise UsageFailure(f"{name}: a setting cannot be called {clash.pop()}, which a recipe says of every step")
        table = create_model(f"{name}_table", __base__=tuple(base for base in bases if base is not Settings))
        missing = Field(default_factory=table) if name in required else None
        tables[name] = (table if name in required else table | None, missing)
    return create_model("Tables", __base__=Tables, sources=(dict[SourceName, source], Field(min_length=1)), **tables)


@dataclass(frozen=True)
class Recipe:
    """A curation: where documents come from, and the steps that they go through, bound to their sources."""

    input: Path  # or a URL
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
        return _resolve(content, factories, "recipe", (folder or Path()).absolute())

    @property
    def sources(self) -> Mapping[str, Any]:
        """The tables of the sources, in the order of their priority."""
        return self.tables.sources

    @property
    def folders(self) -> dict[str, str]:
        """The folder of every step in that of the run: ours are numbered, others have the number of the step before."""
        folders, number = {}, 0
        for step in self.steps:
            number = number if step.number is None else step.number
            folders[step.name] = f"{number:02d}-{step.name}"
        return folders

    def step(self, name: str) -> Any:  # noqa: ANN401  (any class of steps)
        """The step of this name."""
        return next(step for step in self.steps if step.name == name)

    def dump(self) -> str:
        """The recipe as TOML, every default written out, from which ``load_recipe`` reads it back in any folder."""
        files = {step.name: str(step.reference[1] / step.reference[0]) for step in self.steps if step.reference[1]}
        used = {name: getattr(self.tables, name).model_copy(update={"use": file}) for name, file in files.items()}
        return dump(self.tables.model_copy(update=used))

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


def load_recipe(recipe: Path, overrides: Sequence[str] = (), folder: Path | None = None) -> Recipe:
    """Read a recipe, a TOML file or a folder with data.toml, and apply ``key=value`` overrides.

    Its paths start at ``folder``, or else at its ``input``, which starts at the recipe's own folder. Raises ``Failure``
    if there is no such file, and ``UsageFailure`` with a line for every mistake in it.
    """
    path, content = read_toml(local_path(recipe), RECIPE_FILE, overrides)
    factories = own_factories()
    own = recipe if recipe.is_dir() else recipe.parent
    tables = {name: table for name, table in content.items() if isinstance(table, dict)}
    steps = content.setdefault("steps", [*factories])
    if not isinstance(steps, list) or not all(isinstance(name, str) for name in steps) or len({*steps}) < len(steps):
        raise UsageFailure(f"{path}: steps = {steps!r}: give the name of every step once")
    for name, table in tables.items():
        if "use" in table and name not in steps:
            say(f"{path}: {name} is not in steps, so it does not run")
            del content[name]
    for name in steps:
        use = str(tables.get(name, {}).get("use", name))
        if use != name or name not in factories:
            factories[name] = (open_step(use, own.absolute()), use, own.absolute() if ".py:" in use else None)
    start = Path(str(content.get("input", ".")))
    start = folder or (start if url_of(start) else own / start)
    return _resolve(content, factories, str(path), start if url_of(start) else start.absolute())


def _resolve(content: dict[str, Any], factories: Mapping[str, Factory], place: str, start: Path) -> Recipe:
    """The recipe of this content. Raises ``UsageFailure`` with a line for every mistake."""
    content, kind = {**content, "input": str(start)}, "files"
    for name in content["steps"]:
        cls = factories[name][0]
        if cls.takes != kind:
            raise UsageFailure(f"{place}: steps: {name} takes {cls.takes}, and stands where there are {kind}")
        kind = cls.gives
    for name, (cls, _, _) in factories.items():
        given = {key: content.pop(key) for key in cls.top_level if key in content}
        for other, keys in cls.follows.items():
            followed = content.get(other, {})
            given |= {key: followed[key] for key in keys if isinstance(followed, dict) and key in followed}
        if given and isinstance(table := content.get(name, {}), dict):
            content[name] = given | table
    if isinstance(sources := content.get("sources"), dict):
        content["sources"] = {name: _with_defaults(name, table, factories) for name, table in sources.items()}
    tables = validate(content, recipe_schema(factories, content["steps"]), place)
    steps = []
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
        settings = cls.Settings.model_construct(**cls.localize(values, lambda path: _local(path, start)))
        step = cls(settings, own, name=name, reference=(reference, folder), **options)
        try:
            step.validate()
        except ValueError as error:
            raise UsageFailure(f"{place}: {error}") from None
        steps.append(step)
    return Recipe(start, tables, tuple(steps))


def _check_sources(place: str, name: str, options: Mapping[str, Any], sources: Mapping[str, Any]) -> None:
    where = options.get("where")
    named = [*(options.get("only") or ()), *options.get("except_", ()), *(where.source if where else ())]
    if unknown := [source for source in named if source not in sources]:
        hint = f"{did_you_mean(unknown[0], sources)}those are {', '.join(sources)}"
        raise UsageFailure(f"{place}: {name}: no source {unknown[0]!r}; {hint}")


def _local(path: Path, start: Path) -> Path:
    """A file of a recipe, on this machine; of a URL, a copy."""
    return local_path(path if url_of(path) else start / path)


def _with_defaults(name: str, table: Any, factories: Mapping[str, Factory]) -> Any:  # noqa: ANN401  (whatever TOML holds)
    """Fill in what steps know of a source of this name, and the subset of a dataset of the Pile."""
    if not isinstance(table, dict):
        return table
    table = {"kind": "warc", **table} if "snapshot" in table else table
    filled: dict[str, Any] = {}
    for cls, _, _ in factories.values():
        filled |= cls.source_defaults(name, table)
    if name in DATASETS and table.get("kind") == "pile":
        filled["subset"] = DATASETS[name].subset
    return filled | table


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
