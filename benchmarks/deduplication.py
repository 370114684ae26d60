# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "datatrove==0.10.1", "regex", "rensa==0.5.0", "spacy", "xxhash<4"]
# ///
"""Fuzzy deduplication of a Parquet file: mtnlg_data against datatrove's four stages and against rensa, one core.

    python benchmarks/deduplication.py ARTICLES [--documents 5000] [--rounds 5] [--sides NAME ...] [--out FILE]

ARTICLES holds one article a line, after its id (articles_1000.train of chrisjmccormick/MinHash). Documents consist of
their sentences; one in ten has a copy with some words changed. All sides take word 5-grams and one thread:

    mtnlg_data           Parquet to Parquet, 20 bands of 13 rows; verifies every pair at Jaccard 0.8, writes a ledger,
                         and syncs and checksums each file
    mtnlg_data_in_memory reads Parquet and writes nothing: ``find_duplicates``, the same bands, pairs verified
    datatrove            Parquet to Parquet, the same bands, spaCy's words, its default; verifies no pair
    datatrove_str_split  the same with the words of ``str.split``, the cheapest
    rensa                reads Parquet and writes nothing; words as ours, by a regular expression; its LSH at 16 bands
                         of 8 rows, whose recall is nearest to ours, and its estimate of the similarity for 0.8
    rensa_str_split      the same with the words of ``str.split``

Ratios are of CPU time: ``ratios`` to mtnlg_data and ``ratios_in_memory`` to mtnlg_data_in_memory in one process, after
a first run that imports and compiles, and ``ratios_with_start`` of a process for each run, imports included.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}

import pyarrow.parquet as pq

from record import articles as read_articles
from record import cpu_seconds, megabytes_of, rates, ratios, run, spread, time_on_shard, time_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from datatrove.pipeline.readers import ParquetReader

    from mtnlg_data.schema import Document

SENTENCES = 12


def make_corpus(articles: list[str], count: int) -> tuple[list[Document], dict[str, float]]:
    """Return shuffled documents, and by original the Jaccard similarity of its changed copy."""
    from known_crawl import jaccard, shingles  # noqa: PLC0415  (no peer's process is to import it)
    from mtnlg_data.schema import Document  # noqa: PLC0415

    draw = random.Random(1)
    sentences = [sentence + "." for text in articles for sentence in text.split(". ")]
    words = sorted({word for text in articles for word in text.split()})
    documents, similar = [], {}
    for number in range(count):
        text = " ".join(draw.choice(sentences) for _ in range(SENTENCES))
        documents.append(Document(f"{number}", "web", text))
        if number % 10 == 0:
            changed = text.split()
            for _ in range(max(1, round(len(changed) * draw.uniform(0, 0.04)))):
                changed[draw.randrange(len(changed))] = draw.choice(words)
            documents.append(Document(f"{number}-copy", "web", " ".join(changed)))
            similar[f"{number}"] = jaccard(shingles(text), shingles(documents[-1].text))
    draw.shuffle(documents)
    return documents, similar


def ours(shard: Path, out: Path) -> set[str]:
    """Deduplicate by mtnlg_data; return the ids of the survivors."""
    from mtnlg_data import Deduplicate, Local, run_step  # noqa: PLC0415

    run_step(Deduplicate(), [shard], out, Local(1))
    return set(pq.read_table(out / shard.name, columns=["id"])["id"].to_pylist())


def in_memory(shard: Path, _out: Path) -> set[str]:
    """Deduplicate by mtnlg_data in memory; return the ids of the survivors."""
    from mtnlg_data import find_duplicates  # noqa: PLC0415  (no peer's process is to import it)

    table = pq.read_table(shard, columns=["id", "text"], use_threads=False)
    kept = find_duplicates(table["text"]).tolist()
    return {name for number, name in enumerate(table["id"].to_pylist()) if kept[number] == number}


def theirs(shard: Path, out: Path, *, split: bool = False) -> set[str]:
    """Deduplicate by datatrove, words by spaCy or by ``str.split``; return the ids of the survivors."""
    from datatrove.executor import LocalPipelineExecutor  # noqa: PLC0415  (no other side is to import it)
    from datatrove.pipeline.dedup import MinhashDedupFilter  # noqa: PLC0415
    from datatrove.pipeline.readers import ParquetReader  # noqa: PLC0415
    from datatrove.pipeline.writers import ParquetWriter  # noqa: PLC0415

    def read() -> ParquetReader:
        return ParquetReader(str(shard.parent), glob_pattern=shard.name)

    find_theirs(read(), out, split=split)
    kept = [MinhashDedupFilter(str(out / "clusters")), ParquetWriter(str(out / "kept"), compression="zstd")]
    LocalPipelineExecutor([read(), *kept], logging_dir=str(out / "log-kept")).run()
    tables = (pq.read_table(path, columns=["id"]) for path in (out / "kept").glob("*.parquet"))
    return {name for table in tables for name in table["id"].to_pylist()}


def find_theirs(reader: ParquetReader, out: Path, *, split: bool) -> None:
    """Run datatrove's stages over these documents up to ``out/clusters``, by which ``MinhashDedupFilter`` filters."""
    from datatrove.executor import LocalPipelineExecutor  # noqa: PLC0415
    from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupSignature  # noqa: PLC0415
    from datatrove.pipeline.dedup.minhash import MinhashConfig  # noqa: PLC0415
    from datatrove.utils.word_tokenizers import WordTokenizer  # noqa: PLC0415

    config = MinhashConfig(n_grams=5, num_buckets=20, hashes_per_bucket=13)
    signatures, buckets, clusters = (str(out / name) for name in ("signatures", "buckets", "clusters"))
    signing = MinhashDedupSignature(signatures, config)
    if split:
        split_words = {"word_tokenize": lambda _, text: text.split(), "sent_tokenize": None, "span_tokenize": None}
        signing.word_tokenizer = type("SplitTokenizer", (WordTokenizer,), split_words)()
    stages = [
        ([reader, signing], 1),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
        ([MinhashDedupCluster(buckets, clusters, config=config)], 1),
    ]
    for number, (pipeline, tasks) in enumerate(stages):
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(out / f"log-{number}")).run()


def rensas(shard: Path, _out: Path, *, split: bool = False) -> set[str]:
    """Deduplicate by rensa in memory, words by a regular expression or ``str.split``; return the survivors' ids."""
    from rensa import RMinHashDeduplicator  # noqa: PLC0415

    table = pq.read_table(shard, columns=["id", "text"], use_threads=False)
    names, find = table["id"].to_pylist(), str.split if split else re.compile(r"\w+").findall
    words = (find(text.lower()) for text in table["text"].to_pylist())
    shingles = (list(map(" ".join, zip(*(of_text[n:] for n in range(5)), strict=False))) for of_text in words)
    index = RMinHashDeduplicator(threshold=0.8, num_perm=128, use_lsh=True, num_bands=16, seed=1)
    stays = index.add_pairs(zip(names, shingles, strict=True))
    return {name for name, kept in zip(names, stays, strict=True) if kept}


SIDES: dict[str, Callable[[Path, Path], set[str]]] = {
    "mtnlg_data": ours,
    "mtnlg_data_in_memory": in_memory,
    "datatrove": theirs,
    "datatrove_str_split": partial(theirs, split=True),
    "rensa": rensas,
    "rensa_str_split": partial(rensas, split=True),
}


def run_side(name: str, shard: Path, out: Path) -> None:
    """Run one side once, in a process of its own."""
    subprocess.run([sys.executable, __file__, str(shard), "--only", name, str(out)], check=True, capture_output=True)


def quality(survivors: set[str], documents: list[Document], similar: dict[str, float]) -> dict[str, float]:
    """Count pairs of Jaccard 0.8 and more with one removed, and documents removed without such a duplicate."""
    removed = {document.id for document in documents} - survivors
    true = {name for name, similarity in similar.items() if similarity >= 0.8}
    found = {name for name in true if {name, f"{name}-copy"} & removed}
    return {
        "recall_of_pairs_of_0.8": round(len(found) / len(true), 4),
        "removed": len(removed),
        "removed_below_0.8": len({name.removesuffix("-copy") for name in removed} - true),
    }


def measure(
    articles: Path, documents: int = 5000, sides: tuple[str, ...] = tuple(SIDES), rounds: int = 5
) -> dict[str, Any]:
    """Deduplicate so many documents."""
    made, similar = make_corpus(read_articles(articles), documents)
    megabytes = megabytes_of(document.text for document in made)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        cpu, survivors = time_on_shard({side: SIDES[side] for side in sides}, made, rounds, scratch)
        shard, out = scratch / "in" / "web-00000.parquet", scratch / "out"
        whole = time_rounds({side: partial(run_side, side, shard, out) for side in sides}, rounds, cpu_seconds, out)
    return {
        **{
            key: {name: spread(ratios(each, seconds[base])) for name, each in seconds.items() if name != base}
            for key, base, seconds in (
                ("ratios", "mtnlg_data", cpu),
                ("ratios_in_memory", "mtnlg_data_in_memory", cpu),
                ("ratios_with_start", "mtnlg_data", whole),
            )
            if base in sides
        },
        "megabytes_per_second": rates(megabytes, cpu),
        "quality": {name: quality(kept, made, similar) for name, kept in survivors.items()},
        "documents": len(made),
        "megabytes": round(megabytes, 3),
        "seconds_of_one_core": cpu,
        "seconds_with_start": whole,
    }


if __name__ == "__main__":
    if "--only" in sys.argv:
        SIDES[sys.argv[3]](Path(sys.argv[1]), Path(sys.argv[4]))
    else:
        run(measure, __doc__)
