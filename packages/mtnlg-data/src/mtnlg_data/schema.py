"""The columns of a document, and how the columns of any Parquet file map to them.

A document that came from Parquet keeps all columns of its file. In memory they are the struct ``metadata``; in a shard
they have the names, types and order that the file gave them, and one more struct column, ``OWN``, holds our fields. So
a stage turns a Parquet file into a Parquet file with the same columns (docs/decisions/0092).
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from io import BytesIO
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from .console import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


def required(kind: pa.DataType, *names: str) -> list[pa.Field]:
    """Columns of this type, each with a value in every row."""
    return [pa.field(name, kind, nullable=False) for name in names]


#: ``key`` is source, file and position in the file: unique, and independent of shards and workers, so every draw and
#: tie-break uses it; a record in another file or row draws anew. ``id`` is the record's own id, or else the key; it is
#: for people, and may repeat.
SCHEMA = pa.schema(
    [
        *required(pa.string(), "id", "source"),
        *required(pa.large_string(), "text"),
        ("url", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float32()),
        ("score", pa.float32()),
        *required(pa.string(), "key"),
        ("metadata", pa.large_string()),  # all other fields: a JSON object; from Parquet a struct of columns
    ]
)
#: The column with our own fields, in a shard that has the columns of a Parquet file.
OWN = "mtnlg"
OWN_FIELDS = tuple(field for field in SCHEMA if field.name not in {"text", "metadata"})
#: Key in the schema of documents from Parquet: name, place and type of their file's column of texts, as JSON.
TEXT_COLUMN = b"mtnlg_text"


@contextmanager
def arrow_damage() -> Iterator[None]:
    """Raise ``ArrowInvalid`` for other errors of damaged files: ``OSError`` without errno, bad UTF-8, bad indices."""
    try:
        yield
    except (OSError, UnicodeDecodeError, IndexError) as error:
        if getattr(error, "errno", None):
            raise
        raise pa.ArrowInvalid(str(error)) from None


class Document(NamedTuple):
    """One row of ``SCHEMA``; a ``key`` of None stands for the id."""

    id: str
    source: str
    text: str
    url: str | None = None
    language: str | None = None
    language_score: float | None = None
    score: float | None = None
    key: str | None = None
    metadata: str | TableRow | None = None


class TableRow(NamedTuple):
    """A row of a Parquet file: row ``number`` of these columns."""

    columns: pa.StructArray
    number: int
    size: int  # approximate bytes


def document_columns(documents: Sequence[Document], schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these documents."""
    columns = dict(zip(SCHEMA.names, zip(*documents, strict=True), strict=True))
    columns["key"] = tuple(document.key or document.id for document in documents)
    kind = schema.field("metadata").type
    carried = _gather_rows(columns.pop("metadata"), kind) if has_own_columns(schema) else None
    arrays = [
        carried if name == "metadata" and carried is not None else pa.array(columns[name], schema.field(name).type)
        for name in schema.names
    ]
    return pa.record_batch(arrays, schema)


def _gather_rows(rows: Iterable[TableRow | None], kind: pa.DataType) -> pa.Array:
    """The rows as one array, with one ``take`` for each run of rows of the same table."""
    parts = []
    for _, run in groupby(rows, lambda row: row and id(row.columns)):
        first, *others = run
        numbers = pa.array([row.number for row in (first, *others) if row])
        parts.append(first.columns.take(numbers) if first else pa.nulls(1 + len(others), kind))
    return pa.concat_arrays(parts)


def documents_schema(file: pa.Schema, text: str) -> pa.Schema:
    """The schema of the documents of a Parquet file whose texts are in column ``text``.

    All other columns are the struct ``metadata``, except ``left_out``.
    """
    out = {text, OWN, *left_out(file)}
    others = [pa.field(field.name, _takeable(field.type)) for field in file if field.name not in out]
    place = sum(file.get_field_index(field.name) < file.get_field_index(text) for field in others)
    kind = file.field(text).type
    kind = "large_string" if pa.types.is_large_string(getattr(kind, "value_type", kind)) else "string"
    carried = pa.field("metadata", pa.struct(others) if others else pa.null())
    metadata = {**(file.metadata or {}), TEXT_COLUMN: json.dumps({"name": text, "place": place, "type": kind})}
    return SCHEMA.set(SCHEMA.get_field_index("metadata"), carried).with_metadata(metadata)


def left_out(file: pa.Schema) -> dict[str, str]:
    """The columns of a file that no document keeps, and why: those whose name is not unique, or ``OWN``."""
    counts = Counter(file.names)
    out = {name: "its name is not unique" for name, count in counts.items() if count > 1}
    if OWN in counts and not _has_own(file):
        out[OWN] = "the name is that of our own column"
    return out


def _has_own(file: pa.Schema) -> bool:
    """Whether the file has our column, as we wrote it."""
    return OWN in file.names and bool(file.field(OWN).type.equals(pa.struct(OWN_FIELDS)))


def _takeable(kind: pa.DataType) -> pa.DataType:
    """The type, with views replaced by plain strings and bytes: Arrow has no ``take`` for views."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_takeable(field.type)) for field in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_takeable(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_takeable(kind.value_type)))
    return plain.get(kind, kind)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of a shard that holds documents with ``schema``."""
    if not has_own_columns(schema):
        return schema
    text, kind = _text_column(schema), schema.field("metadata").type
    fields = [] if pa.types.is_null(kind) else list(kind)
    fields.insert(text["place"], pa.field(text["name"], getattr(pa, text["type"])()))
    return pa.schema([*fields, pa.field(OWN, pa.struct(OWN_FIELDS))], schema.metadata)


def repeating_columns(schema: pa.Schema) -> list[str]:
    """Columns of such a shard to dictionary-encode, by their Parquet names: not those of texts and keys."""
    if not has_own_columns(schema):
        return ["source", "language"]
    empty = BytesIO()
    pq.write_table(stored_schema(schema).empty_table(), empty)
    columns = pq.ParquetFile(empty).schema
    unlike = {_text_column(schema)["name"], *(f"{OWN}.{name}" for name in ("id", "key", "url"))}
    return [name for name in (column.path for column in columns) if name not in unlike]


def has_own_columns(documents: pa.Schema) -> bool:
    """Whether these documents have the columns of a Parquet file."""
    return TEXT_COLUMN in (documents.metadata or {})


def has_equal_columns(one: pa.Schema, other: pa.Schema) -> bool:
    """Whether documents of both schemas can share a shard; other metadata of their files may differ."""
    texts = [(schema.metadata or {}).get(TEXT_COLUMN) for schema in (one, other)]
    return bool(one.equals(other)) and texts[0] == texts[1]


def _text_column(schema: pa.Schema) -> dict[str, Any]:
    return dict(json.loads(schema.metadata[TEXT_COLUMN]))


def stored_columns(documents: pa.Table) -> pa.Table:
    """The documents with the columns of their shard."""
    if not has_own_columns(documents.schema):
        return documents
    stored = stored_schema(documents.schema)
    text = _text_column(documents.schema)
    batch = documents.combine_chunks().to_batches()[0]
    carried = batch["metadata"]
    columns = [] if pa.types.is_null(carried.type) else carried.flatten()  # a null row is null in every column
    columns.insert(text["place"], batch["text"].cast(stored.field(text["name"]).type))
    struct = pa.StructArray.from_arrays([batch[field.name] for field in OWN_FIELDS], fields=list(OWN_FIELDS))
    return pa.Table.from_arrays([*columns, struct], schema=stored)


def is_shard(file: pa.Schema) -> bool:
    """Whether a file of this schema was written as a shard."""
    return bool(file.equals(SCHEMA)) or (_has_own(file) and has_own_columns(file))


def holds_documents(file: pa.Schema) -> bool:
    """Whether a Parquet file of this schema can be read as documents."""
    return is_shard(file) or has_strings(file, "text")


class FileColumns:
    """Maps the columns of one Parquet file to columns of documents; ``schema`` is the schema of the documents.

    A file that is not a shard has its texts in the column ``text``. Missing columns are filled: the key is source, file
    name and row; the id is the column ``id``, or the key where that is null; the rest is null.
    """

    def __init__(self, file: pa.Schema, path: Path, source: str) -> None:
        """Raise ``Failure`` where the file has no texts."""
        self._is_plain = file.equals(SCHEMA)
        self._has_own = is_shard(file) and not self._is_plain
        self._source = source
        self._prefix = f"{source}/{path.name}/"
        self._file = file
        self.text = _text_column(file)["name"] if self._has_own else "text"
        if not has_strings(file, self.text):
            raise Failure(f"{path}: no column {self.text!r} of strings; it has {', '.join(file.names)}")
        self.schema = file if self._is_plain else documents_schema(file, self.text)

    def stored(self, names: Sequence[str]) -> list[str]:
        """The file's columns to read for these columns of documents."""
        if self._is_plain:
            return list(names)
        columns = dict.fromkeys([self.text] if {"text"} & set(names) else [])
        for name in names:
            if name == "metadata":
                kind = self.schema.field(name).type
                columns.update(dict.fromkeys([] if pa.types.is_null(kind) else (field.name for field in kind)))
            elif self._has_own and name != "text":
                columns[f"{OWN}.{name}"] = None
            elif name in {"id", "url"} and name in self._file.names:
                columns[name] = None
        return list(columns) or [self.text]  # for the number of rows

    def documents(self, batch: pa.RecordBatch, first_row: int, names: Sequence[str]) -> pa.RecordBatch:
        """These columns of documents, from a batch of their ``stored`` columns that begins at row ``first_row``."""
        if self._is_plain:
            return batch
        schema = pa.schema([self.schema.field(name) for name in names], self.schema.metadata)
        return pa.record_batch([self._column(batch, name, first_row) for name in names], schema)

    def _column(self, batch: pa.RecordBatch, name: str, first_row: int) -> pa.Array:
        kind = self.schema.field(name).type
        if name == "text":
            texts = batch[self.text]
            return texts.cast(pa.large_string()) if self._has_own else _present_texts(texts)
        if pa.types.is_null(kind):
            return pa.nulls(batch.num_rows)
        if name == "metadata":
            columns = [batch[column.name].cast(column.type) for column in kind]
            return pa.StructArray.from_arrays(columns, fields=list(kind))
        return batch[OWN].field(name) if self._has_own else self._filled(batch, name, first_row)

    def _filled(self, batch: pa.RecordBatch, name: str, first_row: int) -> pa.Array:
        """A column of documents, from the file or filled where the file lacks it."""
        keys = [f"{self._prefix}{row}" for row in range(first_row, first_row + batch.num_rows)]
        match name:
            case "source":
                return pa.array([self._source] * batch.num_rows, pa.string())
            case "key":
                return pa.array(keys, pa.string())
            case "id":
                ids = given_ids(batch[name]) if name in batch.schema.names else pa.nulls(len(keys), pa.string())
                return pc.coalesce(ids, pa.array(keys, pa.string()))
            case "url" if name in batch.schema.names and has_strings(self._file, name):
                return batch[name].cast(pa.string())
        return pa.nulls(batch.num_rows, self.schema.field(name).type)


def _present_texts(column: pa.Array) -> pa.Array:
    """The texts, with nulls as empty strings. Raises ``ArrowInvalid`` if a text is not UTF-8."""
    column.validate(full=True)
    return pc.fill_null(column.cast(pa.large_string()), "")


def given_ids(column: pa.Array) -> pa.Array:
    """A column ``id`` of strings or numbers, as strings; null for empty strings, and for a column of another type."""
    kind = getattr(column.type, "value_type", column.type)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_string(kind)):
        return pa.nulls(len(column), pa.string())
    ids = column.cast(pa.string())
    return pc.if_else(pc.equal(ids, ""), pa.scalar(None, pa.string()), ids)


def has_strings(schema: pa.Schema, name: str) -> bool:
    """Whether the schema has one column of this name, and it holds strings, dictionary-encoded or not."""
    if len(schema.get_all_field_indices(name)) != 1:
        return False
    kind = schema.field(name).type
    return is_string(kind.value_type if pa.types.is_dictionary(kind) else kind)


def is_string(kind: pa.DataType) -> bool:
    """Whether this is a string type, not dictionary-encoded."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
