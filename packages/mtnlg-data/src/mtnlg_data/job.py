"""The job of a step: its input, folder and engine, and the operations that it runs over all shards.

    job.write(items)                    writes the documents of each shard, as ``Step.open`` decides
    job.annotate(key)                   writes the values that ``Step.open`` gives for each document, beside the shards
    job.map(name, work, items, …)       calls another module-level function, ``work(item, output, **shared)``, per item
    job.rows(name, work, items, …)      the same for work that writes sorted rows, which others read by range of keys

A task's key is the fingerprint of the step's version and of all arguments of its function, so a changed setting reruns
only the tasks that receive it. Tasks carry "module:name" and plain values to the workers.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .console import Failure
from .document import number_shards, read_documents, shard_source, write_documents
from .engine import VALUES, StageFolder, Task
from .exchange import Rows, merge
from .files import atomic_path
from .fingerprint import fingerprint
from .schema import SCHEMA
from .summary import NOTHING, add_up, passthrough_summary, stage_summary
from .tally import Tallies, recorded_tallies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .document import Shard
    from .engine import Engine
    from .sources import SourceFile
    from .step import Step, StepReference
    from .summary import Summary

    Work = Callable[..., Summary]


@dataclass(frozen=True)
class Done:
    """A finished task: its output, its key, and what its function returned."""

    output: Path
    key: str
    summary: Summary = field(default_factory=dict, compare=False)

    def fingerprint(self) -> object:
        """The output's name and the task's key, which identify the content."""
        return [self.output.name, self.key]

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the summary: workers that read the output do not need it."""
        return {"output": self.output, "key": self.key, "summary": {}}


class Job:
    """The work of one step."""

    def __init__(
        self,
        step: Step[Any, Any],
        shards: Sequence[Path],
        out: Path,
        engine: Engine,
        *,
        files: Sequence[SourceFile] = (),
        before: Mapping[str, Summary] | None = None,
    ) -> None:
        """Work in ``out``; ``before`` has the counts of every source after the previous step, if they are known."""
        self.step = step
        self.out = out
        self.engine = engine
        self.files = files
        self.folder = StageFolder(out, step.name, engine)
        self.details: dict[str, Any] = {}
        self._given = shards
        self._before = before

    @property
    def state(self) -> Path:
        """Folder of files that reruns need but the next step does not."""
        return self.folder.state

    @property
    def paths(self) -> list[Path]:
        """The shards that the step reads."""
        return [path for path in self._given if self.step.role_of(shard_source(path)) != "past"]

    @cached_property
    def shards(self) -> list[Shard]:
        """The shards that the step reads, in the order of their names."""
        return number_shards(self.paths)

    @cached_property
    def through(self) -> list[Shard]:
        """The shards that the step rewrites."""
        return [shard for shard in self.shards if self.step.role_of(shard_source(shard.path)) == "through"]

    @cached_property
    def before(self) -> Mapping[str, Summary]:
        """Counts of every source before the step; counted from the shards if they were not given."""
        if self._before is not None:
            return self._before
        counts: dict[str, Summary] = {source: {**NOTHING} for source in self.step.sources}
        for path in self._given:
            source_counts = counts.setdefault(shard_source(path), {**NOTHING})
            for batch in read_documents(path, ["text"]):
                source_counts["documents_out"] += batch.num_rows
                source_counts["characters_out"] += pc.sum(pc.utf8_length(batch["text"])).as_py()
        return counts

    def map(
        self,
        name: str,
        work: Work,
        items: Iterable[tuple[object, Path]],
        *,
        scratch: bool = False,
        memory: int = 0,
        **shared: object,
    ) -> list[Done]:
        """Call ``work(item, output, **shared)`` for each (item, output); ``scratch`` outputs are removed at the end.

        ``work`` is a module-level function; its result is JSON-serializable, and lists under ``files`` what it writes
        beside ``output``. Finished tasks are skipped.
        """
        tasks = [self._task(work, item, output, shared, memory) for item, output in items]
        label = f"{self.step.name}: {name}" if name else self.step.name
        summaries = self.folder.run(tasks, label, scratch=scratch)
        return [Done(task.output, task.key, summary) for task, summary in zip(tasks, summaries, strict=True)]

    def _task(self, work: Work, item: object, output: Path, shared: Mapping[str, object], memory: int = 0) -> Task:
        reference = f"{work.__module__}:{work.__qualname__}"
        key = fingerprint([[self.step.code(), reference], item, shared, output.name])
        return Task(reference, item, output, key, shared, memory, self.step.reference)

    def rows(
        self,
        name: str,
        work: Work,
        items: Sequence[object],
        *,
        scratch: bool = False,
        **options: Any,  # noqa: ANN401
    ) -> Rows:
        """Like ``map``, for work that writes rows (``exchange.write_rows``), to the folder ``name`` of the state."""
        folder = self.state / name
        outputs = [(item, Rows.path(folder, number)) for number, item in enumerate(items)]
        return self.collect(name, folder, self.map(name, work, outputs, scratch=scratch, **options), scratch=scratch)

    def collect(self, label: str, folder: Path, done: Sequence[Done], *, scratch: bool = False) -> Rows:
        """The rows that these tasks have written to a folder; with ``scratch`` merged files are removed at the end."""
        return Rows(folder, done, fingerprint(done), lambda merges: self.map(label, merge, merges, scratch=scratch))

    def write(
        self,
        items: Sequence[object] | None = None,
        *,
        name: str = "",
        **shared: Any,  # noqa: ANN401
    ) -> list[Done]:
        """Write every shard that goes through as ``Step.open`` decides, given that shard's item."""
        given = items if items is not None else [None] * len(self.through)
        writes = self._writes(self.out, self.step.key, given)
        return self.map(name, write_shard, writes, **shared)

    def _writes(self, folder: Path, key: Callable[[str], object], items: Sequence[object]) -> list[tuple[object, Path]]:
        """Items for ``map`` that write one file per shard that goes through, with the shard's name, into a folder."""
        step = self.step.by_reference()
        return [
            (ShardWrite(step, fingerprint(key(shard_source(shard.path))), shard, item), folder / shard.path.name)
            for shard, item in zip(self.through, items, strict=True)
        ]

    def annotate(self, key: Callable[[str], object], **shared: Any) -> list[Done]:  # noqa: ANN401
        """Write the ``notes`` that ``Step.open`` gives about the documents of every shard that goes through.

        ``key(source)`` returns what the notes depend on beside the documents.
        """
        writes = self._writes(self.out / VALUES, key, [None] * len(self.through))
        return self.map(VALUES, write_notes, writes, **shared)

    def do(self, key: str = "") -> Summary:
        """Run the step and record that it is done, on inputs of this key; returns its summary, with its seconds."""
        started = time.monotonic()
        summary = self.step.apply(self)
        summary["seconds"] = round(time.monotonic() - started, 3)
        self.folder.finish(summary, key)
        return summary

    def summarize(self, done: Sequence[Done]) -> Summary:
        """Record these shards as the step's result; returns the sum of their counts and of sources that pass by."""
        self.folder.shards = [one.output.name for one in done]
        passing = [source for source in self.step.sources if self.step.role_of(source) != "through"]
        counts = [passthrough_summary(source, self.before[source]) for source in passing if source in self.before]
        alarm_share = getattr(self.step.settings, "alarm_share", 1.0)
        summaries = [*(one.summary for one in done), *counts]
        details = self.details
        counted = add_up([{}, *(one.summary.get("counts", {}) for one in done)])
        if self.step.number is None and (said := {**counted, **details}):  # a user's step may use any names
            details = {"details": said}
        return {**stage_summary(self.step.name, summaries, list(self.step.sources), alarm_share), **details}


@dataclass(frozen=True)
class ShardWrite:
    """A shard, the step that writes it, and the item that the step was given for it."""

    step: StepReference
    key: str  # the step's, as far as it concerns the shard's source
    shard: Shard
    item: object

    def fingerprint(self) -> object:
        """All fields but the reference to the step."""
        return [self.key, self.shard, self.item]


def write_shard(write: ShardWrite, output: Path, **shared: object) -> Summary:
    """Write one shard, as its step decides; the summary has its tallies, counts and samples."""
    step, shard = write.step.load(), write.shard
    source = shard_source(shard.path)
    decide = step.decide_by_language(shard, source, write.item, shared)
    counts: Counter[str] = Counter()
    samples: list[object] = []

    with recorded_tallies(output) if step.recorded else nullcontext(Tallies()) as tallies:
        tallies[source]  # a shard of no documents counts too

        def remaining() -> Iterator[pa.RecordBatch]:
            for batch in read_documents(shard.path, batch_bytes=step.batch_bytes):
                outcome = decide(batch)
                counts.update(outcome.counts)
                samples.extend(outcome.samples)
                tallies.count(batch, outcome)
                yield outcome.documents

        write_documents(output, remaining())
    return {**tallies.summary(), "counts": dict(counts), "samples": samples}


def write_notes(write: ShardWrite, output: Path, **shared: object) -> Summary:
    """Write the ids and notes of one shard's documents; returns the counts. Raises ``Failure`` if two ids are equal."""
    step, shard = write.step.load(), write.shard
    decide = step.decide_by_language(shard, shard_source(shard.path), write.item, shared)
    counts: Counter[str] = Counter()
    columns: dict[str, list[Any]] = {}
    empty = pa.RecordBatch.from_pylist([], SCHEMA)  # for the columns of a shard without documents
    for batch in read_documents(shard.path, batch_bytes=step.batch_bytes) if shard.rows else [empty]:
        outcome = decide(batch)
        counts.update(outcome.counts)
        for name, values in {"id": batch["id"], **outcome.notes}.items():
            columns.setdefault(name, []).append(values)
    notes = pa.table({"id": pa.chunked_array(columns.pop("id")), **{n: np.concatenate(c) for n, c in columns.items()}})
    if (different := pc.count_distinct(notes["id"]).as_py()) < notes.num_rows:
        raise Failure(f"{shard.path}: {notes.num_rows - different} have the id of another; annotate needs unique ids")
    with atomic_path(output) as partial:
        pq.write_table(notes, partial, compression="zstd")
    return {"counts": dict(counts)}


def run_step(
    step: Step[Any, Any],
    inputs: Sequence[Path | SourceFile],
    out: Path,
    engine: Engine,
    *,
    sources: Sequence[str] = (),
) -> Summary:
    """Run one step on shards or files into ``out``; returns its summary. Sources unknown to the step are added."""
    files = [one for one in inputs if not isinstance(one, Path)]
    shards = [one for one in inputs if isinstance(one, Path)]
    missing = dict.fromkeys([*sources, *(file.source for file in files), *map(shard_source, shards)])
    if unknown := [name for name in missing if name not in step.sources]:
        source_keys = {name: keys.model_dump(exclude_unset=True) for name, keys in step.sources.items()}
        step.bind(source_keys | dict.fromkeys(unknown, step.alone))
    step.validate()
    step.check()
    return {**Job(step, shards, out, engine, files=files).do(), "seconds": 0.0}
