"""What a source is made of: files, and in each of them records that are documents or say why they are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["warc", "jsonl", "pile", "parquet"]


@dataclass(frozen=True)
class SourceFile:
    """One file of a source, and how it is read."""

    source: str
    path: Path
    name: str  # its path below the source's folder: with source and place it makes a document's id
    kind: Kind
    field: str = "text"  # the key or column of the text (jsonl, parquet)
    subset: str | None = None  # the meta.pile_set_name that is wanted (pile); None wants all


class Record(NamedTuple):
    """A document as its source holds it."""

    place: int  # its number in the file, counted from 0
    content: str | bytes  # text, or an HTML page as served
    url: str | None = None
    charset: str | None = None  # of an HTML page, as its HTTP header declared
    subset: str | None = None  # of the Pile


class Dropped(NamedTuple):
    """A record that yields no document, and why."""

    reason: str
    where: str  # file and place, for a person
    what: str | None = None  # what was wrong with it; None where the record is sound but not wanted
    subset: str | None = None  # of the Pile, where so much of it could be read
