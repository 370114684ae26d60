"""Shards of documents, and steps on them in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pyarrow.parquet as pq

from mtnlg_data import Local, curate, load_recipe, run_step
from mtnlg_data.document import read_documents, shard_name, write_documents
from mtnlg_data.sources import Dropped, Record, SourceFile, read_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mtnlg_data import Document, Step
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


def read_source(
    path: Path,
    kind: str,
    largest: int = 1 << 24,
    **options: Any,  # noqa: ANN401  (keys of a reader)
) -> tuple[list[Record], list[Dropped]]:
    """The records of a file, and what is dropped of it."""
    items = list(read_records(SourceFile("s", path, path.name, kind, options), largest))
    return [item for item in items if isinstance(item, Record)], [item for item in items if isinstance(item, Dropped)]


def curate_here(recipe: Path, out: Path, *overrides: str, keep: Literal["all", "last"] = "all") -> Any:  # noqa: ANN401  (JSON)
    """Run a recipe in this process; its summary."""
    return curate(load_recipe(recipe, overrides), out, Local(1), keep=keep)


def run_here(step: Step[Any, Any], inputs: Sequence[Path | SourceFile], out: Path) -> Summary:
    return run_step(step, inputs, out, Local(1))
