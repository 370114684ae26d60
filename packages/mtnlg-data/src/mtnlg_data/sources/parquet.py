"""Parquet: the text in a column of strings, the page's address in the column ``url`` where there is one.

Columns are read dictionary-encoded and converted value by value: a megabyte repeated in a million rows is held once,
and invalid UTF-8 costs only its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from .record import Dropped, Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_BATCH_ROWS = 1024
BATCH_BYTES = 1 << 25


def read_parquet(path: Path, field: str, max_bytes: int) -> Iterator[Record | Dropped]:
    """Yield the rows of a file; a row group that cannot be read costs its remaining rows."""
    try:
        schema = pq.read_schema(path)
        columns = [name for name in dict.fromkeys((field, "url")) if _has_strings(schema, name)]
        file = pq.ParquetFile(path, read_dictionary=columns) if field in columns else None
    except pa.ArrowException as error:
        yield Dropped("unreadable", path.name, _first_line(error), ends_file=True)
        return
    if file is None:
        names = schema.names
        actual = f"it is of {schema.field(field).type}" if field in names else f"it has {', '.join(names)}"
        yield Dropped("no_text", path.name, f"no column {field!r} of strings; {actual}", ends_file=True)
        return
    with file:
        number = 0
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            end = number + metadata.num_rows
            batch_rows = BATCH_BYTES * metadata.num_rows // max(1, metadata.total_byte_size)
            batch_rows = min(max(1, batch_rows), MAX_BATCH_ROWS)
            try:
                for batch in file.iter_batches(batch_rows, row_groups=[group], columns=columns):
                    yield from _read_batch(batch, number, path.name, max_bytes)
                    number += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                if getattr(error, "errno", None):
                    raise
                rows = f"{path.name}: rows {number + 1} to {end}"
                yield Dropped("unreadable", rows, _first_line(error), ends_file=end - number > 1)
            number = end


def _has_strings(schema: pa.Schema, name: str) -> bool:
    """Whether the schema has a column of this name that holds strings, dictionary-encoded or not."""
    if name not in schema.names:
        return False
    kind = schema.field(name).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _read_batch(batch: pa.RecordBatch, start: int, name: str, max_bytes: int) -> Iterator[Record | Dropped]:
    texts = batch.column(0)
    urls = batch.column(1) if batch.num_columns > 1 else pa.nulls(batch.num_rows, pa.string())
    for number, (text, url) in enumerate(zip(texts, urls, strict=True), start):
        where = f"{name}: row {number + 1}"
        content = _utf8_bytes(text)
        if content is None:
            yield Dropped("no_text", where, f"null in column {batch.schema.names[0]!r}")
        elif len(content) > max_bytes:
            yield Dropped("too_large", where, f"longer than {max_bytes} bytes")
        else:
            address = _utf8_bytes(url)
            decoded_url = None if address is None else str(address, "utf-8", "replace")
            try:
                yield Record(number, str(content, "utf-8"), decoded_url)
            except UnicodeDecodeError as error:
                yield Dropped("not_utf8", where, str(error))


def _utf8_bytes(scalar: Any) -> memoryview | None:  # noqa: ANN401  (pyarrow has no types)
    """The bytes of a string or dictionary scalar, without a copy; None for null."""
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    return memoryview(scalar.as_buffer()) if scalar.is_valid else None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
