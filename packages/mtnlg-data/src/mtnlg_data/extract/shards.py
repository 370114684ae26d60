"""Extract on a worker: a group of files to the shards of their sources.

A group of small files, or a part of a large one (``grouping``), is read once, from its first byte to its last. It feeds
one source or, for files of the Pile, several (one per subset), each with shards of its own. A shard that has reached
``shard_characters`` of text is followed by another. Memory holds one row group per source.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import orjson

from mtnlg_data.document import shard_name, writing_documents
from mtnlg_data.schema import SCHEMA, Document, documents_schema, has_equal_columns, has_strings
from mtnlg_data.sources import Dropped, Record
from mtnlg_data.sources.record import Metadata, json_metadata, read_any
from mtnlg_data.tally import recorded_tallies

from .text import PARSE_ERRORS, extract_record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from mtnlg_data.document import DocumentWriter
    from mtnlg_data.sources import SourceFile
    from mtnlg_data.summary import Summary
    from mtnlg_data.tally import Tally

    from .grouping import Group
    from .text import ExtractSettings

    ByLanguage = Mapping[str, ExtractSettings]

COPIES = ".copies"  # folder of the copies of files at URLs that are being read


def extract_group(item: tuple[Group, Mapping[str, ByLanguage]], output: Path, *, versions: object) -> Summary:
    """Extract a group of files; ``output`` is the first shard of the first source, ``versions`` is only for the key.

    ``item`` has the group, and the settings by source and language (``Step.by_language``). A file at a URL is read from
    a temporary copy. The summary has ``shards``, ``languages`` and ``languages_kept``, and the ``empty`` files.
    """
    del versions
    group, settings = item
    languages: dict[str, Counter[str]] = {"languages": Counter(), "languages_kept": Counter()}
    empty = []
    with recorded_tallies(output) as tallies, ExitStack() as stack:
        writers = []
        for file, number in zip(group.pieces[0], group.numbers, strict=True):
            closing = stack.enter_context(ExitStack())
            writers.append(_ShardWriter(output, number, settings[file.source], tallies[file.source], closing))
        for piece in group.pieces:
            with piece[0].local(output.parent / COPIES / output.stem) as local:
                for writer, file in zip(writers, piece, strict=True):
                    writer.begin(replace(file, path=local.path))
                if not _extract_piece(writers, languages) and not local.reader.shared:
                    empty.append(f"{local.source}/{local.name}")
    names = [path.name for writer in writers for path in writer.paths]
    by_language = {name: dict(sorted(counts.items())) for name, counts in languages.items()}
    return {
        **tallies.summary(),
        **by_language,
        "shards": names,
        "files": [*names[1:], *tallies.files],
        "empty": empty,
    }


def _extract_piece(writers: Sequence[_ShardWriter], languages: Mapping[str, Counter[str]]) -> bool:
    """Extract a file, or its part, that the writers have begun; returns whether it holds anything."""
    is_empty = True
    file, *others = (writer.file for writer in writers)
    reader = file.reader.together([other.reader for other in others])
    for item in read_any(reader, file, writers[0].settings[""].largest):
        is_empty = False
        # A record whose subset could not be read is counted with the first source.
        accepting = [writer for writer in writers if writer.accepts(item)] or writers[:1]
        if isinstance(item, Record):
            for _, records in groupby(accepting, attrgetter("settings")):
                _extract_record(item, [*records], languages)
        else:
            for writer in accepting:
                writer.count_dropped(item)
    return not is_empty


def _extract_record(record: Record, writers: Sequence[_ShardWriter], languages: Mapping[str, Counter[str]]) -> None:
    settings = writers[0].settings
    try:
        text, language, length, reason, charset = extract_record(record, settings[""], settings)
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
    if charset and not metadata.lost and isinstance(metadata.value, str | None):
        metadata = json_metadata({**orjson.loads(metadata.value or "{}"), "Detected-Charset": charset})
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
    """Writes the documents of one source into shards of bounded size; ``stack`` closes the last shard."""

    file: SourceFile  # that is being read
    accepts: Callable[[Record | Dropped], bool]  # whether a record of it belongs to this source

    def __init__(self, output: Path, number: int, settings: ByLanguage, tally: Tally, stack: ExitStack) -> None:
        self.tally = tally
        self.settings = settings
        self.paths: list[Path] = []
        self._output = output
        self._number = number
        self._stack = stack
        self._schema: pa.Schema | None = None
        self._writer: DocumentWriter

    def begin(self, file: SourceFile) -> None:
        """Begin a file, or its part; its documents go to the current shard, unless they have other columns."""
        self.file, self.accepts = file, file.reader.wants
        of_file, field = file.reader.columns(file.here), getattr(file.reader, "field", "text")
        schema = SCHEMA
        if of_file is not None and has_strings(of_file, field):
            schema = documents_schema(of_file, field)
        if self._schema is None or not has_equal_columns(schema, self._schema):
            self._schema = schema
            self._open_next()

    def add(self, document: Document) -> None:
        """Append a document, in a new shard if the current one is full."""
        if self._writer.characters >= self.settings[""].shard_characters:
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
        name = shard_name(self.tally.source, self._number, len(self.paths))
        self.paths.append(self._output.with_name(name))
        self._writer = self._stack.enter_context(writing_documents(self.paths[-1], self._schema))
