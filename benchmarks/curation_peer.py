# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "mtnlg-data[trafilatura,gigatoken]", "datatrove==0.10.1", "faust-cchardet", "python-magic", "spacy", "warcio",
#     "xxhash<4",
# ]
# ///
"""A whole chain from WARC to tokens, mtnlg_data against datatrove: text, filters, fuzzy deduplication, ids; one core.

    python benchmarks/curation_peer.py DATA [--method trafilatura] [--megabytes 40] [--rounds 3] [--scratch FOLDER]
        [--out FILE]

Pages are those of ``known_crawl``, made of the documentation installed here, and the crawled ones of DATA/web. Both
sides filter by the rules of FineWeb (``filters``: Gopher's, C4's, its own), search duplicates by 20 bands of 13 rows
over word 5-grams, and encode with GPT-2's vocabulary (DATA/gpt2). datatrove runs as FineWeb has it, at its fastest:
Trafilatura in favour of precision, words by ``str.split``, and documents go from the filter of duplicates to the
tokenizer without a file between. Neither side filters languages, since datatrove's models are downloaded; mtnlg_data
tells them all the same. It extracts by Trafilatura too, in its fast mode, or by ``--method``; it verifies every pair at
Jaccard 0.8, writes a ledger and a table of what it drops, keeps the shards of every stage, and syncs and checksums each
file; it encodes by gigatoken where that is installed.

Ratios are of CPU time of the process and its children, in rounds of alternating order. A first run of each side over a
tenth of the pages imports and compiles.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupFilter
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.readers import ParquetReader, WarcReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.pipeline.writers import ParquetWriter

from deduplication import find_theirs
from filters import RULES_ON, SETTINGS, Plain, their_steps
from known_crawl import KnownCrawl, mean_page_bytes, paragraphs, write_file
from mtnlg_data import Local, curate, load_recipe
from mtnlg_data.tokens.tokenizer import read_tokenizer
from record import cpu_seconds, rates, ratios, run, spread, time_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

END = "<|endoftext|>"
SECONDS_A_PAGE = 30.0  # not datatrove's 1 by the clock, which on a busy machine drops pages
RULES = [name for name in RULES_ON if not name.startswith("pii")]
RECIPE = f"""
[sources.crawl]
kind = "warc"
paths = ["crawl/*.warc.gz"]
weight = 1.0
rules = []
filters = {json.dumps(RULES)}

[extract]
languages = []
method = "{{method}}"

[filter]
words = "whitespace"
{{filter}}

[deduplicate]
alarm_share = 1.0

[tokenize]
tokenizer = "../tokenizer.json"
"""


def write_pages(folder: Path, crawl: KnownCrawl, megabytes: float, samples: list[Path], method: str) -> int:
    """Write a crawl of so much HTML, these WARC files and the recipe; return the bytes of all, uncompressed."""
    size = write_file(folder, crawl, 0, round(megabytes * 1e6 / mean_page_bytes(crawl)))
    for path in samples:
        packed = path.read_bytes()
        (folder / "crawl" / path.name).write_bytes(packed)
        size += len(gzip.decompress(packed))
    numbers = SETTINGS.model_dump(exclude_defaults=True)
    settings = "\n".join(f"{name} = {number}" for name, number in numbers.items())
    (folder / "data.toml").write_text(RECIPE.format(filter=settings, method=method))
    return size


def ours(pages: Path, out: Path) -> int:
    """Run mtnlg_data; return the number of tokens."""
    summary = curate(load_recipe(pages / "data.toml", folder=pages), out, Local(1))
    return sum(source["tokens"] for source in summary["tokens"].values())


def theirs(pages: Path, out: Path) -> int:
    """Run datatrove; return the same."""
    reader = WarcReader(str(pages / "crawl"), glob_pattern="*.warc.gz")
    text, tokens = out / "text", out / "tokens"
    steps = [Trafilatura(favour_precision=True, timeout=SECONDS_A_PAGE), *their_steps(Plain())]
    _execute([reader, *steps, ParquetWriter(str(text), compression="zstd")], out / "log-text")
    find_theirs(ParquetReader(str(text)), out, split=True)
    tokenizer = DocumentTokenizer(
        str(tokens), str(pages.parent / "tokenizer.json"), eos_token=END, shuffle_documents=False
    )
    stays = MinhashDedupFilter(str(out / "clusters"))
    _execute([ParquetReader(str(text)), stays, tokenizer], out / "log-tokens")
    *_, encoded = json.loads((out / "log-tokens" / "stats.json").read_text())
    return int(encoded["stats"]["tokens"]["total"])


def _execute(pipeline: list[Any], log: Path) -> None:
    LocalPipelineExecutor(pipeline, tasks=1, workers=1, logging_dir=str(log)).run()


def measure(
    data: Path, method: str = "trafilatura", megabytes: float = 40.0, rounds: int = 3, scratch: Path | None = None
) -> dict[str, Any]:
    """Curate so much HTML by both; ``method`` is our extractor, datatrove's is Trafilatura."""
    tokens: dict[str, int] = {}
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder, crawl = Path(name), KnownCrawl(paragraphs())
        read_tokenizer([data / "gpt2" / "encoder.json", data / "gpt2" / "vocab.bpe"]).save(
            str(folder / "tokenizer.json")
        )
        samples = sorted((data / "web").glob("*.warc.gz"))
        write_pages(folder / "small", crawl, megabytes / 10, samples, method)
        size = write_pages(folder / "pages", crawl, megabytes, samples, method)
        ours(folder / "small", folder / "warm-ours")
        theirs(folder / "small", folder / "warm-theirs")

        def go(side: str, curate: Callable[[Path, Path], int]) -> None:
            tokens[side] = curate(folder / "pages", folder / "out")

        sides = {side: partial(go, side, each) for side, each in (("mtnlg_data", ours), ("datatrove", theirs))}
        cpu = time_rounds(sides, rounds, cpu_seconds, folder / "out")
    return {
        "ratio": spread(ratios(cpu["datatrove"], cpu["mtnlg_data"])),
        "megabytes_per_second": rates(size / 1e6, cpu),
        "tokens": tokens,
        "method": method,
        "megabytes": round(size / 1e6, 3),
        "rounds": rounds,
        "seconds_of_one_core": cpu,
    }


if __name__ == "__main__":
    run(measure, __doc__)
