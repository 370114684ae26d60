"""Inspection of the files that a run leaves beside documents and tokens: tables, arrays, JSON and other text, state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.console import Failure
from mtnlg_data.document import named_damage

if TYPE_CHECKING:
    from pathlib import Path

BYTES_READ = 1 << 20  # of a text, to show its beginning


def read_schema(path: Path) -> pa.Schema:
    """The columns of a Parquet file. Raises ``Failure`` where it is none."""
    with named_damage(path):
        return pq.read_schema(path)


def inspect_table(path: Path, rows: int) -> dict[str, Any]:
    """Columns, number of rows and the first ``rows`` of a Parquet file. Raises ``Failure`` where it is none."""
    with named_damage(path), pq.ParquetFile(path) as file:
        first = next(file.iter_batches(max(1, rows)), None)
        return _table(path, file.schema_arrow, file.metadata.num_rows, first, rows)


def _table(path: Path, schema: pa.Schema, total: int, first: pa.RecordBatch | None, rows: int) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    if first is not None:
        part = first.slice(0, rows)
        values = [_values(column) for column in part.columns]
        shown = [dict(zip(part.schema.names, row, strict=True)) for row in zip(*values, strict=True)]
    columns = {field.name: str(field.type) for field in schema}
    return {"kind": "table", "path": str(path), "rows": total, "columns": columns, "samples": shown}


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; as text where Python has none, such as for times of nanoseconds."""
    try:
        values: list[Any] = column.to_pylist()
    except ValueError:
        values = [column.slice(number, 1).to_string(indent=0).strip("[\n]") for number in range(len(column))]
    return values


def inspect_file(path: Path, rows: int, characters: int) -> dict[str, Any]:
    """What any other file holds: the first ``rows`` of a table, the shape of an array, the first ``characters``."""
    try:
        if path.suffix == ".arrow" and path.stat().st_size:  # of a step that found nothing the file is empty
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                batches = [file.get_batch(number) for number in range(file.num_record_batches)]
                first = batches[0] if batches else None
                return _table(path, file.schema, sum(batch.num_rows for batch in batches), first, rows)
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r")
            return {"kind": "array", "path": str(path), "shape": list(array.shape), "type": array.dtype.name}
    except (pa.ArrowInvalid, ValueError) as error:
        raise Failure(f"{path}: damaged: {error}") from None
    size = path.stat().st_size
    with path.open("rb") as file:
        beginning = file.read(BYTES_READ)
    try:
        text = beginning.decode() if len(beginning) == size else beginning.decode(errors="ignore")
        if path.suffix == ".json" and len(beginning) == size:
            return {"kind": "json", "path": str(path), "bytes": size, "content": json.loads(text)}
    except (ValueError, RecursionError):
        text = "\0"
    if "\0" in text:
        return {"kind": "binary", "path": str(path), "bytes": size}
    return {"kind": "text", "path": str(path), "bytes": size, "text": text[:characters]}


def headline(inspection: dict[str, Any]) -> str:
    """One line for a person on what ``inspect_table`` or ``inspect_file`` has found."""
    match inspection["kind"]:
        case "table":
            return f"{inspection['rows']:,} rows of {', '.join(inspection['columns'])}"
        case "array":
            return f"an array of {' x '.join(f'{n:,}' for n in inspection['shape'])} {inspection['type']}"
        case "binary":
            return f"{inspection['bytes']:,} bytes that a stage keeps for its reruns"
        case kind:
            return f"{inspection['bytes']:,} bytes of {kind}"
