"""Texts as one array of UTF-8 bytes or code points, and their division into batches that fit the caches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .characters import code_points

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mtnlg_data.array_types import Int64s, UInt8s, UInt32s

SEPARATOR = "\n"
BATCH_CHARACTERS = 1_000_000  # of texts, so that the arrays about them stay in the processor's caches
BYTES_AT_A_TIME = 1 << 20  # the same, of texts in UTF-8


class Texts(NamedTuple):
    """UTF-8 bytes of several texts; text t is ``data[bounds[t]:bounds[t + 1]]``."""

    data: UInt8s
    bounds: Int64s


def texts_of(column: pa.LargeStringArray) -> Texts:
    """The texts of an Arrow column without nulls, not copied."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(column) + 1, 8 * column.offset) if offsets else np.zeros(1, np.int64)
    return Texts(np.frombuffer(data or b"", np.uint8), bounds)


def column_of(texts: Texts) -> pa.LargeStringArray:
    """An Arrow column of these texts; ``bounds`` must begin at 0."""
    return pa.LargeStringArray.from_buffers(len(texts.bounds) - 1, pa.py_buffer(texts.bounds), pa.py_buffer(texts.data))


def binary_column(values: NDArray[np.generic], bounds: Int64s) -> pa.LargeBinaryArray:
    """A column of lists of numbers, stored as bytes because Arrow reorders lists number by number."""
    buffers = [None, pa.py_buffer(values.itemsize * bounds), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, buffers)


def small_batches(batch: pa.RecordBatch, size: int = BYTES_AT_A_TIME) -> Iterator[pa.RecordBatch]:
    """Consecutive parts of a batch, each of about ``size`` bytes of text."""
    ends = np.cumsum(pc.binary_length(batch["text"]).to_numpy())
    first = 0
    while first < batch.num_rows:
        full = (ends[first - 1] if first else 0) + size
        last = max(first + 1, int(np.searchsorted(ends, full, side="right")))
        yield batch.slice(first, last - first)
        first = last


def text_lengths(column: pa.Array) -> Int64s:
    """Characters of each text of a column without nulls."""
    return np.asarray(pc.utf8_length(column).to_numpy(zero_copy_only=False), np.int64)


def text_batches(texts: list[str]) -> Iterator[list[str]]:
    """Split texts into consecutive batches of about ``BATCH_CHARACTERS`` characters."""
    begin = characters = 0
    for end, text in enumerate(texts, 1):
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield texts[begin:end]
            begin, characters = end, 0
    if begin < len(texts):
        yield texts[begin:]


def join_texts(texts: Sequence[str]) -> tuple[UInt32s, Int64s]:
    """Code points of all texts with ``SEPARATOR`` between them, and bounds: text t begins at ``bounds[t]``."""
    lengths = np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts))
    return code_points(SEPARATOR.join(texts)), np.concatenate([[0], np.cumsum(lengths)])
