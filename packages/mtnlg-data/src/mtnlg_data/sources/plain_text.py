"""Text files in UTF-8, plain or compressed: a document is a file, or a paragraph of it. A file is one unit of work."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Literal

from mtnlg_data.settings import setting

from .reader import Part, Reader, compressible, reader
from .record import Dropped, Record, text_record
from .rows import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@reader("text", compressible("*.txt"))
class Text(Reader):
    """Files of text."""

    version = 1
    document: Literal["file", "paragraph"] = setting(
        "file", "Text files: whether a document is a file, or a paragraph between blank lines."
    )

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the text of the file, or its paragraphs; of a damaged file, those before the damage."""
        del part
        number, size, lines = 0, 0, list[bytes]()
        for item in chain(read_lines(path, max_bytes), [None]):
            if isinstance(item, Dropped) and item.ends_file:
                yield item
                return
            line = bytes(max_bytes + 1) if isinstance(item, Dropped) else item[1] if item else b""
            if item and not (self.document == "paragraph" and line.isspace()):
                if size <= max_bytes:
                    lines.append(line)
                size += len(line)
            elif lines:
                yield text_record(number, b"".join(lines), f"{path.name}: {self.document} {number + 1}", max_bytes)
                number, size, lines = number + 1, 0, []
