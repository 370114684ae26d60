"""Runs one step by itself on paths, for ``mtnlg-data step`` and the commands named after steps.

Inputs are files and folders of any format: WARC, JSON lines (plain or compressed, such as the Pile), Parquet, and the
shards of another step. Files that are not shards are extracted first, into a folder of the output. The output is what
the step leaves in a curation (shards with their manifests, or token stores), ``summary.json`` and the report. The same
call resumes an interrupted one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtnlg_data.console import Failure, UsageFailure, say
from mtnlg_data.document import DamagedShard, file_schema, shard_source
from mtnlg_data.engine import StageFolder, listed_shards, lock_folder, manifest_path
from mtnlg_data.engine.stage_folder import RECIPE, RECORD, read_record
from mtnlg_data.files import write_json
from mtnlg_data.job import Job
from mtnlg_data.report import write_report
from mtnlg_data.schema import is_shard
from mtnlg_data.sources import SourceFile
from mtnlg_data.sources.matching import check_regular, kinds_of_files, name_below
from mtnlg_data.sources.reader import all_readers, load_reader
from mtnlg_data.steps.extract import Extract
from mtnlg_data.summary import merge_summaries, say_summary
from mtnlg_data.transfer.url_files import fetch_files, list_files, read_url
from mtnlg_data.transfer.urls import Url, location

from .setting_options import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mtnlg_data.engine import Engine
    from mtnlg_data.step import Step
    from mtnlg_data.summary import Summary
    from mtnlg_data.transfer.url_files import RemoteFile

    from .setting_options import Leaf

#: Folders of an output that hold copies of its inputs: those of INPUT, of options (``positives``), of stages at URLs.
DOCUMENTS, FETCHED = "documents", "inputs"
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


def bind(step: Step[Any, Any], found: Mapping[str, Inputs], given: Mapping[Leaf, str]) -> None:
    """Give the step the sources of its inputs, with keys from the options. Raises ``UsageFailure`` for wrong ones."""
    sources: dict[str, dict[str, Any]] = {}
    for name, inputs in found.items():
        for source in inputs.sources:
            if source in sources:
                raise UsageFailure(f"{source}: a source of the inputs and of --{name}; rename one by NAME=PATH")
            sources[source] = dict(step.inputs[name] if name else step.alone)
    own = found[""].sources
    for source, own_texts in _texts_by_source(own, given).items():
        if own_texts:
            sources[source] |= parse_settings(step.SourceKeys, own_texts).model_dump(exclude_unset=True)
    if len(own) == 1 and "weight" in step.SourceKeys.model_fields:
        sources[own[0]].setdefault("weight", 1.0)
    try:
        step.bind(sources)
        step.validate()
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    if "through" not in map(step.role_of, sources):
        options = [leaf.option for leaf in given] or [
            f"--{name}" for name in (*step.SourceKeys.model_fields, *step.inputs)
        ]
        raise UsageFailure(f"{step.name}: nothing to do; {step.nothing or f'give {options[0]}'}")


def _texts_by_source(sources: Sequence[str], options: Mapping[Leaf, str]) -> dict[str, dict[Leaf, str]]:
    """The options of every source: those given for all sources, and those given as ``NAME=VALUE`` for one."""
    texts: dict[str, dict[Leaf, str]] = {source: {} for source in sources}
    for leaf, text in options.items():
        for part in [text] if leaf.is_list else text.split(","):
            source, equals, value = ("", "", part) if leaf.is_list else part.partition("=")
            if equals and leaf in texts.get(source, {leaf: ""}):
                raise UsageFailure(f"{leaf.option} {part}: needs NAME=VALUE for each of {', '.join(sources)}, once")
            for name in [source] if equals else sources:
                texts[name][leaf] = value if equals else part
    return texts


def run_alone(step: Step[Any, Any], found: Mapping[str, Inputs], out: Path, engine: Engine) -> Summary:
    """Run the step on its inputs in ``out``; returns what ``out/summary.json`` holds."""
    step.check()
    _check_out(out, found)
    with lock_folder(out):
        StageFolder(out, step.name, engine)
        summaries: list[Summary] = []
        shards: list[Path] = []
        files = found[""].files if step.takes == "files" else []
        for name, inputs in found.items():
            if not files:
                shards += _shards(step, inputs, out / (f"{name}s" if name else DOCUMENTS), engine, summaries)
        _run(Job(step, shards, out, engine, files=files), summaries)
        summary = merge_summaries(summaries)
        write_json(out / "summary.json", summary)
        write_report(out)
    return summary


def _run(job: Job, summaries: list[Summary]) -> Summary:
    summary = job.do()
    summaries.append(summary)
    say_summary(summary, f"{summary['seconds']:.1f} s")
    return summary


def _shards(
    step: Step[Any, Any], inputs: Inputs, folder: Path, engine: Engine, summaries: list[Summary]
) -> Iterator[Path]:
    """The shards of the inputs: those of stages at URLs are copied, and files are extracted into ``folder``."""
    yield from inputs.shards
    for url, files in inputs.stages.items():
        copies = folder.with_name(FETCHED) / hashlib.sha256(url.encode()).hexdigest()[:16]
        fetch_files(files, copies, label=f"fetch {url}", exact=True)
        yield from listed_shards(copies) or ()
    if not inputs.files:
        StageFolder(folder, "extract", engine).clear()
        return
    followed = {name: getattr(step.settings, name) for name in step.follows.get("extract", ())}
    extract = Extract(**followed)
    extract.bind({source: {} for source in inputs.sources})
    summary = _run(Job(extract, (), folder, engine, files=inputs.files), summaries)
    yield from (folder / name for name in summary["shards"])


def _check_out(out: Path, found: Mapping[str, Inputs]) -> None:
    """Raise ``UsageFailure`` if the output would overwrite an input, or be read as one by the next run.

    That is, if ``out`` is in an input folder, has an input in one of its own folders, or is a run's or a run's step's.
    """
    for folder in (out, out.parent):
        if (folder / RECIPE).exists():
            raise UsageFailure(f"--out {out} would replace results of the run {folder}; give another")
    written_folders = [out.resolve() / name for name in (DOCUMENTS, FETCHED, *(f"{name}s" for name in found if name))]
    for path in (path for inputs in found.values() for path in inputs.paths):
        folder = path.resolve() if path.is_dir() else path.resolve().parent
        if out.resolve() == folder or (path.is_dir() and folder in out.resolve().parents):
            raise UsageFailure(f"--out {out} is in the input {path}; give a folder outside of it")
        if copies := [copy for copy in written_folders if copy == folder or copy in folder.parents]:
            raise UsageFailure(f"--out {out} keeps copies of its inputs in {copies[0]}, where {path} is; give another")
