"""Source files, and the records and drop reasons that the readers yield from them."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from mtnlg_data.transfer.url_files import RemoteFile, local_copy

from .reader import WHOLE, Part, Reader, open_reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mtnlg_data.schema import TableRow

MAX_RECORD_BYTES = 1 << 24
#: Bytes of a record's metadata; more is not kept. A row group holds as much, or a row of it.
MAX_METADATA_BYTES = 1 << 22
SHOWN_FIELDS, SHOWN_CHARACTERS = 5, 40  # of a file without the field that was asked for


@dataclass(frozen=True)
class SourceFile:
    """One file of a source, and how to read it."""

    source: str
    path: Path | RemoteFile
    name: str  # path below the source's folder; source, name and record number make a document's id
    kind: str  # of reader: a name, or a reference to one of a user
    options: Mapping[str, Any] = field(default_factory=dict)  # the reader's keys of [sources.NAME]
    part: Part = WHOLE
    folder: Path | None = None  # at which a ``kind`` that is the path of a file starts

    @property
    def reader(self) -> Reader:
        """The reader of the file. Raises ``UsageFailure`` if there is none of this kind."""
        return open_reader(self.kind, self.options, self.folder)

    def key(self, number: int) -> str:
        """The key of a record: source, file and number; in a part, the part's number and the record's number in it.

        Rows of tables are numbered from the beginning of the file in any part.
        """
        part = "" if self.part == WHOLE or self.reader.is_table else f"{self.part.number}:"
        return f"{self.source}/{self.name}/{part}{number}"

    @property
    def stats(self) -> tuple[int, int | str | None]:
        """Size in bytes, and modification time in nanoseconds or the version at a URL: what identifies raw input."""
        if isinstance(self.path, RemoteFile):
            return self.path.size, self.path.version
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    def fingerprint(self) -> object:
        """Identifies the file's content, and how it is read."""
        return [
            self.source,
            str(self.path),
            self.name,
            self.kind,
            self.reader,
            self.reader.code(),
            self.part,
            self.stats,
        ]

    @property
    def here(self) -> Path:
        """Path on this machine; a file at a URL has one only within `local`."""
        if isinstance(self.path, RemoteFile):
            raise TypeError(f"{self.path}: not on this machine")
        return self.path

    @contextmanager
    def local(self, folder: Path) -> Iterator[SourceFile]:
        """The file on this machine: itself, or a copy below ``folder`` that is deleted when the block ends."""
        if isinstance(self.path, RemoteFile):
            with local_copy(self.path, folder) as copy:
                yield replace(self, path=copy)
        else:
            yield self

    def cut(self, parts: int) -> list[SourceFile]:
        """The file as ``parts`` parts, or fewer if it cannot be read in so many; a file at a URL stays whole."""
        if parts > 1 and isinstance(self.path, Path):
            parts = self.reader.parts(self.path, parts)
            return [replace(self, part=Part(number, parts)) for number in range(parts)]
        return [self]


def read_records(file: SourceFile, max_bytes: int = MAX_RECORD_BYTES) -> Iterator[Record | Dropped]:
    """Yield the records of a file, or of its part; a record longer than ``max_bytes`` is dropped unread.

    Only a file that the system cannot open or read raises (``OSError``).
    """
    return file.reader.read(file.here, file.part, max_bytes)


def read_any(reader: Reader, file: SourceFile, max_bytes: int) -> Iterator[Record | Dropped]:
    """As ``read_records``, for a reader that may be a user's: whatever it raises costs the rest of the file.

    So does an item that is neither a ``Record`` of a str or bytes nor a ``Dropped``. Raises ``OSError`` with the file's
    name if the system cannot read it.
    """
    place = "before the first record"
    try:
        for item in reader.read(file.here, file.part, max_bytes):
            if not isinstance(item, Dropped):
                if not (isinstance(item, Record) and isinstance(item.content, str | bytes)):
                    raise TypeError(f"{item!r:.80} is neither a Record of a str or bytes nor a Dropped")  # noqa: TRY301
                place = f"behind record {item.number}"
            yield item
    except OSError as error:
        if error.filename is None and error.errno:
            raise OSError(error.errno, os.strerror(error.errno), str(file.path)) from error
        raise
    except Exception as error:  # noqa: BLE001  (a reader of a user may raise anything)
        where = f"{file.here.name}: {place}{file.part.place}"
        yield Dropped("unreadable", where, f"{type(error).__name__}: {error}", ends_file=True)


class Metadata(NamedTuple):
    """All fields of a record that are not columns of ``SCHEMA``: a JSON object, or the row of a Parquet file."""

    value: str | TableRow | None = None
    lost: str | None = None  # why it is not kept


class Record(NamedTuple):
    """A document as its source stores it."""

    number: int  # index in the file, or in its part, from 0
    content: str | bytes  # text, or an HTML page as served
    url: str | None = None
    charset: str | None = None  # of an HTML page, declared by its HTTP header
    subset: str | None = None  # of the Pile
    id: str | None = None  # as the record gives it
    metadata: Metadata | Mapping[str, Any] = Metadata()  # or all other fields


def json_metadata(fields: Mapping[str, Any]) -> Metadata:
    """These fields as a JSON object."""
    if not fields:
        return Metadata()
    try:
        encoded = orjson.dumps(fields)
    except TypeError as error:  # of 255 objects one in another, and of integers beyond 64 bits
        if "Recursion" in str(error):
            return Metadata(lost="metadata_too_deep")
        encoded = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return Metadata(lost="metadata_too_large") if len(encoded) > MAX_METADATA_BYTES else Metadata(encoded.decode())


class Dropped(NamedTuple):
    """A record that yields no document, and why."""

    reason: str
    where: str  # file and position, for error messages
    what: str | None = None  # the defect; None for a sound record that is not wanted
    subset: str | None = None  # of the Pile, where it could be read
    ends_file: bool = False  # nothing of the file is read from here on, though more was to come


def no_text(where: str, field: str, actual: str, others: Iterable[str]) -> Dropped:
    """Drop for no string under ``field``: ``actual`` says what is there, ``others`` are fields with strings."""
    names = ", ".join(name[:SHOWN_CHARACTERS] for name in islice(others, SHOWN_FIELDS))
    hint = f" but under {names}: set field (--field) to one" if names else ""
    return Dropped("no_text", where, f"no string under {field!r}{actual}{hint}")


def too_large(where: str, max_bytes: int) -> Dropped:
    """Drop of a record that is longer than ``max_bytes``."""
    return Dropped("too_large", where, f"longer than {max_bytes} bytes")


def text_record(
    number: int,
    content: bytes | memoryview,
    where: str,
    max_bytes: int,
    **fields: Any,  # noqa: ANN401
) -> Record | Dropped:
    """The document of a text in UTF-8, with these fields of a ``Record``."""
    if len(content) > max_bytes:
        return too_large(where, max_bytes)
    try:
        return Record(number, str(content, "utf-8"), **fields)
    except UnicodeDecodeError as error:
        return Dropped("not_utf8", where, str(error))
