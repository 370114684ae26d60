"""Parquet: the text in a column of strings, a URL beside it where there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from .record import Dropped, Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS_A_BATCH = 1024


def read_parquet(path: Path, field: str, largest: int) -> Iterator[Record | Dropped]:
    """The rows of a file; a row group that cannot be read costs its rows."""
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowException as error:
        yield Dropped("unreadable", path.name, _first_line(error))
        return
    with file:
        names = set(file.schema_arrow.names)
        if field not in names:
            yield Dropped("no_text", path.name, f"no column {field!r}; it has {', '.join(sorted(names))}")
            return
        columns = [field, "url"] if "url" in names and field != "url" else [field]
        number = 0
        for group in range(file.num_row_groups):
            end = number + file.metadata.row_group(group).num_rows
            try:
                for batch in file.iter_batches(ROWS_A_BATCH, row_groups=[group], columns=columns):
                    yield from _rows(batch, number, path.name, largest)
                    number += batch.num_rows
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                yield Dropped("unreadable", f"{path.name}: rows {number + 1} to {end}", _first_line(error))
            number = end


def _rows(batch: pa.RecordBatch, start: int, name: str, largest: int) -> Iterator[Record | Dropped]:
    texts = batch.column(0).to_pylist()
    urls = batch.column(1).to_pylist() if batch.num_columns > 1 else [None] * len(texts)
    for number, (text, url) in enumerate(zip(texts, urls, strict=True), start):
        where = f"{name}: row {number + 1}"
        if not isinstance(text, str):
            yield Dropped("no_text", where, f"no string in column {batch.schema.names[0]!r}")
        elif len(text) > largest:
            yield Dropped("too_large", where, f"longer than {largest} characters")
        else:
            yield Record(number, text, url if isinstance(url, str) else None)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
