"""Source files, and the records and drop reasons that the readers yield from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["warc", "jsonl", "pile", "parquet"]


@dataclass(frozen=True)
class SourceFile:
    """One file of a source, and how to read it."""

    source: str
    path: Path
    name: str  # path below the source's folder; source, name and record number make a document's id
    kind: Kind
    field: str = "text"  # key or column of the text (jsonl, parquet)
    subset: str | None = None  # meta.pile_set_name to keep (pile); None keeps all


def name_below(path: Path, base: Path) -> str:
    """The path below ``base`` for the ids of documents; bytes of a file name that are not UTF-8 are escaped."""
    return path.relative_to(base).as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class Record(NamedTuple):
    """A document as its source stores it."""

    number: int  # index in the file, from 0
    content: str | bytes  # text, or an HTML page as served
    url: str | None = None
    charset: str | None = None  # of an HTML page, declared by its HTTP header
    subset: str | None = None  # of the Pile


class Dropped(NamedTuple):
    """A record that yields no document, and why."""

    reason: str
    where: str  # file and position, for error messages
    what: str | None = None  # the defect; None for a sound record that is not wanted
    subset: str | None = None  # of the Pile, where it could be read
    ends_file: bool = False  # nothing of the file is read from here on, though more was to come
