"""Runs one step by itself on paths, for ``mtnlg-data step`` and the commands named after steps.

Inputs are files and folders of any format: WARC, JSON lines (plain or compressed, such as the Pile), Parquet, and the
shards of another step. Files that are not shards are extracted first, into a folder of the output. The output is what
the step leaves in a curation (shards with their manifests, or token stores), ``summary.json`` and the report. The same
call resumes an interrupted one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from mtnlg_data.console import UsageFailure
from mtnlg_data.engine import StageFolder, listed_shards, lock_folder
from mtnlg_data.engine.stage_folder import RECIPE
from mtnlg_data.files import write_json
from mtnlg_data.job import Job
from mtnlg_data.report import write_report
from mtnlg_data.steps.extract import Extract
from mtnlg_data.summary import merge_summaries, say_summary
from mtnlg_data.transfer.url_files import fetch_files

from .setting_options import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine
    from mtnlg_data.step import Step
    from mtnlg_data.summary import Summary

    from .setting_options import Leaf
    from .stage_inputs import Inputs

#: Folders of an output that hold copies of its inputs: those of INPUT, of options (``positives``), of stages at URLs.
DOCUMENTS, FETCHED = "documents", "inputs"


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
