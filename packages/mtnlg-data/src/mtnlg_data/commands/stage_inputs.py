"""Resolves a stage's inputs (``PATH``, ``NAME=PATH``, URLs) to files to extract or to another stage's shards."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtnlg_data.console import Failure, UsageFailure, say
from mtnlg_data.document import DamagedShard, file_schema, shard_source
from mtnlg_data.engine import listed_shards, manifest_path
from mtnlg_data.engine.stage_folder import RECORD, read_record
from mtnlg_data.schema import is_shard
from mtnlg_data.sources import SourceFile
from mtnlg_data.sources.matching import check_regular, kinds_of_files, name_below
from mtnlg_data.sources.reader import all_readers, load_reader
from mtnlg_data.transfer.url_files import list_files, read_url
from mtnlg_data.transfer.urls import Url, location

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mtnlg_data.transfer.url_files import RemoteFile

NAMED_INPUT = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,63})=(.+)", re.DOTALL)


@dataclass
class Inputs:
    """Inputs of a stage: shards, files still to be extracted, and their sources in the order of the arguments.

    ``paths`` are the files and folders that were given; ``stages`` has, by URL, the files of another stage by name.
    """

    paths: list[Path] = field(default_factory=list)
    stages: dict[str, dict[str, RemoteFile]] = field(default_factory=dict)
    shards: list[Path] = field(default_factory=list)
    files: list[SourceFile] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)


def find_inputs(
    arguments: Iterable[str],
    *,
    raw: bool = False,
    unnamed: str = "documents",
    **file_options: Any,  # noqa: ANN401  (fields of SourceFile)
) -> Inputs:
    """Resolve ``PATH`` and ``NAME=PATH``: the file PATH, or every file below it, is a file of source NAME.

    ``unnamed`` is the source of a PATH without a name. With ``raw`` every Parquet file is a file to extract.
    ``file_options`` are passed to each ``SourceFile``. Raises ``Failure`` for a path that does not exist or holds no
    file of a known format, and ``UsageFailure`` for shards that are given another name.
    """
    inputs = Inputs()
    for argument in arguments:
        if not argument:
            raise UsageFailure("an INPUT is empty; . is this folder")
        named = None if Path(argument).exists() else NAMED_INPUT.fullmatch(argument)
        source, path = (named[1], location(named[2])) if named else (unnamed, location(argument))
        if isinstance(path, Url):
            _find_remote(inputs, path, source, file_options, stage=not (raw or named))
            continue
        if not path.exists():
            raise Failure(f"{path}: no such file or folder; an input is PATH or NAME=PATH")
        inputs.paths.append(path)
        listed = listed_shards(path) if path.is_dir() else [path] if _is_shard(path) else None
        shards = [] if raw else listed
        if shards and named:
            raise UsageFailure(f"{argument}: its source is already {shard_source(shards[0])}; give only PATH")
        if shards:
            inputs.shards += shards
            inputs.sources += map(shard_source, shards)
        else:
            inputs.files += _source_files(source, path, listed, file_options)
            inputs.sources.append(source)
    inputs.sources = list(dict.fromkeys(inputs.sources))
    input_paths = [("", shard) for shard in inputs.shards]
    input_paths += [(file.source, file.path) for file in inputs.files if isinstance(file.path, Path)]
    counts = Counter((source, path.resolve()) for source, path in input_paths)
    if twice := [path for (_, path), count in counts.items() if count > 1]:
        raise UsageFailure(f"{twice[0]}: given twice")
    by_id: dict[tuple[str, str], Path | RemoteFile] = {}
    for file in inputs.files:
        if (first := by_id.setdefault((file.source, file.name), file.path)) != file.path:
            raise UsageFailure(
                f"{file.path}: {first} of source {file.source} has the same name, and so the same ids; "
                "give one of them another source by NAME="
            )
    return inputs


def _find_remote(inputs: Inputs, url: str, source: str, file_options: Mapping[str, Any], *, stage: bool) -> None:
    """Add the files at a URL: those of a known format, or with ``stage`` the shards that a stage published."""
    files = list_files(url)
    if stage and RECORD in files:
        names = json.loads(read_url(files[RECORD].url))["shards"] or ()
        record_files = {RECORD, *names, *(f"{name}.json" for name in names)}
        if missing := record_files - {*files}:
            raise Failure(f"{url}: {min(missing)} is missing; run its stage again, or give a folder with shards")
        inputs.stages[url] = {name: file for name, file in files.items() if name in record_files}
        inputs.sources += map(shard_source, map(Path, sorted(names)))
        return
    if stages := [name for name in files if name.rpartition("/")[2] == RECORD]:
        names = ", ".join(f"{url.rstrip('/')}/{name.rpartition('/')[0]}" for name in stages)
        raise Failure(f"{url}: holds the output of several stages; give one of {names}")
    inputs.files += _known_files(source, files, url, file_options)
    inputs.sources.append(source)


def _is_shard(path: Path) -> bool:
    if path.suffix != ".parquet" or not manifest_path(path).exists():
        return False
    try:
        return is_shard(file_schema(path))
    except DamagedShard:
        return False


def _source_files(
    source: str, path: Path, listed: Sequence[Path] | None, file_options: Mapping[str, Any]
) -> list[SourceFile]:
    """The listed files, or the file itself, or all files of a known format below the folder."""
    base, paths = (path, sorted(path.rglob("*"))) if path.is_dir() else (path.parent, [path])
    if listed is not None:
        paths = list(listed)
    elif stages := [file.parent for file in paths if file.name == RECORD and read_record(file.parent) is not None]:
        names = ", ".join(str(stage.relative_to(path)) for stage in stages)
        raise Failure(f"{path}: holds the output of several stages; give one of {names}")
    if links := [file for file in paths if file.is_symlink() and file.is_dir()]:
        raise Failure(f"{links[0]}: a link to a folder is not followed; give it as an input of its own")
    by_name = {name_below(file, base): file for file in paths if not file.is_dir()}
    files = _known_files(source, by_name, path, file_options)
    for file in files:
        check_regular(file.here)
    return files


def _known_files(
    source: str,
    files: Mapping[str, Path | RemoteFile],
    place: object,
    file_options: Mapping[str, Any],
) -> list[SourceFile]:
    """Those of the files in a folder, or matching a pattern, that have a known format.

    ``file_options`` has the ``kind`` of the reader, and keys of readers; each reader takes those that it knows.
    """
    kinds = kinds_of_files(files)
    options = {**file_options}
    given = options.pop("kind", None)
    known = []
    for name, kind in kinds.items():
        if kind is not None:
            fields = load_reader(given or kind).model_fields
            taken = {key: value for key, value in options.items() if key in fields}
            known.append(SourceFile(source, files[name], name, given or kind, taken))
    if not known:
        patterns = [reader.patterns[0] for reader in all_readers().values() if reader.patterns]
        raise Failure(f"{place}: no file that a reader can read, such as {', '.join(patterns)}")
    if others := [name for name, kind in kinds.items() if kind is None]:
        say(f"{place}: {len(others)} files of no known format are left out, {others[0]} the first")
    return known
