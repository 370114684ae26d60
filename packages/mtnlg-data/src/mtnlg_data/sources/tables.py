"""Tables, Parquet and Arrow (data sets of Hugging Face): the text in a column of strings; all other columns go with it.

Strings of Parquet are read dictionary-encoded, and texts are converted value by value: a megabyte of text repeated in a
million rows is held once, and invalid UTF-8 costs only its row. Other columns are in memory for a batch of rows.

A folder of ``save_to_disk`` holds ``data-00000-of-00002.arrow`` and so on, ``dataset_info.json`` and ``state.json``;
what ``map`` left there (``cache-….arrow``) is no part of the data set.
"""

from __future__ import annotations

from contextlib import contextmanager
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtnlg_data.files import regular
from mtnlg_data.schema import TableRow, documents_schema, given_ids, has_strings, is_string
from mtnlg_data.settings import setting
from mtnlg_data.transfer.urls import first_line

from .reader import Part, Reader, reader
from .record import MAX_METADATA_BYTES, Dropped, Metadata, Record, name_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAX_BATCH_ROWS = 1024
BATCH_BYTES = 1 << 25
FIXED_BYTES = 8  # of a number, and of where a string begins
PARQUET_CHARACTERS = 3.0  # per byte of a file
STATE = "state.json"
NOT_DATA = {STATE, "dataset_info.json", "dataset_dict.json"}
"""Files of a data set that hold no rows. All may be missing in a folder that happens to have a file of such a name."""


class Table(Reader):
    """Files of rows with columns."""

    version = 1
    is_table = True
    field: str = setting("text", "Key or column of the text (jsonl, parquet, arrow).", min_length=1)


@reader("parquet", ["*.parquet"])
class Parquet(Table):
    """Parquet, in parts of whole row groups."""

    def characters(self, name: str, size: int) -> float:
        """As zstd and dictionaries pack text."""
        del name
        return size * PARQUET_CHARACTERS

    def columns(self, path: Path) -> pa.Schema | None:
        """By the footer."""
        try:
            return pq.read_schema(regular(path))
        except pa.ArrowException:
            return None

    def parts(self, path: Path, most: int) -> int:
        """No more than row groups."""
        try:
            return min(most, int(pq.read_metadata(regular(path)).num_row_groups))
        except pa.ArrowException:
            return 1

    def rows(self, path: Path) -> int:
        """By the footer; 0 where it cannot be read."""
        try:
            return int(pq.read_metadata(regular(path)).num_rows)
        except pa.ArrowException:
            return 0

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the rows of a part's row groups; one that cannot be read costs its remaining rows."""
        try:
            with pq.ParquetFile(regular(path)) as plain:
                schema, strings = plain.schema_arrow, _string_leaves(plain)
            file = pq.ParquetFile(regular(path), read_dictionary=strings) if has_strings(schema, self.field) else None
        except pa.ArrowException as error:
            yield Dropped("unreadable", path.name, first_line(error), ends_file=True)
            return
        if file is None:
            if part.number == 0:
                yield no_text(path.name, schema, self.field)
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
                    for batch in file.iter_batches(batch_rows, row_groups=[group], columns=columns):
                        for row in read_batch(batch, self.field, kind, number, path.name, max_bytes):
                            yield row
                            number += 1
                except (pa.ArrowException, OSError) as error:
                    if getattr(error, "errno", None):
                        raise
                    rows = f"{path.name}: rows {number + 1} to {end}"
                    yield Dropped("unreadable", rows, first_line(error), ends_file=end - number > 1)
                number = end


@reader("arrow", ["*.arrow"])
class Arrow(Table):
    """Arrow, in the stream format, which data sets have, or the file format; one unit of work, however large."""

    @classmethod
    def select(cls, names: Collection[str]) -> Collection[str]:
        """The names without the files of a data set that hold no rows, and without what ``map`` has cached."""
        folders = {name.removesuffix(name.rpartition("/")[2]) for name in names if name.endswith(".arrow")}
        folders &= {name.removesuffix(STATE) for name in names if name.rpartition("/")[2] == STATE}
        beside = {f"{folder.rstrip('/').rpartition('/')[0]}/dataset_dict.json".lstrip("/") for folder in folders}
        return [
            name
            for name in names
            if name not in beside
            and not (
                name.removesuffix(own := name.rpartition("/")[2]) in folders
                and (own in NOT_DATA or fnmatch(own, "cache-*.arrow"))
            )
        ]

    def columns(self, path: Path) -> pa.Schema | None:
        """By its first message."""
        try:
            with _batches(path) as (schema, _):
                return schema
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None):
                raise
            return None

    def rows(self, path: Path) -> int:
        """By its batches' headers; of a file that is cut or damaged, those before."""
        rows = 0
        try:
            with _batches(path, pa.memory_map) as (_, batches):
                for batch in batches:
                    rows += batch.num_rows
        except (pa.ArrowException, OSError):
            pass
        return rows

    def read(self, path: Path, part: Part, max_bytes: int) -> Iterator[Record | Dropped]:
        """Yield the rows of a file; of one that is cut or damaged, those before."""
        del part
        number = 0
        try:
            with _batches(path) as (schema, batches):
                if not has_strings(schema, self.field):
                    yield no_text(path.name, schema, self.field)
                    return
                kind = documents_schema(schema, self.field).field("metadata").type
                for batch in batches:
                    begin = number
                    for row in self._read_rows(batch, kind, begin, path.name, max_bytes):
                        yield row
                        number += 1
                    number = begin + batch.num_rows
        except (pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None):
                raise
            where = f"{path.name}: rows from {number + 1} on"
            yield Dropped("unreadable", where, first_line(error), ends_file=True)

    def _read_rows(
        self, batch: pa.RecordBatch, kind: pa.DataType, first: int, name: str, max_bytes: int
    ) -> Iterator[Record | Dropped]:
        """Yield the rows of a batch, or one drop where it is damaged."""
        try:
            batch.validate(full=True)  # offsets in it would lead anywhere
        except pa.ArrowException as error:
            rows = f"{name}: rows {first + 1} to {first + batch.num_rows}"
            yield Dropped("unreadable", rows, first_line(error), ends_file=batch.num_rows > 1)
            return
        for begin in range(0, batch.num_rows, MAX_BATCH_ROWS):
            part = batch.slice(begin, MAX_BATCH_ROWS)
            yield from read_batch(part, self.field, kind, first + begin, name, max_bytes)


@contextmanager
def _batches(
    path: Path, open_source: Callable[[str], pa.NativeFile] = pa.OSFile
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema of an Arrow file, and its batches, read one by one."""
    with open_source(str(regular(path))) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source) as opened:
            yield opened.schema, map(opened.get_batch, range(opened.num_record_batches)) if is_file else opened


def no_text(name: str, schema: pa.Schema, field: str) -> Dropped:
    """A file without a column of this name that holds strings."""
    names = schema.names
    actual = f"it is of {schema.field(field).type}" if names.count(field) == 1 else f"it has {', '.join(names)}"
    others = [column for column in names if has_strings(schema, column)]
    hint = f" but {name_fields(others)}" if others else f"; {actual}"
    return Dropped("no_text", name, f"no column {field!r} of strings{hint}", ends_file=True)


def read_batch(  # noqa: PLR0917  (what a row needs)
    batch: pa.RecordBatch, field: str, kind: pa.DataType, first: int, name: str, max_bytes: int
) -> Iterator[Record | Dropped]:
    """Yield the rows of a batch, ``first`` and following of file ``name``; ``kind`` is the struct of other columns."""
    for number, (text, row) in enumerate(zip(batch[field], _carry_columns(batch, kind), strict=True), first):
        yield _read_row(text, row, number, f"{name}: row {number + 1}", max_bytes)


def _string_leaves(file: pq.ParquetFile) -> list[str]:
    """Paths of the strings and binary values of a file, nested ones too."""
    leaves = (file.schema.column(number) for number in range(len(file.schema)))
    strings = (leaf for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type != "DECIMAL")
    extensions = {field.name for field in file.schema_arrow if isinstance(field.type, pa.BaseExtensionType)}
    return [leaf.path for leaf in strings if leaf.path.partition(".")[0] not in extensions]


class Carried(NamedTuple):
    """What a row has beside its text."""

    id: str | None
    url: str | None
    metadata: Metadata


def _carry_columns(batch: pa.RecordBatch, kind: pa.StructType) -> Iterator[Carried]:
    """The other columns of every row of a batch; a row of more than ``MAX_METADATA_BYTES`` loses them."""
    if pa.types.is_null(kind):
        yield from (Carried(None, None, Metadata()) for _ in range(batch.num_rows))
        return
    sizes = np.sum([row_bytes(batch[column.name]) for column in kind], axis=0)
    rows = pa.array(np.flatnonzero(sizes <= MAX_METADATA_BYTES))
    arrays = [batch[column.name].take(rows).cast(column.type) for column in kind]
    columns = pa.StructArray.from_arrays(arrays, fields=list(kind))
    names = [column.name for column in kind]  # pyarrow 17 has no kind.names
    ids = _strings(given_ids(columns.field("id"))) if "id" in names else [None] * len(rows)
    has_urls = has_strings(pa.schema(list(kind)), "url")
    urls = _strings(columns.field("url")) if has_urls else [None] * len(rows)
    place = 0
    for size in sizes.tolist():
        if size > MAX_METADATA_BYTES:
            yield Carried(None, None, Metadata(lost="metadata_too_large"))
        else:
            yield Carried(ids[place], urls[place], Metadata(TableRow(columns, place, size)))
            place += 1


def row_bytes(column: pa.Array) -> NDArray[np.int64]:
    """Bytes of each value of a column, about; of a dictionary-encoded one as if it were not."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        indices = column.indices.fill_null(len(column.dictionary)).to_numpy()
        values: NDArray[np.int64] = np.append(row_bytes(column.dictionary), 0)[indices]
        return values
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(column.storage)
    if pa.types.is_struct(kind):
        children = [row_bytes(child) for child in column.flatten()]
        total: NDArray[np.int64] = np.sum([np.ones(len(column), np.int64), *children], axis=0)
        return total
    if pa.types.is_map(kind):
        column = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
    if pa.types.is_nested(column.type):  # a list of one of the kinds
        ends = np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy())
        totals = np.concatenate([[0], np.cumsum(row_bytes(column.flatten()))])
        lengths: NDArray[np.int64] = 1 + np.diff(totals[ends], prepend=0)
        return lengths
    sizes = np.full(len(column), FIXED_BYTES)
    if pa.types.is_fixed_size_binary(kind):
        sizes += kind.byte_width
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_string(kind):
        sizes += pc.binary_length(column).fill_null(0).to_numpy()
    return sizes


def _strings(column: pa.Array) -> list[str | None]:
    try:
        strings: list[str | None] = column.cast(pa.string()).to_pylist()
    except UnicodeDecodeError:
        values = column.cast(pa.string()).cast(pa.binary()).to_pylist()
        strings = [None if value is None else value.decode("utf-8", "replace") for value in values]
    return strings


def _read_row(text: Any, carried: Carried, number: int, where: str, max_bytes: int) -> Record | Dropped:  # noqa: ANN401
    content = _utf8_bytes(text)
    if content is None:
        return Dropped("no_text", where, "its text is null")
    if len(content) > max_bytes:
        return Dropped("too_large", where, f"longer than {max_bytes} bytes")
    try:
        return Record(number, str(content, "utf-8"), carried.url, id=carried.id, metadata=carried.metadata)
    except UnicodeDecodeError as error:
        return Dropped("not_utf8", where, str(error))


def _utf8_bytes(scalar: Any) -> memoryview | None:  # noqa: ANN401  (pyarrow has no types)
    """The bytes of a string or dictionary scalar, without a copy; None for null."""
    if isinstance(scalar, pa.DictionaryScalar):
        scalar = scalar.value
    return memoryview(scalar.as_buffer()) if scalar.is_valid else None
