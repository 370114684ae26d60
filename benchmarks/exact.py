# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "datatrove==0.10.1", "duckdb==2.0.1", "polars==2.1.0", "regex", "spacy", "xxhash<4"]
# ///
"""Exact deduplication from Parquet to Parquet: mtnlg_data against datatrove's, polars and DuckDB, one core.

    python benchmarks/exact.py ARTICLES [--documents 5000] [--kinds documents lines] [--rounds 5] [--out FILE]

ARTICLES holds one article a line, after its id (articles_1000.train of chrisjmccormick/MinHash). Documents consist of
their sentences, a line each; one in ten is there twice.

    documents   equal texts against datatrove's exact_dedup of the text, polars' unique, DuckDB's distinct on, and
                DuckDB by MD5 with the texts read twice, as here; polars and distinct on hold all texts in memory; all
                write zstd at level 3, polars in pages of its default size, which take half as many bytes again
    lines       equal lines against sentence_dedup of single lines, in lower case; both leave short documents alone

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
from datatrove.pipeline.dedup import SentenceDedupFilter, SentenceDedupSignature, SentenceFindDedups
from datatrove.pipeline.dedup.exact_dedup import (
    ExactDedupConfig,
    ExactDedupFilter,
    ExactDedupSignature,
    ExactFindDedups,
)
from datatrove.pipeline.dedup.sentence_dedup import SentDedupConfig
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.text import TextNormConfig

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

KINDS = ("documents", "lines")
DOCUMENTS = ExactDedupConfig(content_getter=lambda document: document.text, only_dedup_in_index=False)
LINES = SentDedupConfig(
    n_sentences=1,
    split_sentences=False,
    only_dedup_in_index=False,
    min_doc_words=0,
    min_num_sentences=0,
    norm_config=TextNormConfig(
        remove_punctuation=False, norm_unicode_diacritics=False, norm_numbers=False, norm_whitespace=False
    ),
)


def corpus(articles: list[str], count: int) -> list[Document]:
    """Return documents of one sentence a line, the copies word by word those of their originals."""
    made, _ = make_corpus(articles, count)
    texts = {document.id: document.text.replace(". ", ".\n") for document in made}
    return [document._replace(text=texts[document.id.removesuffix("-copy")]) for document in made]


def ours(kind: str, shard: Path, out: Path) -> Path:
    """Deduplicate by mtnlg_data; return the folder of what is left."""
    run_step(Exact(kinds=[kind], shortest_line=1, shortest=1), [shard], out, Local(1))
    return out


def theirs(kind: str, shard: Path, out: Path) -> Path:
    """Deduplicate by datatrove; return the folder of what is left."""
    signatures, repeats = str(out / "signatures"), str(out / "repeats")
    if kind == "documents":
        steps: list[Any] = [
            ExactDedupSignature(signatures, DOCUMENTS),
            ExactFindDedups(signatures, repeats, DOCUMENTS),
            ExactDedupFilter(repeats, DOCUMENTS),
        ]
    else:
        steps = [
            SentenceDedupSignature(signatures, config=LINES),
            SentenceFindDedups(signatures, repeats, config=LINES),
            SentenceDedupFilter(repeats, config=LINES),
        ]

    def read() -> ParquetReader:
        return ParquetReader(str(shard.parent), glob_pattern=shard.name)

    writer = ParquetWriter(str(out / "kept"), compression="zstd")
    for number, pipeline in enumerate(([read(), steps[0]], [steps[1]], [read(), steps[2], writer])):
        LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=str(out / f"log-{number}")).run()
    return out / "kept"


def polars(kind: str, shard: Path, out: Path) -> Path:
    """Deduplicate by polars; return the folder of what is left."""
    del kind
    out.mkdir(parents=True)
    unique = pl.read_parquet(shard).unique("text", keep="first", maintain_order=True)
    unique.write_parquet(out / "kept.parquet", compression="zstd", compression_level=3)
    return out


DISTINCT = "SELECT DISTINCT ON (text) * FROM '{shard}'"
BY_HASH = """SELECT texts.* EXCLUDE file_row_number FROM read_parquet('{shard}', file_row_number = true) AS texts JOIN (
    SELECT min(file_row_number) AS first FROM read_parquet('{shard}', file_row_number = true) GROUP BY md5_number(text)
) ON file_row_number = first"""


def duck(kind: str, shard: Path, out: Path, *, query: str) -> Path:
    """Deduplicate by a query of DuckDB; return the folder of what is left."""
    del kind
    out.mkdir(parents=True)
    options = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 3"
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"COPY ({query.format(shard=shard)}) TO '{out / 'kept.parquet'}' ({options})")
    return out


SIDES: dict[str, Callable[[str, Path, Path], Path]] = {"mtnlg_data": ours, "datatrove": theirs}
DOCUMENT_SIDES: dict[str, Callable[[str, Path, Path], Path]] = {
    "polars": polars,
    "duckdb_distinct": partial(duck, query=DISTINCT),
    "duckdb_by_hash": partial(duck, query=BY_HASH),
}


def compare(kind: str, shards: tuple[Path, Path], out: Path, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return CPU seconds by side and round, and what each side leaves; the first shard warms up."""
    left: dict[str, Any] = {}

    def deduplicate(name: str, shard: Path) -> None:
        left[name] = sides[name](kind, shard, out)

    def count(name: str, shard: Path) -> None:
        deduplicate(name, shard)
        paths = left[name].glob("*.parquet")
        texts = [text for path in paths for text in pq.read_table(path)["text"].to_pylist()]
        lines = sorted(line.strip().lower() for text in texts for line in text.split("\n"))
        left[name] = {"documents": len(texts), "characters": sum(map(len, texts)), "lines": "\n".join(lines)}

    sides = SIDES | (DOCUMENT_SIDES if kind == "documents" else {})
    time_rounds({name: partial(deduplicate, name, shards[0]) for name in sides}, 1, out=out)
    seconds = time_rounds({name: partial(deduplicate, name, shards[1]) for name in sides}, rounds, out=out)
    time_rounds({name: partial(count, name, shards[1]) for name in sides}, 1, out=out)
    left["the same lines"] = len({figures.pop("lines") for figures in left.values()}) == 1
    return seconds, left


def measure(articles: Path, documents: int = 5000, kinds: tuple[str, ...] = KINDS, rounds: int = 5) -> dict[str, Any]:
    """Deduplicate so many documents, by each kind."""
    made = corpus(read_articles(articles), documents)
    megabytes = megabytes_of(document.text for document in made)
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        shards = (Path(scratch) / "small" / "web-00000.parquet", Path(scratch) / "in" / "web-00000.parquet")
        for path, part in zip(shards, (made[:300], made), strict=True):
            write_documents(path, part)
        for kind in kinds:
            seconds, left = compare(kind, shards, Path(scratch) / "out", rounds)
            found[kind] = {"megabytes_per_second": rates(megabytes, seconds), "left": left}
            found[kind]["ratios"] = {
                name: spread(ratios(each, seconds["mtnlg_data"]))
                for name, each in seconds.items()
                if name != "mtnlg_data"
            }
    return {"kinds": found, "documents": len(made), "megabytes": round(megabytes, 3), "rounds": rounds}


if __name__ == "__main__":
    run(measure, __doc__)
