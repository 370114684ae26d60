"""Extract: source files → shards of documents.

A unit reads a group of small files, or a part of a large one (``grouping``), once, from its first byte to its last. It
feeds one source or, for files of the Pile, several (one per subset), each with shards of its own. A shard that has
reached ``shard_characters`` of text is followed by another. Memory holds one row group per source.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from mtnlg_data.document import shard_name, writing_documents
from mtnlg_data.engine import StageFolder, Unit, library_version
from mtnlg_data.schema import SCHEMA, Document, documents_schema, has_equal_columns, has_strings, left_out
from mtnlg_data.sources import Dropped, Record
from mtnlg_data.sources.record import SHOWN_CHARACTERS, SHOWN_FIELDS, Metadata, json_metadata
from mtnlg_data.tally import read_failure, recorded_tallies, stage_summary

from .grouping import group_files
from .language import LanguageSettings
from .text import PARSE_ERRORS, ExtractSettings, extract_record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from mtnlg_data.document import DocumentWriter
    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.sources import SourceFile
    from mtnlg_data.tally import Tally

    from .grouping import Piece

COPIES = ".copies"  # folder of the copies of files at URLs that are being read


def extract_documents(files: Sequence[SourceFile], out: Path, settings: ExtractSettings, engine: Engine) -> Summary:
    """Write ``out/<source>-<number>.parquet`` for every group of files, and every part of a large one.

    Returns the stage's summary with ``languages`` and ``languages_kept``, records and documents by language, the names
    of the ``shards`` in the order of the files, and under ``failure`` what of the files could not be read, if that is
    more than the settings allow.
    """
    settings.check_model()
    units = []
    for pieces, numbers in group_files(files, settings.shard_characters):
        first = out / shard_name(pieces[0][0].source, numbers[0])
        units.append(ExtractUnit(pieces, numbers, tuple(piece[0].stats for piece in pieces), settings, first))
    folder = StageFolder(out, "extract", engine)
    summaries = folder.run(extract_group, units, "extract")
    shutil.rmtree(out / COPIES, ignore_errors=True)  # of inputs that are gone, by runs that were killed
    languages: dict[str, Counter[str]] = {"languages": Counter(), "languages_kept": Counter()}
    for summary in summaries:
        for name, counts in languages.items():
            counts.update(summary[name])
    sources = list(dict.fromkeys(file.source for file in files))
    shards = [name for summary in summaries for name in summary["shards"]]
    folder.finish(out / name for name in shards)
    lost = {"sources": {}, "lost": _empty_files(units, summaries)}
    stage = stage_summary("extract", [*summaries, lost], sources, settings.alarm_share)
    failure = read_failure(stage, settings.max_failed)
    return {
        **stage,
        "alarms": [*stage["alarms"], *_column_alarms(summaries)],
        **({"failure": failure} if failure else {}),
        **{name: dict(counts.most_common()) for name, counts in languages.items()},
        "shards": shards,
    }


def _empty_files(units: Sequence[ExtractUnit], summaries: Sequence[Summary]) -> list[dict[str, str]]:
    """The files of which no part holds anything."""
    empty = Counter(place for summary in summaries for place in summary["empty"])
    pieces = {f"{piece[0].source}/{piece[0].name}": piece[0] for unit in units for piece in unit.pieces if empty}
    return [
        {"source": file.source, "where": file.name, "what": f"holds no document that a reader of {file.kind} finds"}
        for place, file in pieces.items()
        if empty[place] == file.part.parts
    ]


def _column_alarms(summaries: Sequence[Summary]) -> Iterator[dict[str, str]]:
    """An alarm for each column that documents of a source lack, though their files have it."""
    files: dict[tuple[str, str, str], dict[str, None]] = {}
    for summary in summaries:
        for *column, file in summary["left_out"]:
            files.setdefault(tuple(column), {})[file] = None
    for (source, name, why), (first, *others) in files.items():
        more = f" (and of {len(others)} more files of {source})" if others else ""
        yield {"source": source, "message": f"extract leaves out column {name} of {first}{more}: {why}"}


@dataclass(frozen=True)
class ExtractUnit(Unit):
    """Unit: a group of files → the shards of every source that they feed; ``output`` is the first of the first."""

    pieces: tuple[Piece, ...]
    numbers: tuple[int, ...]  # of the first shard of each source
    stats: tuple[object, ...]  # of each file, in place of a checksum, which would read every crawl file twice
    settings: ExtractSettings
    output: Path

    def _key_parts(self) -> tuple[object, ...]:
        files = [
            (file.source, file.name, file.kind, file.options, file.part) for piece in self.pieces for file in piece
        ]
        settings = self.settings.model_dump(exclude={"max_failed", "alarm_share", *LanguageSettings.model_fields})
        versions = (library_version(self.settings.method), self.settings.key())
        return ("extract", files, self.numbers, self.stats, settings, versions)


def extract_group(unit: ExtractUnit) -> Summary:
    """Extract a group of files into the shards of their sources; of one at a URL, a copy that goes afterwards."""
    languages: dict[str, Counter[str]] = {"languages": Counter(), "languages_kept": Counter()}
    empty = []
    with recorded_tallies(unit.output) as tallies, ExitStack() as stack:
        sources = [file.source for file in unit.pieces[0]]
        writers = [
            _ShardWriter(source, number, unit, tallies[source], stack.enter_context(ExitStack()))
            for source, number in zip(sources, unit.numbers, strict=True)
        ]
        for piece in unit.pieces:
            with piece[0].local(unit.output.parent / COPIES / unit.output.stem) as local:
                for writer, file in zip(writers, piece, strict=True):
                    writer.begin(replace(file, path=local.path))
                if not _extract_piece(writers, languages, unit.settings) and not local.reader.shared:
                    empty.append(f"{local.source}/{local.name}")
    names = [path.name for writer in writers for path in writer.paths]
    by_language = {name: dict(sorted(counts.items())) for name, counts in languages.items()}
    return {
        **tallies.summary(),
        **by_language,
        "shards": names,
        "files": [*names[1:], *tallies.files],
        "empty": empty,
        "left_out": [column for writer in writers for column in writer.left_out],
    }


def _extract_piece(
    writers: Sequence[_ShardWriter], languages: Mapping[str, Counter[str]], settings: ExtractSettings
) -> bool:
    """Extract a file, or its part, that the writers have begun; returns whether it holds anything."""
    is_empty = True
    for item in _read_items([writer.file for writer in writers], settings.largest):
        is_empty = False
        # A record whose subset could not be read is counted with the first source.
        accepting = [writer for writer in writers if writer.accepts(item)] or writers[:1]
        if isinstance(item, Record):
            _extract_record(item, accepting, languages, settings)
        else:
            for writer in accepting:
                writer.count_dropped(item)
    return not is_empty


def _read_items(piece: Sequence[SourceFile], max_bytes: int) -> Iterator[Record | Dropped]:
    """Yield the records of a piece. Raises ``OSError`` with the file's name where the system cannot read it.

    Anything else that a reader of a user raises costs the rest of the file.
    """
    file, *others = piece
    reader, number = file.reader.together([other.reader for other in others]), -1
    try:
        for item in reader.read(file.here, file.part, max_bytes):
            yield item
            number = item.number if isinstance(item, Record) else number
    except OSError as error:
        if error.filename is None and error.errno:
            raise OSError(error.errno, os.strerror(error.errno), str(file.path)) from error
        raise
    except Exception as error:  # noqa: BLE001  (a reader of a user may raise anything)
        where = f"{file.here.name}: behind record {number}{file.part.place}"
        yield Dropped("unreadable", where, f"{type(error).__name__}: {error}", ends_file=True)


def _extract_record(
    record: Record, writers: Sequence[_ShardWriter], languages: Mapping[str, Counter[str]], settings: ExtractSettings
) -> None:
    try:
        text, language, length, reason = extract_record(record, settings)
    except PARSE_ERRORS as error:
        file = writers[0].file
        where = f"{file.here.name}: record {record.number}{file.part.place}"
        for writer in writers:
            writer.tally.fail("not_extracted", where, f"{type(error).__name__}: {error}")
        return
    code, score = language or (None, None)
    if code is not None:
        languages["languages"][code] += 1
        languages["languages_kept"][code] += reason is None
    given = record.metadata
    metadata = given if isinstance(given, Metadata) else json_metadata(given)
    for writer in writers:
        key = writer.file.key(record.number)
        document_id = record.id or key
        if reason is not None:
            below = score if reason == "language_score" else None
            writer.tally.drop(length, reason, document_id, below, key=key)
            writer.tally.show(reason, document_id, record.url or text, key=key)
            continue
        writer.tally.keep(length, len(text))
        if metadata.lost is not None:
            writer.tally.lose_metadata(metadata.lost)
        columns = (document_id, writer.file.source, text, record.url, code, score, None, key, metadata.value)
        writer.add(Document(*columns))


class _ShardWriter:
    """Writes the documents of one source into shards of bounded size; ``stack`` closes the last."""

    file: SourceFile  # that is being read

    def __init__(self, source: str, number: int, unit: ExtractUnit, tally: Tally, stack: ExitStack) -> None:
        self.tally = tally
        self.paths: list[Path] = []
        self.left_out: list[tuple[str, str, str, str]] = []  # source, column, why, file
        self._source = source
        self._number = number
        self._unit = unit
        self._stack = stack
        self._schema: pa.Schema | None = None
        self._writer: DocumentWriter

    def begin(self, file: SourceFile) -> None:
        """Turn to a file, or its part; its documents go to the shard at hand, unless they have other columns."""
        self.file = file
        of_file, field = file.reader.columns(file.here), getattr(file.reader, "field", "text")
        schema = SCHEMA
        if of_file is not None and has_strings(of_file, field):
            schema = documents_schema(of_file, field)
            columns = islice(left_out(of_file).items(), SHOWN_FIELDS)
            self.left_out += [(file.source, name[:SHOWN_CHARACTERS], why, file.name) for name, why in columns]
        if self._schema is None or not has_equal_columns(schema, self._schema):
            self._schema = schema
            self._open_next()

    def accepts(self, item: Record | Dropped) -> bool:
        """Whether a record of the file belongs to this source."""
        return self.file.reader.wants(item)

    def add(self, document: Document) -> None:
        """Append a document, in a new shard where the current one is full."""
        if self._writer.characters >= self._unit.settings.shard_characters:
            self._open_next()
        self._writer.add(document)

    def count_dropped(self, item: Dropped) -> None:
        """Count a record that yields no document."""
        if item.what is None:
            self.tally.drop(0, item.reason, item.where, key=f"{self.tally.source}/{item.where}")
        else:
            self.tally.fail(item.reason, item.where, item.what)
        if item.ends_file:
            self.tally.lose(item.where, item.what or item.reason)

    def _open_next(self) -> None:
        self._stack.close()
        name = shard_name(self._source, self._number, len(self.paths))
        self.paths.append(self._unit.output.with_name(name))
        self._writer = self._stack.enter_context(writing_documents(self.paths[-1], self._schema))
