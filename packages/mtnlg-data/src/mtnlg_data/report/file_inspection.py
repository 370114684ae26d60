"""Inspection of the tables that a run leaves beside documents and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from mtnlg_data.document import named_damage
from mtnlg_data.files import regular

if TYPE_CHECKING:
    from pathlib import Path


def inspect_table(path: Path, rows: int) -> dict[str, Any]:
    """Columns, number of rows and the first ``rows`` of a Parquet file. Raises ``Failure`` if it is not Parquet."""
    with named_damage(path), pq.ParquetFile(regular(path)) as file:
        first = next(file.iter_batches(max(1, rows)), None)
        shown: list[dict[str, Any]] = []
        if first is not None:
            part = first.slice(0, rows)
            values = [_values(column) for column in part.columns]
            shown = [dict(zip(part.schema.names, row, strict=True)) for row in zip(*values, strict=True)]
        columns = {field.name: str(field.type) for field in file.schema_arrow}
        total = file.metadata.num_rows
    return {"kind": "table", "path": str(path), "rows": total, "columns": columns, "samples": shown}


def _values(column: pa.Array) -> list[Any]:
    """The values of a column; as text where Python has no such type, for example for times in nanoseconds."""
    try:
        values: list[Any] = column.to_pylist()
    except ValueError:
        values = [column.slice(number, 1).to_string(indent=0).strip("[\n]") for number in range(len(column))]
    return values
