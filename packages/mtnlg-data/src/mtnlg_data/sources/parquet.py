"""Parquet: the text in a column of strings, a URL beside it where there is one.

Columns are read as dictionaries and their values one by one: a megabyte that stands in a million rows is held once, and
bytes that are no UTF-8 cost their row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from .record import Dropped, Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_ROWS = 1024
BYTES_AT_ONCE = 1 << 25


def read_parquet(path: Path, field: str, largest: int) -> Iterator[Record | Dropped]:
    """The rows of a file; a row group that cannot be read costs its rows."""
    try:
        schema = pq.read_schema(path)
        columns = [name for name in dict.fromkeys((field, "url")) if name in schema.names and _of_strings(schema, name)]
        file = pq.ParquetFile(path, read_dictionary=columns) if field in columns else None
    except pa.ArrowException as error:
        yield Dropped("unreadable", path.name, _first_line(error))
        return
    if file is None:
        found = f"it is of {schema.field(field).type}" if field in schema.names else f"it has {', '.join(schema.names)}"
        yield Dropped("no_text", path.name, f"no column {field!r} of strings; {found}")
        return
    with file:
        number = 0
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            end = number + metadata.num_rows
            at_once = BYTES_AT_ONCE * metadata.num_rows // max(1, metadata.total_byte_size)
            try:
                for batch in file.iter_batches(min(max(1, at_once), MOST_ROWS), row_groups=[group], columns=columns):
                    yield from _rows(batch, number, path.name, largest)
                    number += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                if getattr(error, "errno", None):
                    raise
                yield Dropped("unreadable", f"{path.name}: rows {number + 1} to {end}", _first_line(error))
            number = end


def _of_strings(schema: pa.Schema, name: str) -> bool:
    kind = schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _rows(batch: pa.RecordBatch, start: int, name: str, largest: int) -> Iterator[Record | Dropped]:
    texts = batch.column(0)
    urls = batch.column(1) if batch.num_columns > 1 else pa.nulls(batch.num_rows, pa.string())
    for number, (text, url) in enumerate(zip(texts, urls, strict=True), start):
        where = f"{name}: row {number + 1}"
        value = _string(text)
        if value is None:
            yield Dropped("no_text", where, f"null in column {batch.schema.names[0]!r}")
        elif len(value) > largest:
            yield Dropped("too_large", where, f"longer than {largest} bytes")
        else:
            try:
                yield Record(number, str(value, "utf-8"), _url(url))
            except UnicodeDecodeError as error:
                yield Dropped("not_utf8", where, str(error))


def _string(scalar: Any) -> memoryview | None:  # noqa: ANN401  (pyarrow has no types)
    """The bytes of a string where it lies, through a dictionary too."""
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    return memoryview(scalar.as_buffer()) if scalar.is_valid else None


def _url(scalar: Any) -> str | None:  # noqa: ANN401  (as above)
    value = _string(scalar)
    return None if value is None else str(value, "utf-8", "replace")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
