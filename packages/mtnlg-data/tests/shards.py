"""Shards of documents, and steps on them in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from mtnlg_data.document import read_documents, shard_name, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.job import run_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mtnlg_data.schema import Document
    from mtnlg_data.sources import SourceFile
    from mtnlg_data.step import Step
    from mtnlg_data.summary import Summary


def write_shard(path: Path, documents: Iterable[Document]) -> Path:
    write_documents(path, documents)
    return path


def write_shards(folder: Path, documents: Sequence[Document], shards: int = 1) -> list[Path]:
    """Deal the documents of each source to ``shards`` files in turn."""
    sources = dict.fromkeys(document.source for document in documents)
    own = {source: [document for document in documents if document.source == source] for source in sources}
    return [
        write_shard(folder / shard_name(source, number), own[source][number::shards])
        for source in sources
        for number in range(shards)
    ]


def read_rows(*shards: Path) -> list[dict[str, Any]]:
    return [row for shard in shards for batch in read_documents(shard) for row in batch.to_pylist()]


def stored_rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of Parquet files, as they stand there."""
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def run_here(step: Step[Any, Any], inputs: Sequence[Path | SourceFile], out: Path) -> Summary:
    return run_step(step, inputs, out, Local(1))
