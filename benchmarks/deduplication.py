# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "datatrove==0.10.1", "regex", "spacy", "xxhash<4"]
# ///
"""Fuzzy deduplication from Parquet to Parquet: mtnlg_data against datatrove's four stages, one core.

    python benchmarks/deduplication.py ARTICLES [--documents 5000] [--rounds 5] [--plain] [--out FILE]

ARTICLES holds one article a line, after its id (articles_1000.train of chrisjmccormick/MinHash). Documents consist of
their sentences; one in ten has a copy with some words changed. Both sides use 20 bands of 13 rows over word 5-grams and
one process. datatrove runs twice: with spaCy's words, its default, and with those of ``str.split``, the cheapest;
``--plain`` leaves the first out, which a large corpus takes minutes for. It verifies no pair; mtnlg_data verifies every
pair at Jaccard 0.8, writes a ledger, and syncs and checksums each file. Ratios are of CPU time.
"""

from __future__ import annotations

import gc
import random
import re
import resource
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
from datatrove.utils.word_tokenizers import WordTokenizer

from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine import Local
from mtnlg_data.job import run_step
from mtnlg_data.schema import Document
from mtnlg_data.steps.deduplicate import Deduplicate
from record import claimed_ratio, conditions, option_parser, rates, ratios, write_result

if TYPE_CHECKING:
    from collections.abc import Callable

SENTENCES = 12


class SplitTokenizer(WordTokenizer):  # type: ignore[misc] # datatrove has no annotations
    """The words between white space, in place of spaCy's."""

    def word_tokenize(self, text: str) -> list[str]:
        """Split at white space."""
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        """Not used: MinHash needs words only."""
        raise NotImplementedError

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """Not used: MinHash needs words only."""
        raise NotImplementedError


def make_corpus(articles: list[str], count: int) -> tuple[list[Document], dict[str, float]]:
    """Return shuffled documents, and by original the Jaccard similarity of its changed copy."""
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
            similar[f"{number}"] = jaccard(text, documents[-1].text)
    draw.shuffle(documents)
    return documents, similar


def jaccard(one: str, other: str) -> float:
    """Return the Jaccard similarity of the two sets of word 5-grams."""
    sets = []
    for text in (one, other):
        words = re.findall(r"\w+", text.lower())
        sets.append({tuple(words[i : i + 5]) for i in range(len(words) - 4)})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def ours(shard: Path, out: Path) -> set[str]:
    """Deduplicate by mtnlg_data; return the ids of the survivors."""
    run_step(Deduplicate(), [shard], out, Local(1))
    return set(pq.read_table(out / shard.name, columns=["id"])["id"].to_pylist())


def theirs(shard: Path, out: Path, *, split: bool = False) -> set[str]:
    """Deduplicate by datatrove, words by spaCy or by ``str.split``; return the ids of the survivors."""

    def read() -> ParquetReader:
        return ParquetReader(str(shard.parent), glob_pattern=shard.name)

    find_theirs(read(), out, split=split)
    kept = [MinhashDedupFilter(str(out / "clusters")), ParquetWriter(str(out / "kept"), compression="zstd")]
    LocalPipelineExecutor([read(), *kept], logging_dir=str(out / "log-kept")).run()
    tables = (pq.read_table(path, columns=["id"]) for path in (out / "kept").glob("*.parquet"))
    return {name for table in tables for name in table["id"].to_pylist()}


def find_theirs(reader: ParquetReader, out: Path, *, split: bool) -> None:
    """Run datatrove's stages over these documents up to ``out/clusters``, by which ``MinhashDedupFilter`` filters."""
    config = MinhashConfig(n_grams=5, num_buckets=20, hashes_per_bucket=13)
    signatures, buckets, clusters = (str(out / name) for name in ("signatures", "buckets", "clusters"))
    signing = MinhashDedupSignature(signatures, config)
    if split:
        signing.word_tokenizer = SplitTokenizer()
    stages = [
        ([reader, signing], 1),
        ([MinhashDedupBuckets(signatures, buckets, config=config)], config.num_buckets),
        ([MinhashDedupCluster(buckets, clusters, config=config)], 1),
    ]
    for number, (pipeline, tasks) in enumerate(stages):
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(out / f"log-{number}")).run()


def time_run(side: Callable[[Path, Path], set[str]], shard: Path, out: Path) -> tuple[float, float, set[str]]:
    """Return CPU seconds, wall-clock seconds, and the survivors."""
    before, started = cpu_seconds(), time.perf_counter()
    survivors = side(shard, out)
    return cpu_seconds() - before, time.perf_counter() - started, survivors


def cpu_seconds() -> float:
    """Return CPU seconds of this process and its children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def quality(survivors: set[str], documents: list[Document], similar: dict[str, float]) -> dict[str, float]:
    """Count pairs of Jaccard 0.8 and more with one removed, and documents removed without such a duplicate."""
    removed = {document.id for document in documents} - survivors
    true = {name for name, similarity in similar.items() if similarity >= 0.8}
    found = {name for name in true if {name, f"{name}-copy"} & removed}
    return {
        "recall_of_pairs_of_0.8": round(len(found) / len(true), 4),
        "removed": len(removed),
        "removed_below_0.8": len({name.removesuffix("-copy") for name in removed} - true),
        "both_of_a_pair_removed": sum({name, f"{name}-copy"} <= removed for name in similar),
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__)
    parser.add_argument("articles", type=Path)
    parser.add_argument("--documents", type=int, default=5000)
    parser.add_argument("--plain", action="store_true", help="without datatrove's default words")
    options = parser.parse_args()
    articles = [line.partition(" ")[2] for line in options.articles.read_text(encoding="utf-8").splitlines()]
    documents, similar = make_corpus(articles, options.documents)
    megabytes = sum(len(document.text.encode()) for document in documents) / 1e6
    about = conditions("mtnlg-data", "datatrove", "spacy", "xxhash", "numpy", "numba")
    sides: dict[str, Callable[[Path, Path], set[str]]] = {
        "mtnlg_data": ours,
        **({} if options.plain else {"datatrove": theirs}),
        "datatrove_str_split": partial(theirs, split=True),
    }
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    clock: dict[str, list[float]] = {name: [] for name in sides}
    qualities: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        shard = Path(scratch) / "in" / "web-00000.parquet"
        small = Path(scratch) / "small" / "web-00000.parquet"
        write_documents(shard, batch_documents(documents))
        write_documents(small, batch_documents(documents[:600]))
        for name, side in sides.items():  # compiles and imports what the first use needs, verification of pairs too
            side(small, Path(scratch) / f"warm-{name}")
        gc.freeze()  # neither side is to look through the corpus and what the other has imported
        for number in range(options.rounds):
            for name in sorted(sides, reverse=bool(number % 2)):
                out = Path(scratch) / f"{name}-{number}"
                cpu_seconds, seconds, survivors = time_run(sides[name], shard, out)
                rmtree(out)  # what a run writes fills memory that no other has freed, which takes the kernel longer
                cpu[name].append(cpu_seconds)
                clock[name].append(seconds)
                qualities[name] = quality(survivors, documents, similar)
    default: dict[str, object] = {}
    if not options.plain:
        default = claimed_ratio(ratios(cpu["datatrove"], cpu["mtnlg_data"]))
        default["ratio_by_the_clock"] = round(statistics.median(ratios(clock["datatrove"], clock["mtnlg_data"])), 1)
    result = {
        **default,
        "against_str_split": claimed_ratio(ratios(cpu["datatrove_str_split"], cpu["mtnlg_data"])),
        "megabytes_per_second": rates(megabytes, cpu),
        "quality": qualities,
        "documents": len(documents),
        "pairs": len(similar),
        "pairs_of_0.8": sum(similarity >= 0.8 for similarity in similar.values()),
        "megabytes": round(megabytes, 3),
        "bands": 20,
        "rows": 13,
        "seconds_of_one_core": cpu,
        "seconds_by_the_clock": clock,
        **about,
    }
    write_result(result, options.out)


if __name__ == "__main__":
    main()
