"""JSON lines and the Pile, plain or compressed: one object per line, its text under a key.

The Pile (arXiv 2101.00027) is JSON lines with the document's subset under ``meta.pile_set_name``; eleven of its
subsets are in MT-NLG's corpus. A plain file is read in parts; a compressed one is one unit of work, however large.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import orjson

from mtnlg_data.settings import setting

from .corpus import DATASETS
from .reader import Part, Reader, compressible, reader
from .record import Dropped, Record
from .rows import Rows, read_lines
from .streams import detect_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

EXACT_INTEGERS = float(1 << 63)


@reader("jsonl", compressible("*.jsonl", "*.ndjson", "*.json"))
class Jsonl(Rows):
    """JSON lines; the source sets the key of the text."""

    version = 2

    def parts(self, path: Path, most: int) -> int:
        """``most`` for a plain file, 1 for a compressed one."""
        return 1 if detect_format(path) else most

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the objects of a file, or of the lines that begin in a part; blank lines are only counted.

        Records that are not wanted are skipped and not counted.
        """
        for line in read_lines(path, max_bytes, part):
            if isinstance(line, Dropped):
                yield line
            elif not line[1].isspace():
                row = parse_object(*line[1:])
                if isinstance(row, Dropped):
                    yield row
                elif self.wants(record := self.record(row, line[0], line[2])):
                    yield record


@reader("pile")
class Pile(Jsonl):
    """The Pile. A file feeds several sources, one per subset, and is read once for all of them."""

    shared = True
    field: Literal["text"] = "text"
    id: Literal["id"] = "id"
    message: None = None
    subset: str | tuple[str, ...] | None = setting(
        None, "The Pile: pile_set_name of the documents to read, or several; all if not given."
    )

    @classmethod
    def source_defaults(cls, name: str) -> dict[str, object]:
        """The subset of a dataset of the paper."""
        return {"subset": DATASETS[name].subset} if name in DATASETS else {}

    @property
    def subsets(self) -> tuple[str, ...] | None:
        """The subsets that are wanted; None for all."""
        return (self.subset,) if isinstance(self.subset, str) else self.subset

    def record(self, row: dict[str, Any], number: int, where: str) -> Record | Dropped:
        """The document of an object, and its subset."""
        meta = row.get("meta")
        subset = meta.get("pile_set_name") if isinstance(meta, dict) else None
        return super().record(row, number, where)._replace(subset=subset)

    def wants(self, item: Record | Dropped) -> bool:
        """Whether a record is of a wanted subset."""
        return self.subsets is None or item.subset in self.subsets

    def together(self, others: Sequence[Reader]) -> Reader:
        """A reader of the subsets that any of these reads."""
        subsets = [other.subsets for other in (self, *others) if isinstance(other, Pile)]
        return Pile(subset=None if None in subsets else tuple(name for names in subsets for name in names or ()))


def parse_object(line: bytes, where: str) -> dict[str, Any] | Dropped:
    """Parse a line, or a file, as a JSON object; numbers that JSON lacks (NaN, Infinity) become null."""
    what = "not an object; each line must be one"
    try:
        row = orjson.loads(line)
        exact = not isinstance(row, dict) or not any(
            abs(value) >= EXACT_INTEGERS for value in row.values() if type(value) is float
        )
    except orjson.JSONDecodeError as error:
        row, exact, what = None, False, str(error)
    if not exact:  # orjson reads integers beyond 64 bits as floats, and Python's json writes NaN and Infinity
        with suppress(ValueError, RecursionError):  # of more digits, or deeper, than Python reads
            python = json.loads(line.decode(), parse_constant=_finite, parse_float=_finite)
            json.dumps(python, ensure_ascii=False).encode()  # half of a surrogate pair is no text
            row = python
    if isinstance(row, dict):
        return row
    return Dropped("not_json", where, what, ends_file=not exact and not line.endswith(b"\n"))


def _finite(number: str) -> float | None:
    return value if math.isfinite(value := float(number)) else None
