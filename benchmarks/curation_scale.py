# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data", "psutil"]
# ///
"""Whole curations of growing size: cost of each stage, plan against measurement, duplicates found.

    python benchmarks/curation_scale.py [--gigabytes 2 5 10 20] [--workers 1] [--scratch FOLDER] [--out FILE]

The crawl is made of the documentation installed here, with duplicates of known truth (``known_crawl``); gigabytes are
those of its HTML. ``mtnlg-data run`` curates it beside a small curated source, with every stage that is on by default
and the quality classifier, which scores but drops next to nothing. Shards are small (of 100 MB of HTML), so that there
are enough of them for the exchange by key range to merge. Seconds and memory are measured stage by stage
(``run_watch``); recall and precision by ``found_duplicates``. A stage's seconds begin where the one before ended; the
first has the imports.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from found_duplicates import judge
from known_crawl import KnownCrawl, mean_page_bytes, paragraphs, write_file
from mtnlg_data.steps.deduplicate import DeduplicateSettings
from record import run
from run_watch import RunCost, watch_run

COMMAND = str(Path(sys.executable).with_name("mtnlg-data"))
FILE_BYTES, FEWEST_FILES = 50e6, 8  # of HTML
BOOKS, TASKS = 2000, 200
RECIPE = """
texts = "texts.jsonl"

[sources.books]
kind = "jsonl"
paths = ["books/*.jsonl.zst"]
weight = 0.4
curated = true

[sources.crawl]
kind = "warc"
paths = ["crawl/*.warc.gz"]
weight = 0.6
filtered = true

[tokenize]
vocabulary = 8192
sample_bytes = 2_000_000

[extract]
shard_characters = 32_000_000

[quality]
alpha = 0.001
sample = 10_000

[deduplicate]
alarm_share = 1.0
"""


class Corpus(NamedTuple):
    """A crawl on disk, with its recipe."""

    folder: Path
    html_bytes: int

    @property
    def recipe(self) -> Path:
        """Path of the recipe."""
        return self.folder / "data.toml"


def write_corpus(folder: Path, pool: list[str], files: int, pages: int) -> Corpus:
    """Write a crawl of so many files and pages a file, the curated source, the tasks' texts and the recipe."""
    crawl = KnownCrawl(pool)
    corpus = Corpus(folder, sum(write_file(folder, crawl, number, pages) for number in range(files)))
    books = ("\n\n".join(pool[n : n + 5]) for n in range(0, min(len(pool), 5 * BOOKS), 5))
    lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in books)
    (folder / "books").mkdir()
    (folder / "books" / "0.jsonl.zst").write_bytes(zstandard.compress(lines))
    tasks = [{"task": "boolq", "id": str(n), "text": text} for n, text in enumerate(pool[:: len(pool) // TASKS or 1])]
    (folder / "texts.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    corpus.recipe.write_text(RECIPE)
    return corpus


def curate(corpus: Corpus, out: Path, options: list[str]) -> RunCost:
    """Run the command into an empty ``out``; return what it took."""
    shutil.rmtree(out, ignore_errors=True)
    return watch_run([COMMAND, "--quiet", "run", str(corpus.recipe), "--out", str(out), *options], out)


def measure_size(gigabytes: float, workers: int, folder: Path, pool: list[str]) -> dict[str, Any]:
    """Make the crawl, plan, run and judge; return the row."""
    out, files = folder / "out", max(FEWEST_FILES, round(gigabytes * 1e9 / FILE_BYTES))
    pages = round(gigabytes * 1e9 / mean_page_bytes(KnownCrawl(pool)) / files)
    corpus = write_corpus(folder / "crawl", pool, files, pages)
    plan = [COMMAND, "plan", str(corpus.recipe), "--workers", str(workers), "--json"]
    planned = json.loads(subprocess.run(plan, stdout=subprocess.PIPE, check=True).stdout)
    watch = curate(corpus, out, ["--workers", str(workers)])
    costs, settings = watch.stages.values(), DeduplicateSettings()
    row = {
        "workers": workers,
        "html_bytes": corpus.html_bytes,
        "pages": files * pages,
        "html_megabytes_a_second_and_core": corpus.html_bytes / 1e6 / sum(cost.cpu_seconds for cost in costs),
        "peak_driver_bytes": max(cost.driver_bytes for cost in costs),
        "peak_worker_bytes": max(cost.worker_bytes for cost in costs),
        "peak_disk_bytes": watch.disk_bytes,
        "stages": {name: cost._asdict() for name, cost in watch.stages.items()},
        "planned_cpu_seconds": {stage["stage"]: 3600 * stage["core_hours"] for stage in planned["stages"]},
        "deduplication": judge(
            out, corpus.folder / "truth", pages, settings.threshold, (settings.bands, settings.rows)
        ),
    }
    print(json.dumps(row), flush=True)
    return row


def measure(
    gigabytes: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0), workers: int = 1, scratch: Path | None = None
) -> dict[str, Any]:
    """Measure a run of each size of HTML; ``scratch`` is for crawls and runs."""
    pool, rows = paragraphs(), []
    for size in gigabytes:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            rows.append(measure_size(size, workers, Path(folder), pool))
    return {"rows": rows}


if __name__ == "__main__":
    run(measure, __doc__)
