"""Tar archives, plain or compressed, as WebDataset writes them: adjacent NAME.txt and NAME.json are a sample.

The text of a sample is its ``.txt``, or under a key of its ``.json``, whose other keys are kept; other members (images,
folders, links) are skipped, and nothing is unpacked. A truncated or damaged archive is reported: ``tarfile`` would take
the damage for its end.
"""

from __future__ import annotations

import re
import tarfile
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .jsonl import parse_object
from .reader import Part, compressible, reader
from .record import Dropped, Record, too_large
from .rows import Rows
from .streams import Damaged, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

BLOCK, CHUNK_BYTES = tarfile.BLOCKSIZE, 1 << 20
TEXT = re.compile(r"(.*)\.(txt|json)", re.IGNORECASE | re.DOTALL)
WITHOUT_DATA = b"123456"  # types of links, devices, folders and pipes
#: Types of members that hold the name of the next member, and the pattern that finds it.
NAMES = {
    tarfile.GNUTYPE_LONGNAME: re.compile(rb"([^\0]*)"),
    tarfile.XHDTYPE: re.compile(rb"(?:.*\n)?\d+ path=([^\n]*)\n", re.DOTALL),
}
MAX_NAME_BYTES = 1 << 16
LOST = "lost"  # a kind that no member has


@reader("tar", compressible("*.tar"))
class Tar(Rows):
    """Samples of tar archives; the id is the sample's name if its .json has none."""

    version = 1

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the samples of an archive; of a truncated one, those before the cut."""
        del part
        for number, (name, members) in enumerate(groupby(read_texts(path, max_bytes), itemgetter(0))):
            contents = {kind: content for _, kind, content in members}
            yield contents.get(LOST) or self._document(contents, number, name, f"{path.name}: {name}", max_bytes)

    def _document(
        self, contents: Mapping[str, Any], number: int, name: str, where: str, max_bytes: int
    ) -> Record | Dropped:
        if None in contents.values():
            return too_large(where, max_bytes)
        row = parse_object(contents.get("json", b"{}"), where)
        if isinstance(row, Dropped):
            return row._replace(ends_file=False)
        try:
            if "txt" in contents:
                row[self.field] = contents["txt"].decode("utf-8-sig")
        except UnicodeDecodeError as error:
            return Dropped("not_utf8", where, str(error))
        document = self.record(row, number, where)
        return document._replace(id=document.id or name) if isinstance(document, Record) else document


def read_texts(path: Path, max_bytes: int) -> Iterator[tuple[str, str, Any]]:
    """Yield name, kind (txt or json) and content of the texts in an archive; the content is None if it is too long.

    If the archive is truncated, or no member begins where one must, the last item is of kind ``LOST``, with the loss.
    """
    name, where, is_end = "", path.name, True
    try:
        with (stream := Stream(path)).file as file:
            while block := stream.read(file.read, BLOCK):
                if is_end := not any(block):
                    continue
                header = tarfile.TarInfo.frombuf(block, "utf-8", "backslashreplace")
                text = TEXT.fullmatch(name or header.name) if header.isreg() else None
                most = max_bytes if text else MAX_NAME_BYTES * (header.type in NAMES)
                content = _read_data(stream, 0 if header.type in WITHOUT_DATA else header.size, most)
                if text:
                    yield text[1], text[2].lower(), content
                    where = f"{path.name}: behind {text[0]}"
                found = NAMES[header.type].match(content or b"") if header.type in NAMES else None
                name = found[1].decode("utf-8", "backslashreplace") if found else ""
        if not is_end:
            raise Damaged("truncated", "its end is missing")  # noqa: TRY301
    except Damaged as error:
        reason, what = error.args
        yield "", LOST, Dropped(reason, where, what, ends_file=True)
    except tarfile.HeaderError as error:
        yield "", LOST, Dropped("unreadable", where, f"no member: {error}; the rest is lost", ends_file=True)


def _read_data(stream: Stream, size: int, most: int) -> bytes | None:
    """The data of a member if it has at most ``most`` bytes; otherwise the member is skipped."""
    kept, rest = bytearray(), -(-size // BLOCK) * BLOCK
    while rest > 0:
        chunk = stream.read(stream.file.read, min(rest, CHUNK_BYTES))
        if not chunk:
            raise Damaged("truncated", "a member is cut")
        rest -= len(chunk)
        kept += chunk * (size <= most)
    return bytes(kept[:size]) if size <= most else None
