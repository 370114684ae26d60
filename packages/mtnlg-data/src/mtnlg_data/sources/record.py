"""Source files, and the records and drop reasons that the readers yield from them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from mtnlg_data.console import Failure
from mtnlg_data.transfer.url_files import RemoteFile, local_copy

from .parts import WHOLE, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from mtnlg_data.schema import TableRow

#: Bytes of a record's metadata; more is not kept. A row group holds as much, or a row of it.
MAX_METADATA_BYTES = 1 << 22
Kind = Literal["warc", "jsonl", "pile", "parquet", "arrow"]
SHOWN_FIELDS, SHOWN_CHARACTERS = 5, 40  # of a file without the field that was asked for


@dataclass(frozen=True)
class SourceFile:
    """One file of a source, and how to read it."""

    source: str
    path: Path | RemoteFile
    name: str  # path below the source's folder; source, name and record number make a document's id
    kind: Kind
    field: str = "text"  # key or column of the text (jsonl, parquet, arrow)
    subset: str | None = None  # meta.pile_set_name to keep (pile); None keeps all
    part: Part = WHOLE

    def key(self, number: int) -> str:
        """The key of a record: source, file and number; of a part, the record's number in it behind the part's.

        Rows of tables are numbered from the beginning of the file in any part.
        """
        part = "" if self.part == WHOLE or self.kind in {"parquet", "arrow"} else f"{self.part.number}:"
        return f"{self.source}/{self.name}/{part}{number}"

    @property
    def stats(self) -> tuple[int, int | str | None]:
        """Size in bytes, and modification time in nanoseconds or the version at a URL: what identifies raw input."""
        if isinstance(self.path, RemoteFile):
            return self.path.size, self.path.version
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns

    @property
    def here(self) -> Path:
        """Its path on this machine; of one at a URL only within `local`."""
        if isinstance(self.path, RemoteFile):
            raise TypeError(f"{self.path}: is not on this machine")
        return self.path

    @contextmanager
    def local(self, folder: Path) -> Iterator[SourceFile]:
        """The file on this machine: itself, or a copy below ``folder`` that goes when the block ends."""
        if isinstance(self.path, RemoteFile):
            with local_copy(self.path, folder) as copy:
                yield replace(self, path=copy)
        else:
            yield self


def name_below(path: Path, base: Path) -> str:
    """The path below ``base`` for the ids of documents; bytes of a file name that are not UTF-8 are escaped."""
    return path.relative_to(base).as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_regular(path: Path) -> None:
    """Raise ``Failure`` for what is no file and would be passed over in silence: a folder, a pipe, a dead link."""
    if not path.is_file():
        dead, kind = path.is_symlink() and not path.exists(), "a folder" if path.is_dir() else "a pipe or device"
        raise Failure(f"{path}: it is {'a link to nowhere' if dead else kind}, not a file; take it out of the input")


class Metadata(NamedTuple):
    """All fields of a record that are no column of ``SCHEMA``: a JSON object, or the row of a Parquet file."""

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
    metadata: Metadata = Metadata()


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


def name_fields(fields: Iterable[str]) -> str:
    """The first of these fields, which hold strings, and what to do with them."""
    return f"{', '.join(field[:SHOWN_CHARACTERS] for field in islice(fields, SHOWN_FIELDS))}: name one as the field"


class Dropped(NamedTuple):
    """A record that yields no document, and why."""

    reason: str
    where: str  # file and position, for error messages
    what: str | None = None  # the defect; None for a sound record that is not wanted
    subset: str | None = None  # of the Pile, where it could be read
    ends_file: bool = False  # nothing of the file is read from here on, though more was to come
