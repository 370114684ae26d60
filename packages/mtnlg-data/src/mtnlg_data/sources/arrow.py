"""Data sets of Hugging Face on disk: Arrow files as ``save_to_disk`` writes them, and the list of those that count.

A folder of ``save_to_disk`` holds ``data-00000-of-00002.arrow`` and so on, ``dataset_info.json`` and ``state.json``,
which lists the data files; other .arrow files there (``cache-….arrow``) are what ``map`` left, no part of the data set.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial
from itertools import repeat, takewhile
from typing import TYPE_CHECKING

import pyarrow as pa

from mtnlg_data.schema import documents_schema, has_strings

from .parquet import MAX_BATCH_ROWS, first_line, no_text, read_batch
from .parts import WHOLE, Part
from .record import Dropped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from .record import Record

STATE = "state.json"
NOT_DATA = {STATE, "dataset_info.json", "dataset_dict.json"}
"""Files of a data set that hold no rows. All may be missing in a folder that happens to have a file of such a name."""


#: Whether a batch is one of the part, and what reads it; raises ``StopIteration`` where there is no other.
Batch = tuple[bool, "Callable[[], pa.RecordBatch]"]


@contextmanager
def _opened(path: Path, part: Part, *, mapped: bool = False) -> Iterator[tuple[pa.Schema, Iterator[Batch]]]:
    """The schema, and the batches up to the part's end: of a part, or if ``mapped``, they are mapped, not read.

    Of the stream format, which data sets have, or of the file format.
    """
    with pa.memory_map(str(path)) if mapped or part.parts > 1 else pa.OSFile(str(path)) as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            with pa.ipc.open_file(source) as file:
                begin, end = part.of(file.num_record_batches)
                yield file.schema, ((number >= begin, partial(file.get_batch, number)) for number in range(end))
            return
        with pa.ipc.open_stream(source) as stream:
            begin, end = part.of(source.size())
            places = takewhile(lambda place: place < end, (source.tell() for _ in repeat(None)))
            yield stream.schema, ((place >= begin, stream.read_next_batch) for place in places)


def arrow_schema(path: Path) -> pa.Schema | None:
    """The schema of a file; None where it has none."""
    try:
        with _opened(path, WHOLE) as (schema, _):
            return schema
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):
            raise
        return None


def arrow_rows(path: Path) -> int:
    """The rows of a file, by its batches' headers; of one that is cut or damaged, those before."""
    rows = 0
    try:
        with _opened(path, WHOLE, mapped=True) as (_, batches):
            for _, read_next in batches:
                rows += read_next().num_rows
    except (StopIteration, pa.ArrowException, OSError):
        pass
    return rows


def read_arrow(path: Path, field: str, max_bytes: int, part: Part = WHOLE) -> Iterator[Record | Dropped]:
    """Yield the rows of a file, or of a part's batches; of one that is cut or damaged, those before."""
    number, is_own = 0, part.number == 0
    try:
        with _opened(path, part) as (schema, batches):
            if not has_strings(schema, field):
                if is_own:
                    yield no_text(path.name, schema, field)
                return
            kind = documents_schema(schema, field).field("metadata").type
            for is_own, read_next in batches:
                try:
                    batch = read_next()
                except StopIteration:
                    return
                if not is_own:
                    number += batch.num_rows
                    continue
                begin = number
                for row in _read_rows(batch, field, kind, number, path.name, max_bytes):
                    yield row
                    number += 1
                number = begin + batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):
            raise
        if is_own:  # else it is reported by who reads that part
            where = f"{path.name}: rows from {number + 1} on"
            yield Dropped("unreadable", where, first_line(error), ends_file=True)


def _read_rows(  # noqa: PLR0917  (those of ``read_batch``)
    batch: pa.RecordBatch, field: str, kind: pa.DataType, first: int, name: str, max_bytes: int
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
        yield from read_batch(part, field, kind, first=first + begin, name=name, max_bytes=max_bytes)


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
