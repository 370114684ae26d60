# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[ray]"]
# ///
"""Whole curations of growing size: cost of each stage, plan against measurement, duplicates found, three Ray nodes.

    python benchmarks/curation_scale.py --gigabytes 2 5 10 20 [--engine ray] [--scratch FOLDER] [--out FILE]

The crawl is made of the documentation installed here, with duplicates of known truth (``known_crawl``); gigabytes are
those of its HTML. ``mtnlg-data run`` curates it beside a small curated source, with every stage that is on by default
and the quality classifier, which scores but drops next to nothing. Shards are small (of 100 MB of HTML), so that there
are enough of them for the exchange by key range to merge. Seconds, memory, disk and file opens are measured from
outside, stage by stage (``run_watch``); recall and precision by ``found_duplicates``. A stage's seconds begin where the
one before ended; the first has the start of Python.

With ``--engine ray`` the run goes to a cluster of three nodes on this machine, one of which is killed while signatures
are made; the digest of all files that the run leaves is compared with that of the local row of the same size.

Each row is written when it has been measured. Called again with the same ``--out``, rows that are there are not
measured again, and a crawl that is in ``--scratch`` is not made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import zstandard

from curation import SOURCES
from found_duplicates import judge
from known_crawl import KnownCrawl, mean_page_bytes, paragraphs, write_crawl
from mtnlg_data.files import sha256, write_json
from mtnlg_data.steps.deduplicate import DeduplicateSettings
from record import conditions, default_out, option_parser, today
from run_watch import RunWatch, folder_bytes

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

COMMAND = str(Path(sys.executable).with_name("mtnlg-data"))
LIBRARIES = ("mtnlg-data", "pyarrow", "lxml", "pycld2", "ftfy", "numba", "tokenizers", "zstandard")
FILE_BYTES, FEWEST_FILES = 50e6, 8  # of HTML
BOOKS, TASKS = 2000, 200
NODES = 3
RECIPE = f"""{SOURCES}
[extract]
shard_characters = 32_000_000

[quality]
alpha = 0.001
sample = 10_000

[deduplicate]
alarm_share = 1.0
"""
#: What differs from run to run: durations and modification times.
TIMED = {"stage.json", "summary.json", "report.html", ".lock"}


class Corpus(NamedTuple):
    """A crawl on disk, with its recipe."""

    folder: Path
    files: int
    pages_a_file: int
    html_bytes: int
    seconds: float | None  # of making it; None if it was there

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
    is_new, started = not folder.exists(), time.perf_counter()
    size = write_crawl(folder, KnownCrawl(pool), files, pages, workers)
    corpus = Corpus(folder, files, pages, size, time.perf_counter() - started if is_new else None)
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


def curate(corpus: Corpus, out: Path, options: list[str], during: Callable[[RunWatch], object]) -> RunWatch:
    """Run the command into an empty ``out``, and call ``during`` again and again; return what it took."""
    shutil.rmtree(out, ignore_errors=True)
    watch = RunWatch(corpus.folder, out)
    command = [COMMAND, "--quiet", "run", str(corpus.recipe), "--out", str(out), *options]
    process = watch.start(command)
    while (status := process.poll()) is None:
        during(watch)
        time.sleep(0.1)
    watch.stop()
    if status:
        sys.exit(f"{' '.join(command)} ended with status {status}")
    return watch


def digest(out: Path) -> str:
    """Digest of every file that a run has left, but those with times in them."""
    names = sorted(path for path in out.rglob("*") if path.is_file() and path.name not in TIMED)
    lines = (f"{path.relative_to(out).as_posix()} {sha256(path)}\n" for path in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@contextmanager
def three_nodes(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Three Ray nodes of one core on this machine: their address, and a function that kills one, once."""
    token = folder / "ray-token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(32), encoding="ascii")
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback alone, on Linux too
    from ray.cluster_utils import Cluster  # noqa: PLC0415  (reads the environment when it is imported)

    cluster = Cluster()
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=100_000_000) for _ in range(NODES)]

        def kill() -> None:
            if len(nodes) == NODES:
                cluster.remove_node(nodes.pop(), allow_graceful=False)

        yield cluster.address, kill
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


def run(corpus: Corpus, out: Path, engine: str, workers: int) -> tuple[RunWatch, dict[str, Any]]:
    """Curate on an engine; return what it took, and how it went."""
    if engine == "local":
        return curate(corpus, out, ["--workers", str(workers)], lambda _: None), {}
    killed_at: list[float] = []
    with three_nodes(corpus.folder.parent) as (address, kill):

        def in_the_middle(watch: RunWatch) -> None:
            if not killed_at and watch.opened["04-deduplicate/state"]:
                kill()
                killed_at.append(round(sum(stage.seconds for stage in watch.stages.values()), 1))

        watch = curate(corpus, out, ["--engine", "ray", "--ray", address], in_the_middle)
    return watch, {"nodes": NODES, "node_killed_after_seconds": killed_at}


def measure(gigabytes: float, options: Namespace, out: Path) -> dict[str, Any]:
    """Make the crawl, plan and run into ``out``; return the row, which ``examine`` completes."""
    pool = read_paragraphs(options.scratch)
    files = max(FEWEST_FILES, round(gigabytes * 1e9 / FILE_BYTES))
    pages = round(gigabytes * 1e9 / mean_page_bytes(KnownCrawl(pool)) / files)
    corpus = write_corpus(options.scratch / f"{gigabytes:g}", pool, files, pages, options.workers)
    workers = options.workers if options.engine == "local" else NODES
    plan = [COMMAND, "plan", str(corpus.recipe), "--workers", str(workers), "--json"]
    planned = json.loads(subprocess.run(plan, stdout=subprocess.PIPE, check=True).stdout)
    watch, how = run(corpus, out, options.engine, workers)
    stages = {name: stage_row(name, watch, out, planned) for name in watch.stages}
    cpu, wall = (sum(stage[key] for stage in stages.values()) for key in ("cpu_seconds", "seconds"))
    return {
        "date": today(),
        "gigabytes": gigabytes,
        "engine": options.engine,
        "workers": workers,
        "html_bytes": corpus.html_bytes,
        "files": corpus.files,
        "pages": corpus.files * corpus.pages_a_file,
        "text_share": round(characters(out) / corpus.html_bytes, 3),
        "seconds_to_make_the_crawl": corpus.seconds and round(corpus.seconds, 1),
        **how,
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "html_megabytes_a_second_and_core": round(corpus.html_bytes / 1e6 / cpu, 3),
        "peak_driver_bytes": max(stage["driver_bytes"] for stage in stages.values()),
        "peak_worker_bytes": max(stage["worker_bytes"] for stage in stages.values()),
        "opens": sum(stage["opens"] for stage in stages.values()),
        "opens_were_lost": watch.lost,
        "peak_disk_bytes": watch.disk_bytes,
        "planned": {key: planned[key] for key in ("documents", "characters_a_document", "disk", "memory")},
        "stages": stages,
        "load_average_after": round(os.getloadavg()[0], 1),
    }


def examine(row: dict[str, Any], truth: Path, out: Path, local: dict[str, Any] | None) -> dict[str, Any]:
    """What the run of a row left: the duplicates that it found, and whether its bytes are those of the local run."""
    settings = DeduplicateSettings()
    theory = settings.bands, settings.rows
    examined: dict[str, Any] = {
        "deduplication": judge(out, truth, row["pages"] // row["files"], settings.threshold, theory)
    }
    examined["digest"] = digest(out)
    if local and local is not row:
        examined["same_bytes_as_local"] = local.get("digest") == examined["digest"]
    return examined


def stage_row(name: str, watch: RunWatch, out: Path, planned: dict[str, Any]) -> dict[str, Any]:
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
        "planned_bytes": plan.get("memory_a_worker" if cost.worker_bytes else "memory"),
        "disk_bytes": sum(map(folder_bytes, [*out.glob(f"*-{name}"), *folders])),
        "planned_disk_bytes": plan.get("disk"),
        "opens": sum(cost.opens.values()),
        "opens_by_folder": cost.opens,
    }


def characters(out: Path) -> int:
    """Characters of text that were extracted of the crawl."""
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    return int(summary["stages"][0]["sources"]["crawl"]["characters_out"])


def estimate(gigabytes: float, rows: list[dict[str, Any]]) -> str:
    """What a size will take, by the largest that has been measured."""
    if not rows:
        return "nothing measured yet to estimate by"
    last = max(rows, key=lambda row: row["html_bytes"])
    times = gigabytes * 1e9 / last["html_bytes"]
    disk = times * (last["peak_disk_bytes"] + last["html_bytes"] / 3)
    return (
        f"about {times * last['seconds'] / 60:.1f} minutes and {disk / 1e9:.1f} GB of disk, by {last['gigabytes']} GB"
    )


def main() -> None:
    """Measure the sizes that ``--out`` does not have yet."""
    parser = option_parser(__doc__)
    parser.add_argument("--gigabytes", type=float, nargs="+", required=True, help="of HTML, a run each")
    parser.add_argument("--engine", choices=["local", "ray"], default="local")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="of the local engine")
    parser.add_argument("--scratch", type=Path, default=Path("runs/curation-scale"), help="for crawls and runs")
    parser.set_defaults(out=default_out("curation-scale"))
    options = parser.parse_args()
    result = json.loads(options.out.read_text()) if options.out.exists() else {**conditions(*LIBRARIES), "rows": []}
    rows = result["rows"]
    for gigabytes in options.gigabytes:
        out = options.scratch / f"{gigabytes:g}-{options.engine}"
        row = find_row(rows, gigabytes, options.engine)
        if row is None:
            same = [row for row in rows if row["engine"] == options.engine]
            print(f"{gigabytes:g} GB, {options.engine}: {estimate(gigabytes, same)}", flush=True)
            row = measure(gigabytes, options, out)
            rows.append(row)
            write(result, options.out)
        if "digest" not in row:
            row |= examine(row, options.scratch / f"{gigabytes:g}" / "truth", out, find_row(rows, gigabytes, "local"))
            write(result, options.out)
            shutil.rmtree(out)
        print(json.dumps({key: value for key, value in row.items() if key != "stages"}, indent=2), flush=True)


def write(result: dict[str, Any], out: Path) -> None:
    """Write what has been measured so far."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def find_row(rows: list[dict[str, Any]], gigabytes: float, engine: str) -> dict[str, Any] | None:
    """The row of this size and engine, if it has been measured."""
    return next((row for row in rows if (row["gigabytes"], row["engine"]) == (gigabytes, engine)), None)


if __name__ == "__main__":
    main()
