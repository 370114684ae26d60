"""Data sets of Hugging Face on disk: Arrow files as ``save_to_disk`` writes them, and the list of those that count.

A folder of ``save_to_disk`` holds ``data-00000-of-00002.arrow`` and so on, ``dataset_info.json`` and ``state.json``,
which lists the data files; other .arrow files there (``cache-….arrow``) are what ``map`` left, no part of the data set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from mtnlg_data.schema import SCHEMA, documents_schema, has_strings

from .parquet import MAX_BATCH_ROWS, first_line, no_text, read_batch
from .record import Dropped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from .record import Record

STATE = "state.json"
NOT_DATA = {STATE, "dataset_info.json", "dataset_dict.json"}
"""Files of a data set that hold no rows. All may be missing in a folder that happens to have a file of such a name."""


def _open(path: Path) -> Iterator[pa.RecordBatch | pa.Schema]:
    """Yield the schema, then the batches: of the stream format, which data sets have, or of the file format."""
    with pa.OSFile(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            with pa.ipc.open_file(source) as file:
                yield file.schema
                yield from (file.get_batch(number) for number in range(file.num_record_batches))
            return
        with pa.ipc.open_stream(source) as stream:
            yield stream.schema
            yield from stream


def arrow_schema(path: Path, field: str) -> pa.Schema:
    """The schema of the documents of a file; ``SCHEMA`` where it has none."""
    try:
        schema = next(_open(path))
    except (pa.ArrowException, StopIteration):
        return SCHEMA
    return documents_schema(schema, field) if has_strings(schema, field) else SCHEMA


def read_arrow(path: Path, field: str, max_bytes: int) -> Iterator[Record | Dropped]:
    """Yield the rows of a file; of one that is cut or damaged, those before."""
    parts = _open(path)
    number = 0
    try:
        schema = next(parts)
        if not has_strings(schema, field):
            yield no_text(path.name, schema, field)
            return
        kind = documents_schema(schema, field).field("metadata").type
        for batch in parts:
            try:
                batch.validate(full=True)  # offsets in it would lead anywhere
            except pa.ArrowException as error:
                end = number + batch.num_rows
                rows = f"{path.name}: rows {number + 1} to {end}"
                yield Dropped("unreadable", rows, first_line(error), ends_file=batch.num_rows > 1)
                number = end
                continue
            for first in range(0, batch.num_rows, MAX_BATCH_ROWS):
                part = batch.slice(first, MAX_BATCH_ROWS)
                for row in read_batch(part, field, kind, first=number, name=path.name, max_bytes=max_bytes):
                    yield row
                    number += 1
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):
            raise
        where = f"{path.name}: rows from {number + 1} on"
        yield Dropped("unreadable", where, first_line(error), ends_file=True)


def data_files(names: Collection[str], read: Callable[[str], bytes]) -> list[str]:
    """These names without the files that are no data: in each folder of a data set, what its state does not list.

    ``read`` gives the content of a file by its name.
    """
    known = {*names}
    kept = dict.fromkeys(names)
    for state in [name for name in names if name.rpartition("/")[2] == STATE]:
        folder = state.removesuffix(STATE)
        listed = _listed_files(read(state))
        if listed is None:
            continue
        inside = [name for name in known if name.rpartition("/")[0] == folder.rstrip("/")]
        for name in inside:
            own = name.removeprefix(folder)
            if own in NOT_DATA or (own.endswith(".arrow") and own not in listed):
                kept.pop(name, None)
        parent = f"{folder.rstrip('/').rpartition('/')[0]}/dataset_dict.json".lstrip("/")
        kept.pop(parent, None)
    return [*kept]


def _listed_files(state: bytes) -> set[str] | None:
    """The data files that a ``state.json`` lists; None where it is a file of another kind."""
    try:
        return {str(file["filename"]) for file in json.loads(state)["_data_files"]}
    except (ValueError, KeyError, TypeError):
        return None
