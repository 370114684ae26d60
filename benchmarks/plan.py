"""Memory and rate of every stage of a curation, against the prediction of ``mtnlg-data plan``.

    python benchmarks/plan.py [--documents 8000] [--rounds 5] [--stages NAME,...] [--out FILE]

Every stage runs as a command of its own with one worker, on the same documents: 4,600 characters each of recombined
sentences of real news, and real pages in WARC. A rate is from the CPU time minus that of the same command on a handful
of documents, which is the cost of starting. Costs are measured by benchmarks/unit_costs.py.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///

from __future__ import annotations

import gzip
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mtnlg_data.planning.corpus_size import CorpusSize
from mtnlg_data.planning.plan import plan
from mtnlg_data.recipe import load_recipe
from record import default_out, option_parser, today, write_result

SHARED = Path(__file__).parents[2] / "shared" / "data"
COMMAND = str(Path(sys.executable).with_name("mtnlg-data"))
CHARACTERS = 4600
FEW = 60
STAGES = ("extract", "quality", "clean", "filter", "deduplicate", "exact", "decontaminate", "tokenize")
RECIPE = """
[sources.news]
kind = "jsonl"
paths = ["news.jsonl"]
weight = 0.5
curated = true
filters = ["c4"]
[sources.web]
kind = "warc"
paths = ["*.warc.gz"]
weight = 0.5
filtered = true
[exact]
kinds = ["documents", "lines", "substrings"]
[tokenize]
tokenizer = "./gpt2"
"""


def sentences() -> list[str]:
    """Return the sentences of a thousand real articles."""
    lines = (SHARED / "near_duplicates" / "articles_1000.train").read_text(encoding="utf-8").splitlines()
    return [sentence.strip() + "." for line in lines for sentence in line.split(" ", 1)[1].split(". ")]


def write_corpus(folder: Path, documents: int, pool: list[str]) -> dict[str, int]:
    """Write documents, task texts and pages; return the characters of the documents and the bytes of the pages."""
    rng = random.Random(documents)
    folder.mkdir(parents=True)
    characters = 0
    with (folder / "news.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(documents):
            parts: list[str] = []
            while sum(map(len, parts)) < CHARACTERS:
                parts.append(rng.choice(pool))
            text = " ".join(parts)
            characters += len(text)
            file.write(json.dumps({"text": text}) + "\n")
    with (folder / "texts.jsonl").open("w", encoding="utf-8") as file:
        for number in range(min(documents, 2000)):
            file.write(json.dumps({"task": "boolq", "id": str(number), "text": " ".join(rng.sample(pool, 2))}) + "\n")
    pages = sorted((SHARED / "extraction" / "html").glob("*.html.gz"))
    with (folder / "pages.warc.gz").open("wb") as file:
        for number in range(max(2, documents // 40)):
            file.write(warc_record(gzip.decompress(pages[number % len(pages)].read_bytes()), number))
    return {"characters": characters, "pages": (folder / "pages.warc.gz").stat().st_size}


def warc_record(page: bytes, number: int) -> bytes:
    """Return a page as a compressed WARC record."""
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + page
    head = (
        "WARC/1.0\r\nWARC-Type: response\r\nWARC-Date: 2021-01-01T00:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\nWARC-Target-URI: http://example.org/{number}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + block + b"\r\n\r\n", 6)


def commands(folder: Path, out: Path) -> dict[str, list[str]]:
    """Return each stage's command; the first makes the documents that the others read."""
    documents = str(out / "documents")
    gpt2 = ("--tokenizer", str(SHARED / "gpt2"))
    return {
        "documents": ["extract", f"news={folder / 'news.jsonl'}"],
        "extract": ["extract", f"web={folder / 'pages.warc.gz'}"],
        "quality": ["score", documents, "--model", str(folder.parent / "classifier.npy")],
        "clean": ["clean", documents],
        "filter": ["filter", documents, "--rules", "gopher_repetition,gopher_quality,c4,fineweb,pii"],
        "exact": ["exact", documents, "--kinds", "documents,lines,substrings"],
        "deduplicate": ["dedup", documents, "--alarm-share", "1"],
        "decontaminate": ["decontaminate", documents, "--texts", str(folder / "texts.jsonl")],
        "tokenize": ["tokenize", documents, *gpt2],
    }


def run(words: list[str], out: Path) -> tuple[float, int]:
    """Run a command; return its CPU seconds and peak resident bytes."""
    process = subprocess.Popen([COMMAND, "--quiet", *words, "--out", str(out), "--workers", "1"])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{words}: exit status {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def measure(documents: int, rounds: int, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Return each stage's rate with its spread, and its memory against the plan's."""
    pool = sentences()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        sizes = {n: write_corpus(base / str(n), n, pool) for n in (FEW, documents)}
        if "quality" in wanted:
            train_classifier(base)
        seconds: dict[str, dict[int, list[float]]] = {}
        peaks: dict[str, int] = {}
        for turn in range(rounds):
            for n in (FEW, documents) if turn % 2 else (documents, FEW):
                out = base / f"out-{turn}-{n}"
                for stage, words in commands(base / str(n), out).items():
                    if stage not in ("documents", *wanted):
                        continue
                    cpu_seconds, peak = run(words, out / stage)
                    seconds.setdefault(stage, {}).setdefault(n, []).append(cpu_seconds)
                    peaks[stage] = max(peaks.get(stage, 0), peak)
        packed = sum(path.stat().st_size for path in (base / f"out-0-{documents}" / "documents").glob("*.parquet"))
        (base / "data.toml").write_text(RECIPE, encoding="utf-8")
        recipe = load_recipe(base, folder=base / str(documents))
        planned = {stage["stage"]: stage for stage in plan(recipe, CorpusSize(documents, CHARACTERS), 1)["stages"]}
    stages = {}
    for stage in wanted:
        amount = {n: sizes[n]["pages" if stage == "extract" else "characters"] for n in sizes}
        speeds = [
            (amount[documents] - amount[FEW]) / (many - few) / 1e6
            for many, few in zip(seconds[stage][documents], seconds[stage][FEW], strict=True)
        ]
        stages[stage] = {
            "millions_a_second": round(statistics.median(speeds), 3),
            "from": round(min(speeds), 3),
            "to": round(max(speeds), 3),
            "peak_bytes": peaks[stage],
            "planned_bytes": planned[stage]["memory_per_worker"],
            "peak_over_planned": round(peaks[stage] / planned[stage]["memory_per_worker"], 3),
        }
    return {
        "stages": stages,
        "unit": "characters of text; of extract bytes of .warc.gz",
        "sizes": {"documents": documents, **sizes[documents]},
        "packed_bytes_per_character": round(packed / sizes[documents]["characters"], 4),
        "rounds": rounds,
    }


def train_classifier(base: Path) -> None:
    """Train the scoring's classifier on few documents: its weights do not change its speed."""
    good, web = (f"{name}={base / str(FEW) / 'news.jsonl'}" for name in ("good", "web"))
    run(["score", web, "--positive", good], base / "trained")
    (base / "trained" / "classifier.npy").rename(base / "classifier.npy")


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__)
    parser.add_argument("--documents", type=int, default=8000)
    parser.add_argument("--stages", default=",".join(STAGES), help="those to measure")
    parser.set_defaults(out=default_out("plan"))
    options = parser.parse_args()
    load = os.getloadavg()
    result = measure(options.documents, options.rounds, tuple(options.stages.split(",")))
    names = ("mtnlg-data", "numpy", "numba", "pyarrow", "tokenizers")
    result |= {
        "date": today(),
        "versions": {name: version(name) for name in names} | {"python": platform.python_version()},
        "machine": {
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "load_before": load,
            "load_after": os.getloadavg(),
        },
    }
    write_result(result, options.out)


def processor_name() -> str:
    """Return the processor's name from /proc/cpuinfo."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


if __name__ == "__main__":
    main()
