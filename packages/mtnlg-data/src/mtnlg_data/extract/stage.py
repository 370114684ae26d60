"""Extract: source files → shards of documents.

A file is read once, from its first byte to its last. It feeds one source or, for a file of the Pile, several (one per
subset), each with shards of its own. A shard that has reached ``shard_characters`` of text is followed by another, so
that the work of later stages spreads however large the files are. Memory holds one row group per source.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.document import shard_name, writing_documents
from mtnlg_data.engine import StageFolder, Unit, library_version
from mtnlg_data.schema import SCHEMA, Document
from mtnlg_data.sources import Dropped, Record, SourceFile, read_records
from mtnlg_data.sources.arrow import arrow_schema
from mtnlg_data.sources.jsonl import read_pile
from mtnlg_data.sources.parquet import parquet_schema
from mtnlg_data.tally import read_failure, recorded_tallies, stage_summary

from .language import LanguageSettings
from .text import PARSE_ERRORS, ExtractSettings, extract_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mtnlg_data.document import DocumentWriter
    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.tally import Tally

COPIES = ".copies"  # folder of the copies of files at URLs that are being read


def extract_documents(files: Sequence[SourceFile], out: Path, settings: ExtractSettings, engine: Engine) -> Summary:
    """Write ``out/<source>-<number>.parquet`` for every file, in several parts for large files.

    Returns the stage's summary with ``languages`` and ``languages_kept``, records and documents by language, the names
    of the ``shards`` in the order of the files, and under ``failure`` what of the files could not be read, if that is
    more than the settings allow.
    """
    settings.check_model()
    units = []
    for feeds in _group_by_file(files):
        first = out / shard_name(feeds[0].file.source, feeds[0].number)
        units.append(ExtractUnit(feeds, feeds[0].file.stats, settings, first))
    folder = StageFolder(out, "extract", engine)
    summaries = folder.run(extract_file, units, "extract")
    shutil.rmtree(out / COPIES, ignore_errors=True)  # of inputs that are gone, by runs that were killed
    languages: dict[str, Counter[str]] = {"languages": Counter(), "languages_kept": Counter()}
    for summary in summaries:
        for name, counts in languages.items():
            counts.update(summary[name])
    sources = list(dict.fromkeys(file.source for file in files))
    shards = [name for summary in summaries for name in summary["shards"]]
    folder.finish(out / name for name in shards)
    stage = stage_summary("extract", summaries, sources, settings.alarm_share)
    failure = read_failure(stage, settings.max_failed)
    return {
        **stage,
        **({"failure": failure} if failure else {}),
        **{name: dict(counts.most_common()) for name, counts in languages.items()},
        "shards": shards,
    }


class Feed(NamedTuple):
    """A file as input of one source: the ``number``-th file of that source."""

    file: SourceFile
    number: int

    def accepts(self, item: Record | Dropped) -> bool:
        """Whether a record of the file belongs to this source."""
        return self.file.subset is None or item.subset == self.file.subset


def _group_by_file(files: Sequence[SourceFile]) -> list[tuple[Feed, ...]]:
    """The feeds of each file; a file of the Pile that several sources use is one group."""
    numbers: Counter[str] = Counter()
    groups: dict[object, list[Feed]] = {}
    for index, file in enumerate(files):
        groups.setdefault(file.path if file.kind == "pile" else index, []).append(Feed(file, numbers[file.source]))
        numbers[file.source] += 1
    return [tuple(feeds) for feeds in groups.values()]


@dataclass(frozen=True)
class ExtractUnit(Unit):
    """Unit: one file → the shards of every source that it feeds; ``output`` is the first shard of the first source."""

    feeds: tuple[Feed, ...]
    stats: tuple[int, int | str | None]  # in place of a checksum, which would read every crawl file twice
    settings: ExtractSettings
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        files = ((number, file.source, file.name, file.kind, file.field, file.subset) for file, number in self.feeds)
        settings = self.settings.model_dump(exclude={"max_failed", "alarm_share", *LanguageSettings.model_fields})
        versions = (library_version(self.settings.method), self.settings.key())
        return ("extract", list(files), self.stats, settings, versions)


def extract_file(unit: ExtractUnit) -> Summary:
    """Extract one file into the shards of its sources; of one at a URL, a copy that goes afterwards."""
    with unit.feeds[0].file.local(unit.output.parent / COPIES / unit.output.stem) as local:
        feeds = (feed._replace(file=replace(feed.file, path=local.path)) for feed in unit.feeds)
        return _extract_local(replace(unit, feeds=tuple(feeds)))


def _extract_local(unit: ExtractUnit) -> Summary:
    languages: dict[str, Counter[str]] = {"languages": Counter(), "languages_kept": Counter()}
    with recorded_tallies(unit.output) as tallies, ExitStack() as stack:
        writers = [stack.enter_context(_shard_writer(feed, unit, tallies[feed.file.source])) for feed in unit.feeds]
        file, empty = unit.feeds[0].file, True
        for item in _read_items(unit):
            empty = False
            # A record whose subset could not be read is counted with the first source.
            accepting = [writer for writer in writers if writer.feed.accepts(item)] or writers[:1]
            if isinstance(item, Record):
                _extract_record(item, accepting, languages, unit.settings)
            else:
                for writer in accepting:
                    writer.count_dropped(item)
    if empty and file.kind != "pile":  # a file of the Pile may well hold no document of these subsets
        tallies[file.source].lose(file.name, f"holds no document that a reader of {file.kind} finds")
    names = [path.name for writer in writers for path in writer.paths]
    by_language = {name: dict(sorted(counts.items())) for name, counts in languages.items()}
    return {**tallies.summary(), **by_language, "shards": names, "files": [*names[1:], *tallies.files]}


def _read_items(unit: ExtractUnit) -> Iterator[Record | Dropped]:
    """Yield the file's records. Raises ``OSError`` with the file's name where the system cannot read it."""
    file, max_bytes = unit.feeds[0].file, unit.settings.largest
    subsets = {feed.file.subset for feed in unit.feeds}
    wanted = None if None in subsets else {subset for subset in subsets if subset is not None}
    try:
        yield from read_pile(file.here, wanted, max_bytes) if file.kind == "pile" else read_records(file, max_bytes)
    except OSError as error:
        if error.filename is None and error.errno:
            raise OSError(error.errno, os.strerror(error.errno), str(file.path)) from error
        raise


def _extract_record(
    record: Record, writers: Sequence[_ShardWriter], languages: Mapping[str, Counter[str]], settings: ExtractSettings
) -> None:
    try:
        text, language, length, reason = extract_record(record, settings)
    except PARSE_ERRORS as error:
        where = f"{writers[0].feed.file.here.name}: record {record.number}"
        for writer in writers:
            writer.tally.fail("not_extracted", where, f"{type(error).__name__}: {error}")
        return
    code, score = language or (None, None)
    if code is not None:
        languages["languages"][code] += 1
        languages["languages_kept"][code] += reason is None
    for writer in writers:
        file = writer.feed.file
        key = f"{file.source}/{file.name}/{record.number}"
        document_id = record.id or key
        if reason is not None:
            below = score if reason == "language_score" else None
            writer.tally.drop(length, reason, document_id, below, key=key)
            writer.tally.show(reason, document_id, record.url or text, key=key)
            continue
        writer.tally.keep(length, len(text))
        if record.metadata.lost is not None:
            writer.tally.lose_metadata(record.metadata.lost)
        columns = (document_id, file.source, text, record.url, code, score, None, key, record.metadata.value)
        writer.add(Document(*columns))


class _ShardWriter:
    """Writes the documents of one feed into shards of bounded size; made by ``_shard_writer``."""

    def __init__(self, feed: Feed, unit: ExtractUnit, tally: Tally, stack: ExitStack) -> None:
        self.feed = feed
        self.tally = tally
        self.paths: list[Path] = []
        self._unit = unit
        self._stack = stack
        file = feed.file
        schemas = {"parquet": parquet_schema, "arrow": arrow_schema}
        self._schema = schemas[file.kind](file.here, file.field) if file.kind in schemas else SCHEMA
        self._writer = self._open_next()

    def add(self, document: Document) -> None:
        """Append a document, in a new shard where the current one is full."""
        if self._writer.characters >= self._unit.settings.shard_characters:
            self._stack.close()
            self._writer = self._open_next()
        self._writer.add(document)

    def count_dropped(self, item: Dropped) -> None:
        """Count a record that yields no document."""
        if item.what is None:
            self.tally.drop(0, item.reason, item.where, key=f"{self.tally.source}/{item.where}")
        else:
            self.tally.fail(item.reason, item.where, item.what)
        if item.ends_file:
            self.tally.lose(item.where, item.what or item.reason)

    def _open_next(self) -> DocumentWriter:
        name = shard_name(self.feed.file.source, self.feed.number, len(self.paths))
        self.paths.append(self._unit.output.with_name(name))
        return self._stack.enter_context(writing_documents(self.paths[-1], self._schema))


@contextmanager
def _shard_writer(feed: Feed, unit: ExtractUnit, tally: Tally) -> Iterator[_ShardWriter]:
    """Open the shards of a feed."""
    with ExitStack() as stack:
        yield _ShardWriter(feed, unit, tally, stack)
