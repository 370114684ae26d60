# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///
"""Whole curations of growing size: cost of each stage, plan against measurement, duplicates found.

    python benchmarks/curation_scale.py [--gigabytes 2 5 10 20] [--workers 1] [--scratch FOLDER] [--out FILE]

The crawl is made of the documentation installed here, with duplicates of known truth (``known_crawl``); gigabytes are
those of its HTML. ``mtnlg-data run`` curates it beside a small curated source, with every stage that is on by default
and the quality classifier, which scores but drops next to nothing. Shards are small (of 100 MB of HTML), so that there
are enough of them for the exchange by key range to merge. Seconds and memory are measured stage by stage
(``run_watch``); recall and precision by ``found_duplicates``. A stage's seconds begin where the one before ended; the
first has the imports. A crawl that is in ``--scratch`` is not made again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from found_duplicates import judge
from known_crawl import KnownCrawl, mean_page_bytes, paragraphs, write_crawl
from mtnlg_data.files import write_json
from mtnlg_data.steps.deduplicate import DeduplicateSettings
from record import run
from run_watch import RunCost, folder_bytes, watch_run

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


def read_paragraphs(scratch: Path) -> list[str]:
    """The paragraphs of the installed documentation, kept in a file of ``scratch``."""
    path = scratch / "paragraphs.json"
    if not path.exists():
        write_json(path, paragraphs())
    return list(json.loads(path.read_text(encoding="utf-8")))


def write_corpus(folder: Path, pool: list[str], files: int, pages: int, workers: int = 1) -> Corpus:
    """Write a crawl of so many files and pages a file, the curated source, the tasks' texts and the recipe."""
    corpus = Corpus(folder, write_crawl(folder, KnownCrawl(pool), files, pages, workers))
    if corpus.recipe.exists() and corpus.recipe.read_text() == RECIPE:
        return corpus  # written again, the texts would be other inputs by their times
    books = ("\n\n".join(pool[n : n + 5]) for n in range(0, min(len(pool), 5 * BOOKS), 5))
    lines = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in books)
    (folder / "books").mkdir(exist_ok=True)
    (folder / "books" / "0.jsonl.zst").write_bytes(zstandard.compress(lines))
    tasks = [{"task": "boolq", "id": str(n), "text": text} for n, text in enumerate(pool[:: len(pool) // TASKS or 1])]
    (folder / "texts.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    corpus.recipe.write_text(RECIPE)
    return corpus


def curate(corpus: Corpus, out: Path, options: list[str]) -> RunCost:
    """Run the command into an empty ``out``; return what it took."""
    shutil.rmtree(out, ignore_errors=True)
    return watch_run([COMMAND, "--quiet", "run", str(corpus.recipe), "--out", str(out), *options], out)


def measure_size(gigabytes: float, workers: int, scratch: Path) -> dict[str, Any]:
    """Make the crawl, plan, run and judge; return the row."""
    pool, out = read_paragraphs(scratch), scratch / f"{gigabytes:g}-out"
    files = max(FEWEST_FILES, round(gigabytes * 1e9 / FILE_BYTES))
    pages = round(gigabytes * 1e9 / mean_page_bytes(KnownCrawl(pool)) / files)
    corpus = write_corpus(scratch / f"{gigabytes:g}", pool, files, pages, workers)
    plan = [COMMAND, "plan", str(corpus.recipe), "--workers", str(workers), "--json"]
    planned = json.loads(subprocess.run(plan, stdout=subprocess.PIPE, check=True).stdout)
    watch = curate(corpus, out, ["--workers", str(workers)])
    stages = {name: stage_row(name, watch, out, planned) for name in watch.stages}
    cpu, wall = (sum(stage[key] for stage in stages.values()) for key in ("cpu_seconds", "seconds"))
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    characters = int(summary["stages"][0]["sources"]["crawl"]["characters_out"])
    settings = DeduplicateSettings()
    theory = settings.bands, settings.rows
    row = {
        "gigabytes": gigabytes,
        "workers": workers,
        "html_bytes": corpus.html_bytes,
        "files": files,
        "pages": files * pages,
        "text_share": round(characters / corpus.html_bytes, 3),
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "html_megabytes_a_second_and_core": round(corpus.html_bytes / 1e6 / cpu, 3),
        "peak_driver_bytes": max(stage["driver_bytes"] for stage in stages.values()),
        "peak_worker_bytes": max(stage["worker_bytes"] for stage in stages.values()),
        "peak_disk_bytes": watch.disk_bytes,
        "planned": {key: planned[key] for key in ("documents", "characters_per_document", "disk", "memory")},
        "stages": stages,
        "deduplication": judge(out, corpus.folder / "truth", pages, settings.threshold, theory),
    }
    shutil.rmtree(out)
    print(json.dumps(row), flush=True)
    return row


def stage_row(name: str, watch: RunCost, out: Path, planned: dict[str, Any]) -> dict[str, Any]:
    """What a stage took, and what was planned of it."""
    cost = watch.stages[name]
    folders = [out / "tokens"] if name == "tokenize" else []
    plan: dict[str, Any] = next((stage for stage in planned["stages"] if stage["stage"] == name), {})
    return {
        "seconds": round(cost.seconds, 2),
        "cpu_seconds": round(cost.cpu_seconds, 2),
        "planned_cpu_seconds": round(3600 * plan.get("core_hours", 0.0), 2),
        "driver_bytes": cost.driver_bytes,
        "worker_bytes": cost.worker_bytes,
        "planned_bytes": plan.get("memory_per_worker" if cost.worker_bytes else "memory"),
        "disk_bytes": sum(map(folder_bytes, [*out.glob(f"*-{name}"), *folders])),
        "planned_disk_bytes": plan.get("disk"),
    }


def measure(
    gigabytes: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0), workers: int = 1, scratch: Path = Path("runs/curation-scale")
) -> dict[str, Any]:
    """Measure a run of each size of HTML; ``scratch`` is for crawls and runs."""
    return {"rows": [measure_size(size, workers, scratch) for size in gigabytes]}


if __name__ == "__main__":
    run(measure, __doc__)
