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
from mtnlg_data.document import write_documents
from mtnlg_data.engine import Local
from mtnlg_data.job import run_step
from mtnlg_data.steps.exact import Exact
from record import articles as read_articles
from record import megabytes_of, rates, ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_data.schema import Document

CONFIG = ExactDedupConfig(content_getter=lambda document: document.text, only_dedup_in_index=False)


def corpus(articles: list[str], count: int) -> list[Document]:
    """Return documents of one sentence a line, the copies word by word those of their originals."""
    made, _ = make_corpus(articles, count)
    texts = {document.id: document.text.replace(". ", ".\n") for document in made}
    return [document._replace(text=texts[document.id.removesuffix("-copy")]) for document in made]


def ours(shard: Path, out: Path) -> Path:
    """Deduplicate by mtnlg_data; return the folder of what is left."""
    run_step(Exact(kinds=["documents"], shortest=1), [shard], out, Local(1))
    return out


def theirs(shard: Path, out: Path) -> Path:
    """Deduplicate by datatrove; return the folder of what is left."""
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
    return out / "kept"


def polars(shard: Path, out: Path) -> Path:
    """Deduplicate by polars; return the folder of what is left."""
    out.mkdir(parents=True)
    unique = pl.read_parquet(shard).unique("text", keep="first", maintain_order=True)
    unique.write_parquet(out / "kept.parquet", compression="zstd", compression_level=3)
    return out


DISTINCT = "SELECT DISTINCT ON (text) * FROM '{shard}'"
BY_HASH = """SELECT texts.* EXCLUDE file_row_number FROM read_parquet('{shard}', file_row_number = true) AS texts JOIN (
    SELECT min(file_row_number) AS first FROM read_parquet('{shard}', file_row_number = true) GROUP BY md5_number(text)
) ON file_row_number = first"""


def duck(shard: Path, out: Path, *, query: str) -> Path:
    """Deduplicate by a query of DuckDB; return the folder of what is left."""
    out.mkdir(parents=True)
    options = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3"
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"COPY ({query.format(shard=shard)}) TO '{out / 'kept.parquet'}' ({options})")
    return out


SIDES: dict[str, Callable[[Path, Path], Path]] = {
    "mtnlg_data": ours,
    "datatrove": theirs,
    "polars": polars,
    "duckdb_distinct": partial(duck, query=DISTINCT),
    "duckdb_by_hash": partial(duck, query=BY_HASH),
}


def compare(shards: tuple[Path, Path], out: Path, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return CPU seconds by side and round, and what each side leaves; the first shard warms up."""
    left: dict[str, Any] = {}

    def count(name: str) -> None:
        texts = [text for path in SIDES[name](shards[1], out).glob("*.parquet") for text in read_texts(path)]
        left[name] = {"documents": len(texts), "characters": sum(map(len, texts)), "texts": sorted(texts)}

    time_rounds({name: partial(side, shards[0], out) for name, side in SIDES.items()}, 1, out=out)
    seconds = time_rounds({name: partial(side, shards[1], out) for name, side in SIDES.items()}, rounds, out=out)
    time_rounds({name: partial(count, name) for name in SIDES}, 1, out=out)
    kept = [figures.pop("texts") for figures in left.values()]
    return seconds, {**left, "the same texts": all(texts == kept[0] for texts in kept)}


def read_texts(path: Path) -> list[str]:
    """Return the texts of a Parquet file."""
    texts: list[str] = pq.read_table(path)["text"].to_pylist()
    return texts


def measure(articles: Path, documents: int = 5000, rounds: int = 5) -> dict[str, Any]:
    """Deduplicate so many documents."""
    made = corpus(read_articles(articles), documents)
    megabytes = megabytes_of(document.text for document in made)
    with tempfile.TemporaryDirectory() as scratch:
        shards = (Path(scratch) / "small" / "web-00000.parquet", Path(scratch) / "in" / "web-00000.parquet")
        for path, part in zip(shards, (made[:300], made), strict=True):
            write_documents(path, part)
        seconds, left = compare(shards, Path(scratch) / "out", rounds)
    return {
        "ratios": {name: spread(ratios(each, seconds["mtnlg_data"])) for name, each in seconds.items()},
        "megabytes_per_second": rates(megabytes, seconds),
        "left": left,
        "documents": len(made),
        "megabytes": round(megabytes, 3),
        "rounds": rounds,
    }


if __name__ == "__main__":
    run(measure, __doc__)
