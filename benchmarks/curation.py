# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///
"""A whole curation: rate on one core, each stage's share of the time, two workers against one, memory against size.

    python benchmarks/curation.py [--files 8] [--documents 300 40] [--rounds 5] [--scratch FOLDER] [--out FILE]

Documents are drawn from the sentences of the standard library's docstrings: pages of a crawl (WARC, filtered by the
classifier) and texts of a curated source (JSON lines), a given number per file; every tenth is a near copy of another.
Each round curates the same files with one worker and with two, in alternating order, each run in its own process and
into an empty folder. A rate is uncompressed bytes of pages and texts over the CPU seconds of the run and all its
workers, start and imports included. Memory is the peak of the summed resident bytes of the process and its children,
sampled every 20 ms, for files of the second number of documents and for ten times as many such files. The ten or so
bytes that deduplication predicts for each document are too few to show and are not subtracted.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import zstandard

from record import cpu_seconds, ratios, run, spread
from run_watch import descendants

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = 10
PAUSE = 0.02  # seconds between two samples of the memory
LIBRARIES = ("mtnlg-data", "pyarrow", "lxml", "pycld2", "ftfy", "numba", "scikit-learn", "tokenizers", "zstandard")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
SOURCES = """
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
"""
RECIPE = f"{SOURCES}\n[quality]\nalpha = 1.0\nsample = 1000\n"


def sentences() -> list[str]:
    """Return the distinct sentences of the standard library's docstrings."""
    unique: dict[str, None] = {}
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*folder.glob("*.py"), *folder.glob("[a-z]*/*.py")]):
        if path.parent.name in {"test", "site-packages", "idlelib"}:
            continue
        tree = ast.parse(path.read_bytes())
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        for node in (node for node in ast.walk(tree) if isinstance(node, kinds)):
            text = " ".join((ast.get_docstring(node) or "").split())
            for sentence in re.split(r"(?<=[.!?]) +", text):
                if 6 <= len(sentence.split()) <= 40 and sentence.endswith("."):
                    unique[sentence] = None
    return list(unique)


def documents(pool: list[str], draw: random.Random, count: int) -> Iterator[str]:
    """Yield texts of some paragraphs, every tenth a near copy of the previous one."""
    text = ""
    for number in range(count):
        if number % 10 == 9:
            text = text.replace(draw.choice(text.split()), "other", 1)
        else:
            parts = (" ".join(draw.choices(pool, k=draw.randint(4, 9))) for _ in range(draw.randint(3, 8)))
            text = "\n\n".join(parts)
        yield text


def page(text: str, number: int) -> bytes:
    """Return a WARC record: an English page with menus around its text."""
    links = "".join(f'<li><a href="/{n}">{word}</a></li>' for n, word in enumerate(text.split()[:40]))
    paragraphs = "".join(f"<div class='part'><p>{part}</p></div>" for part in text.split("\n\n"))
    body = (
        f"<html lang='en'><head><title>Page {number}</title><style>p {{ margin: 1em }}</style></head><body>"
        f"<ul class='menu'>{links}</ul>{paragraphs}<div><ul>{links}</ul>Copyright</div></body></html>"
    )
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + body.encode()
    header = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\n"
        f"WARC-Date: 2021-01-01T00:00:00Z\r\nWARC-Target-URI: http://example.org/{number}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    return header.encode() + http + b"\r\n\r\n"


def write_corpus(folder: Path, files: int, count: int) -> int:
    """Write the files, three in four of them crawl files, and a recipe; return their uncompressed bytes."""
    pool, draw, size = sentences(), random.Random(1), 0
    for part in range(files):
        texts = list(documents(pool, draw, count))
        if part % 4:
            records = [page(text, part * count + number) for number, text in enumerate(texts)]
            path = folder / "crawl" / f"{part:04d}.warc.gz"
            packed = b"".join(gzip.compress(each, 6) for each in records)
        else:
            records = [json.dumps({"text": text}).encode() + b"\n" for text in texts]
            path, packed = folder / "books" / f"{part:04d}.jsonl.zst", zstandard.compress(b"".join(records))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed)
        size += sum(map(len, records))
    tasks = [{"task": "boolq", "id": str(n), "text": " ".join(draw.choices(pool, k=3))} for n in range(200)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    (folder / "data.toml").write_text(f'input = "{folder}"\n{RECIPE}')
    return size


class Run(NamedTuple):
    """Time and memory of one curation."""

    seconds: float
    cpu_seconds: float  # of all its processes
    memory: int  # peak bytes of all of them
    stages: dict[str, float]  # seconds of each


def curate(folder: Path, out: Path, workers: int) -> Run:
    """Run the command into ``out``, and remove it."""
    command = [str(Path(sys.executable).with_name("mtnlg-data")), "--quiet", "run", str(folder / "data.toml")]
    options = ("--out", str(out), "--workers", str(workers))
    before, started, memory = cpu_seconds() - time.process_time(), time.perf_counter(), 0
    process = subprocess.Popen([*command, *options], env={**os.environ, **ONE_THREAD})
    while process.poll() is None:
        memory = max(memory, sum(map(_resident, (process.pid, *descendants(process.pid)))))
        time.sleep(PAUSE)
    seconds, of_children = time.perf_counter() - started, cpu_seconds() - time.process_time() - before
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with status {process.returncode}")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    shutil.rmtree(out)
    return Run(seconds, of_children, memory, {stage["name"]: stage["seconds"] for stage in summary["stages"]})


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def measure_time(scratch: Path, files: int, count: int, rounds: int) -> dict[str, Any]:
    """Curate in rounds by one worker and by two; return rates, shares of the stages and scaling."""
    size = write_corpus(scratch / "in", files, count)
    runs: dict[int, list[Run]] = {1: [], 2: []}
    for number in range(rounds):
        for workers in (1, 2) if number % 2 else (2, 1):
            runs[workers].append(curate(scratch / "in", scratch / "out", workers))
            print(f"round {number}, workers {workers}: {runs[workers][-1].seconds:.1f} s", flush=True)
    in_stages = [sum(run.stages.values()) for run in runs[1]]
    seconds = {workers: [run.seconds for run in own] for workers, own in runs.items()}
    cpu_seconds = {workers: [run.cpu_seconds for run in own] for workers, own in runs.items()}
    return {
        "two_workers_over_one": {
            "speed": spread(ratios(seconds[1], seconds[2]), 4),
            "processor_seconds": spread(ratios(cpu_seconds[2], cpu_seconds[1]), 4),
        },
        "megabytes_a_second_and_core": spread([size / 1e6 / each for each in cpu_seconds[1]], 4),
        "share_of_stages": {
            name: spread(ratios([run.stages[name] for run in runs[1]], in_stages), 4) for name in runs[1][0].stages
        },
        "seconds": {str(workers): spread(each, 4) for workers, each in seconds.items()},
        "corpus": {"files": files, "documents_a_file": count, "bytes": size},
        "rounds": rounds,
    }


def measure_memory(scratch: Path, files: int, count: int) -> dict[str, Any]:
    """Return the peak memory of one worker and of two, for ``files`` files and for ten times as many."""
    sizes = {times: write_corpus(scratch / f"{times}", times * files, count) for times in (1, TIMES)}
    result: dict[str, Any] = {"documents": [times * files * count for times in sizes], "bytes": list(sizes.values())}
    for workers in (1, 2):
        peaks = [curate(scratch / f"{times}", scratch / "out", workers).memory for times in sizes]
        print(f"memory, workers {workers}: {peaks}", flush=True)
        result[f"workers_{workers}"] = {"peak_bytes": peaks, "ratio": round(peaks[1] / peaks[0], 3)}
    return result


def measure(
    files: int = 8, documents: tuple[int, ...] = (300, 40), rounds: int = 5, scratch: Path | None = None
) -> dict[str, Any]:
    """Measure time and memory, with so many documents per file."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        memory = measure_memory(Path(name) / "memory", files, documents[1])
        return {
            "memory_of_ten_times_the_files": memory,
            **measure_time(Path(name) / "time", files, documents[0], rounds),
        }


if __name__ == "__main__":
    run(measure, __doc__, *LIBRARIES, name="curation")
