"""Tables in Parquet and Arrow (Hugging Face datasets): one column of strings is the text; all other columns are kept.

Strings of Parquet are read dictionary-encoded, and texts are converted value by value: a megabyte of text repeated in a
million rows is held once, and invalid UTF-8 costs only its row. Other columns are held for one batch of rows at a time.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.files import naming, regular
from mtnlg_data.schema import TableRow, arrow_damage, documents_schema, given_ids, has_strings, is_string, left_out
from mtnlg_data.transfer.urls import first_line

from .reader import Part, reader
from .record import MAX_METADATA_BYTES, Dropped, Metadata, Record, no_text, text_record
from .rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mtnlg_data.array_types import Int64s

MAX_BATCH_ROWS = 1024
BATCH_BYTES = 1 << 25
FIXED_BYTES = 8  # of a number, and of where a string begins
PARQUET_CHARACTERS = 3.0  # per byte of a file


class Table(Rows):
    """Files of rows with columns."""

    version = 2
    is_table = True

    def view(self, schema: pa.Schema) -> pa.Schema:
        """The columns that documents are made of: a nested text or id has one of its own, and a chat is a string."""
        seen = self.flatten(schema.empty_table()).schema if self.is_nested else schema
        place = seen.get_field_index(self.field)
        kind = seen.field(place).type if place >= 0 else None
        if self.message is not None and kind and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            seen = seen.set(place, pa.field(self.field, pa.string()))
        return schema if seen is schema else seen.remove_metadata()

    @property
    def is_nested(self) -> bool:
        """Whether the text or the id is in a struct."""
        return "." in self.field + self.id

    def flatten(self, rows: pa.Table) -> pa.Table:
        """The rows, with fields of structs as columns a.b, level by level until ``field`` and ``id`` are columns."""
        for path in (self.field, self.id):
            for _ in range(path.count(".")):
                rows = rows if path in rows.column_names else rows.flatten()
        return rows

    def refuse(self, file: str, schema: pa.Schema) -> Dropped | None:
        """Drop of a file with a column that documents cannot keep, or without a column of texts; None for others."""
        if lost := left_out(schema):
            name, why = next(iter(lost.items()))
            return Dropped("unreadable", file, f"column {name}: {why}; rename it", ends_file=True)
        if has_strings(schema, self.field):
            return None
        names = schema.names
        kind = f" ({schema.field(self.field).type})" if self.field in names else f" among {', '.join(names)}"
        return no_text(file, self.field, kind, (name for name in names if has_strings(schema, name)))._replace(
            ends_file=True
        )

    def read_batch(
        self, batch: pa.RecordBatch, kind: pa.DataType, first: int, name: str, max_bytes: int
    ) -> Iterator[Record | Dropped]:
        """Yield the rows of a batch, numbered from ``first``; ``kind`` is the struct type of the other columns."""
        if self.is_nested:
            (batch,) = self.flatten(pa.Table.from_batches([batch])).combine_chunks().to_batches()
        carried = _carry_columns(batch, kind, self.id)
        for number, (value, row) in enumerate(zip(batch[self.field], carried, strict=True), first):
            where = f"{name}: row {number + 1}"
            try:
                content = self._content(value)
            except UnicodeDecodeError as error:
                yield Dropped("not_utf8", where, str(error))
                continue
            if content is None:
                yield Dropped("no_text", where, "its text is null")
            else:
                yield text_record(number, content, where, max_bytes, **row)

    def _content(self, value: Any) -> memoryview | bytes | None:  # noqa: ANN401  (pyarrow has no types)
        """The bytes of a string or dictionary scalar, without a copy, or of a chat; None for null."""
        if isinstance(value, pa.ListScalar):
            rows = value.as_py()
            text = self.text_of(_without_nulls(rows) if self.message == "json" else rows)
            return None if text is None else text.encode()
        if isinstance(value, pa.DictionaryScalar):
            value = value.value
        return memoryview(value.as_buffer()) if value.is_valid else None


def _without_nulls(value: Any) -> Any:  # noqa: ANN401  (of any type)
    """The value without the keys that are null: in a column, a struct has all keys that any struct of it has."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


@reader("parquet", ["*.parquet"])
class Parquet(Table):
    """Parquet, in parts of whole row groups."""

    def characters(self, name: str, size: int) -> float:
        """Estimated from how zstd and dictionaries compress text."""
        del name
        return size * PARQUET_CHARACTERS

    def columns(self, path: Path) -> pa.Schema | None:
        """The columns in the footer; None if it cannot be read."""
        return None if (file := _open(path)) is None else self.view(file.schema_arrow)

    def parts(self, path: Path, most: int) -> int:
        """At most one part per row group."""
        return 1 if (file := _open(path)) is None else min(most, file.num_row_groups)

    def rows(self, path: Path) -> int:
        """Number of rows in the footer; 0 if it cannot be read."""
        return 0 if (file := _open(path)) is None else file.metadata.num_rows

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the rows of a part's row groups; a damaged row group costs its remaining rows."""
        try:
            with arrow_damage(), pq.ParquetFile(regular(path)) as plain:
                schema, strings = self.view(plain.schema_arrow), _string_leaves(plain)
                file = pq.ParquetFile(regular(path), read_dictionary=strings)
        except pa.ArrowException as error:
            yield Dropped("unreadable", path.name, first_line(error), ends_file=True)
            return
        if refused := self.refuse(path.name, schema):
            yield from [refused][part.number :]
            return
        kind = documents_schema(schema, self.field).field("metadata").type
        columns = [self.field] if pa.types.is_null(kind) else [self.field, *(column.name for column in kind)]
        with file:
            begin, stop = part.of(file.num_row_groups)
            number = sum(file.metadata.row_group(group).num_rows for group in range(begin))
            for group in range(begin, stop):
                footer = file.metadata.row_group(group)
                end = number + footer.num_rows
                batch_rows = BATCH_BYTES * footer.num_rows // max(1, footer.total_byte_size)
                batch_rows = min(max(1, batch_rows), MAX_BATCH_ROWS)
                try:
                    with arrow_damage():
                        for batch in file.iter_batches(batch_rows, row_groups=[group], columns=columns):
                            for row in self.read_batch(batch, kind, number, path.name, max_bytes):
                                yield row
                                number += 1
                except pa.ArrowException as error:
                    rows = f"{path.name}: rows {number + 1} to {end}"
                    yield Dropped("unreadable", rows, first_line(error), ends_file=end - number > 1)
                number = end


@reader("arrow", ["*.arrow"])
class Arrow(Table):
    """Arrow, in the stream format, which data sets have, or the file format; one unit of work, however large."""

    def columns(self, path: Path) -> pa.Schema | None:
        """The columns in the first message; None if it cannot be read."""
        try:
            with _batches(path) as (schema, _):
                return self.view(schema)
        except pa.ArrowException:
            return None

    def rows(self, path: Path) -> int:
        """Number of rows in the headers of the batches; of a truncated or damaged file, rows before that point."""
        rows = 0
        try:
            with _batches(path, pa.memory_map) as (_, batches):
                for batch in batches:
                    rows += batch.num_rows
        except (pa.ArrowException, OSError):
            pass
        return rows

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the rows of a file; of a truncated or damaged file, the rows before that point."""
        del part
        number = 0
        try:
            with _batches(path) as (own, batches):
                schema = self.view(own)
                if refused := self.refuse(path.name, schema):
                    yield refused
                    return
                kind = documents_schema(schema, self.field).field("metadata").type
                for batch in batches:
                    begin = number
                    for row in self._read_rows(batch, kind, begin, path.name, max_bytes):
                        yield row
                        number += 1
                    number = begin + batch.num_rows
        except pa.ArrowException as error:
            where = f"{path.name}: rows from {number + 1} on"
            yield Dropped("unreadable", where, first_line(error), ends_file=True)

    def _read_rows(
        self, batch: pa.RecordBatch, kind: pa.DataType, first: int, name: str, max_bytes: int
    ) -> Iterator[Record | Dropped]:
        """Yield the rows of a batch, or one drop if it is damaged."""
        try:
            batch.validate(full=True)  # offsets in it would lead anywhere
        except pa.ArrowException as error:
            rows = f"{name}: rows {first + 1} to {first + batch.num_rows}"
            yield Dropped("unreadable", rows, first_line(error), ends_file=batch.num_rows > 1)
            return
        for begin in range(0, batch.num_rows, MAX_BATCH_ROWS):
            part = batch.slice(begin, MAX_BATCH_ROWS)
            yield from self.read_batch(part, kind, first + begin, name, max_bytes)


@contextmanager
def _batches(
    path: Path, open_source: Callable[[str], pa.NativeFile] = pa.OSFile
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema of an Arrow file, and its batches, read one by one."""
    with naming(path), arrow_damage(), open_source(str(regular(path))) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source) as opened:
            yield opened.schema, map(opened.get_batch, range(opened.num_record_batches)) if is_file else opened


def _open(path: Path) -> pq.ParquetFile | None:
    try:
        with arrow_damage():
            return pq.ParquetFile(regular(path))
    except pa.ArrowException:
        return None


def _string_leaves(file: pq.ParquetFile) -> list[str]:
    """Paths of the strings and binary values of a file, nested ones too."""
    leaves = (file.schema.column(number) for number in range(len(file.schema)))
    strings = (leaf for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL")
    extensions = {field.name for field in file.schema_arrow if isinstance(field.type, pa.BaseExtensionType)}
    return [leaf.path for leaf in strings if leaf.path.partition(".")[0] not in extensions]


def _carry_columns(batch: pa.RecordBatch, kind: pa.StructType, id_column: str) -> Iterator[dict[str, Any]]:
    """Yield what each row of a batch has besides its text; a row loses it if it is over ``MAX_METADATA_BYTES``."""
    if pa.types.is_null(kind):
        yield from ({} for _ in range(batch.num_rows))
        return
    sizes = np.sum([row_bytes(batch[column.name]) for column in kind], axis=0)
    rows = pa.array(np.flatnonzero(sizes <= MAX_METADATA_BYTES))
    arrays = [batch[column.name].take(rows).cast(column.type) for column in kind]
    columns = pa.StructArray.from_arrays(arrays, fields=list(kind))
    names = [column.name for column in kind]  # pyarrow 17 has no kind.names
    ids = _strings(given_ids(columns.field(id_column))) if id_column in names else [None] * len(rows)
    has_urls = has_strings(pa.schema(list(kind)), "url")
    urls = _strings(columns.field("url")) if has_urls else [None] * len(rows)
    place = 0
    for size in sizes.tolist():
        if size > MAX_METADATA_BYTES:
            yield {"metadata": Metadata(lost="metadata_too_large")}
        else:
            yield {"id": ids[place], "url": urls[place], "metadata": Metadata(TableRow(columns, place, size))}
            place += 1


def row_bytes(column: pa.Array) -> Int64s:
    """Approximate bytes of each value of a column; a dictionary-encoded column counts as if it were decoded."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        indices = column.indices.fill_null(len(column.dictionary)).to_numpy()
        values: Int64s = np.append(row_bytes(column.dictionary), 0)[indices]
        return values
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(column.storage)
    sizes = np.full(len(column), FIXED_BYTES)
    if pa.types.is_struct(kind):
        total: Int64s = sum(map(row_bytes, column.flatten()), sizes)
        return total
    if pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if pa.types.is_nested(kind):  # a list of one of the kinds
        ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy())
        totals = np.concatenate([[0], np.cumsum(row_bytes(column.flatten()))])
        sizes += np.diff(totals[ends], prepend=0)
    elif pa.types.is_fixed_size_binary(kind):
        sizes += kind.byte_width
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_string(kind):
        sizes += pc.binary_length(column).fill_null(0).to_numpy()
    return sizes


def _strings(column: pa.Array) -> list[str | None]:
    values = column.cast(pa.string()).cast(pa.binary()).to_pylist()
    return [None if value is None else value.decode("utf-8", "replace") for value in values]
