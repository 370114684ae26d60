"""CSV and TSV, plain or compressed: a row per document, its text in a column that the first row names.

Fields may hold line ends within quotes. Each row is read by itself, so only a broken row is lost: one with more or
fewer fields than the first, or one that is not UTF-8 or not quoted as CSV. A file is one unit of work.
"""

from __future__ import annotations

import csv
from itertools import count
from typing import TYPE_CHECKING

from mtnlg_data.settings import setting

from .reader import Part, compressible, reader
from .record import Dropped, Record, too_large
from .rows import Rows, read_lines
from .streams import Damaged

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@reader("csv", compressible("*.csv", "*.tsv"))
class Csv(Rows):
    """Rows of CSV and TSV; all columns are strings."""

    version = 1
    message: None = None
    delimiter: str | None = setting(
        None, "CSV: the separator of fields; a tab in files named .tsv, else a comma.", min_length=1, max_length=1
    )

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the rows after the first, which has the names of the columns."""
        del part
        csv.field_size_limit(1 << 62)  # rows have a limit instead
        delimiter = self.delimiter or ("\t" if ".tsv" in path.name.lower() else ",")
        lines, header, size = read_lines(path, max_bytes), list[str](), 0

        def row_lines() -> Iterator[str]:
            nonlocal size
            for line in lines:
                if isinstance(line, Dropped):
                    raise Damaged(*line)
                size += len(line[1])
                kept = line[1] if size <= max_bytes else b'"' * line[1].count(b'"')  # which tell where a row ends
                yield kept.decode("utf-8", "surrogateescape")

        for number in count(-1):
            where, size = f"{path.name}: row {number + 1}", 0
            try:
                row = next(filter(None, csv.reader(row_lines(), delimiter=delimiter, strict=True)), None)
                "".join(row or ()).encode()
            except (csv.Error, UnicodeError) as error:
                yield Dropped("bad_csv", where, str(error), ends_file="end of data" in str(error))
                continue
            except Damaged as error:
                yield Dropped(*error.args)
                continue
            if row is None:
                return
            if header and size <= max_bytes and len(row) == len(header):
                yield self.record(dict(zip(header, row, strict=True)), number, where)
            elif header:
                what = f"{len(row)} fields where the first row has {len(header)}"
                yield too_large(where, max_bytes) if size > max_bytes else Dropped("bad_csv", where, what)
            header = header or row
