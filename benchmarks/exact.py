# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "datatrove==0.10.1", "duckdb==2.0.1", "polars==2.1.0", "regex", "spacy", "xxhash<4"]
# ///
"""Exact deduplication from Parquet to Parquet: mtnlg_data against datatrove's, polars and DuckDB, one core.

    python benchmarks/exact.py ARTICLES [--documents 5000] [--rounds 5] [--out FILE]

ARTICLES holds one article a line, after its id (articles_1000.train of chrisjmccormick/MinHash). Documents consist of
their sentences, a line each; one in ten is there twice. Equal texts go: by datatrove's exact_dedup of the text, polars'
unique, DuckDB's distinct on, and DuckDB by MD5 with the texts read twice, as here. polars and distinct on hold all
texts in memory; all write zstd at level 3, polars in pages of its default size, which take half as many bytes again.

mtnlg_data takes texts that differ in white space as equal. It also counts, records what it drops, and syncs and
checksums its files. Ratios are of CPU time.
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ |= {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}

import duckdb
import polars as pl
import pyarrow.parquet as pq
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup.exact_dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
)
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter

from deduplication import make_corpus
from mtnlg_data.engine import Local
from mtnlg_data.job import run_step
from mtnlg_data.steps.exact import Exact
from record import articles as read_articles
from record import megabytes_of, rates, ratios, run, spread, time_on_shard

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_data.schema import Document

CONFIG = ExactDedupConfig(content_getter=lambda document: document.text, only_dedup_in_index=False)


def corpus(articles: list[str], count: int) -> list[Document]:
    """Return documents of one sentence a line, the copies word by word those of their originals."""
    made, _ = make_corpus(articles, count)
    texts = {document.id: document.text.replace(". ", ".\n") for document in made}
    return [document._replace(text=texts[document.id.removesuffix("-copy")]) for document in made]


def documents_of(folder: Path) -> int:
    """Return the number of documents in a folder's Parquet files."""
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def ours(shard: Path, out: Path) -> int:
    """Deduplicate by mtnlg_data; return the number of documents left."""
    run_step(Exact(kinds=["documents"], shortest=1), [shard], out, Local(1))
    return documents_of(out)


def theirs(shard: Path, out: Path) -> int:
    """Deduplicate by datatrove; return the number of documents left."""
    signatures, repeats = str(out / "signatures"), str(out / "repeats")

    def read() -> ParquetReader:
        return ParquetReader(str(shard.parent), glob_pattern=shard.name)

    writer = ParquetWriter(str(out / "kept"), compression="zstd")
    pipelines: tuple[list[Any], ...] = (
        [read(), ExactDedupSignature(signatures, CONFIG)],
        [ExactFindDedups(signatures, repeats, CONFIG)],
        [read(), ExactDedupFilter(repeats, CONFIG), writer],
    )
    for number, pipeline in enumerate(pipelines):
        LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=str(out / f"log-{number}")).run()
    return documents_of(out / "kept")


def polars(shard: Path, out: Path) -> int:
    """Deduplicate by polars; return the number of documents left."""
    out.mkdir(parents=True)
    unique = pl.read_parquet(shard).unique("text", keep="first", maintain_order=True)
    unique.write_parquet(out / "kept.parquet", compression="zstd", compression_level=3)
    return documents_of(out)


DISTINCT = "SELECT DISTINCT ON (text) * FROM '{shard}'"
BY_HASH = """SELECT texts.* EXCLUDE file_row_number FROM read_parquet('{shard}', file_row_number = true) AS texts JOIN (
    SELECT min(file_row_number) AS first FROM read_parquet('{shard}', file_row_number = true) GROUP BY md5_number(text)
) ON file_row_number = first"""


def duck(shard: Path, out: Path, *, query: str) -> int:
    """Deduplicate by a query of DuckDB; return the number of documents left."""
    out.mkdir(parents=True)
    options = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3"
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"COPY ({query.format(shard=shard)}) TO '{out / 'kept.parquet'}' ({options})")
    return documents_of(out)


SIDES: dict[str, Callable[[Path, Path], int]] = {
    "mtnlg_data": ours,
    "datatrove": theirs,
    "polars": polars,
    "duckdb_distinct": partial(duck, query=DISTINCT),
    "duckdb_by_hash": partial(duck, query=BY_HASH),
}


def measure(articles: Path, documents: int = 5000, rounds: int = 5) -> dict[str, Any]:
    """Deduplicate so many documents."""
    made = corpus(read_articles(articles), documents)
    megabytes = megabytes_of(document.text for document in made)
    with tempfile.TemporaryDirectory() as scratch:
        seconds, left = time_on_shard(SIDES, made, rounds, Path(scratch))
    return {
        "ratios": {name: spread(ratios(each, seconds["mtnlg_data"])) for name, each in seconds.items()},
        "megabytes_per_second": rates(megabytes, seconds),
        "documents_left": left,
        "documents": len(made),
        "megabytes": round(megabytes, 3),
        "seconds_of_one_core": seconds,
    }


if __name__ == "__main__":
    run(measure, __doc__)
