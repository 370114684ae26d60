"""Short forms of the benchmarks, each a ratio against a peer, appended to history.jsonl; a loss beyond noise fails.

    python benchmarks/history.py [--data DATA] [--peers PYTHON] [--only NAME,...] [--table]

DATA holds web/, extraction/, near_duplicates/ with articles_1000.train of chrisjmccormick/MinHash, gpt2/, eval/ and the
published step times; PYTHON is that of an environment with mtnlg-data and its large peers, as ``nox -s bench`` makes
one. Benchmarks that need what is not given are left out. ``--table`` measures what docs/benchmarks.md compares with
other tools on the same work (`TABLE`) instead, writes results, draws the chart.

Short forms are small, so their ratios are not those that README and `results` claim; they compare with themselves. A
figure is lost if its median is below the least round of the last ten runs in which it was not, by more than half of
what a run usually spans: beyond anything that noise has done. Runs on another processor, number of cores or Python do
not count, and fewer than three decide nothing. To accept a loss, set "lost" to false in its line. A line:

    {"date", "commit", "name", "ratio", "least", "most", "bound", "lost", "load", "cpus", "processor", "python"}
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[gigatoken]", "mtnlg-model", "mtnlg-parallel", "mtnlg-eval", "transformers", "accelerate"]
# ///

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from record import default_out, today

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).parent
HISTORY = HERE / "history.jsonl"
RUNS, ENOUGH = 10, 3


class Short(NamedTuple):
    """A benchmark's fewest rounds that tell something, and where its result holds the ratios, by name."""

    words: str
    figures: Mapping[str, tuple[str | int, ...]]
    by_peers: bool = False


ARTICLES = "{data}/near_duplicates/articles_1000.train"
TIMES = "{data}/iteration_times"
RATIO, DATATROVE = ("ratio",), ("ratios", "datatrove")
SHORTS = {
    "signatures": Short(f"{ARTICLES} --rounds 5", {"signatures": RATIO}),
    "cleaning": Short("{data} --rounds 5", {"ftfy's repairs": RATIO}),
    "extraction": Short("{data} --rounds 5", {"extraction": RATIO}),
    "tokenization": Short(
        f"{{data}}/gpt2 {ARTICLES} --rounds 5",
        {"token ids": ("ratios", "ours by tokenizers"), "token ids, gigatoken": ("ratios", "ours by gigatoken, cold")},
    ),
    "deduplication": Short(
        f"{ARTICLES} --documents 600 --rounds 3",
        {
            "near duplicates": DATATROVE,
            "near duplicates, str.split": ("ratios", "datatrove_str_split"),
            "near duplicates, rensa": ("ratios", "rensa"),
        },
        by_peers=True,
    ),
    "exact": Short(
        f"{ARTICLES} --documents 1000 --rounds 3",
        {"equal lines": ("kinds", "lines", *DATATROVE), "equal documents": ("kinds", "documents", *DATATROVE)},
        by_peers=True,
    ),
    "filters": Short(
        "{data} --plain --rounds 3",
        {f"filters, {family}": ("families", family, "against_plain") for family in ("gopher_repetition", "c4", "pii")},
        by_peers=True,
    ),
    "quality": Short(
        "{folder}/texts --good numpy --other sklearn spacy --write {folder}/texts --rounds 5",
        {"quality scores": ("sets", 0, "ratio")},
        by_peers=True,
    ),
    "blend": Short(
        "--scale 0.0002 --reads 300",
        {"a blend's start": ("ratios", "start"), "a blend's reads": ("ratios", "read ours")},
    ),
    # Of loading alone: the kernel's writing back is charged to whoever is at work, and saving came out at 0.2 to 3.2.
    "checkpoint_io": Short("--short --rounds 3", {"loading": ("load_against_safetensors",)}),
    "generate": Short("--models gpt2 --rounds 3", {"generation": ("results", 0, *RATIO)}),
    "training_engine": Short(
        "--rounds 5 --steps 2",
        {"a training step": ("ratios of processor seconds", "ours / plain")},
    ),
    "planner_published": Short(
        f"{{data}}/published_throughput.csv {TIMES}/dgx_a100_1_node.csv {TIMES}/dgx_a100_many_nodes.csv --shipped",
        {"a roofline's error over the planner's": RATIO},
    ),
    "evaluation": Short(
        "{data}/eval {data}/gpt2 --shots 0 --documents 1 --rounds 2", {"nine tasks": ("0 shots", *RATIO)}
    ),
}
"""Of benchmarks with a peer whose figure is a ratio, in little time, on any machine."""
TABLE = {
    "deduplication-peers": f"deduplication {ARTICLES} --documents 19000 --rounds 3 "
    "--sides mtnlg_data datatrove_str_split rensa rensa_str_split",
    "exact-peers": f"exact {ARTICLES} --documents 19000 --kinds documents",
    "extraction": "extraction {data} --rounds 5",
    "curation-peer": "curation_peer {data} --megabytes 15",
}
"""Comparisons with other tools, 15 minutes in all: names of the results, scripts and their words."""


class Figure(NamedTuple):
    """A ratio: the median of the rounds, the least, the most."""

    ratio: float
    least: float
    most: float


def figure(content: Any, path: Sequence[str | int]) -> Figure:  # noqa: ANN401  (JSON)
    """Return the ratio at a path of a result."""
    for key in path:
        content = content[key]
    return Figure(content["median"], content["least"], content["most"])


def machine() -> dict[str, Any]:
    """Return what must be equal for two runs to be compared: two builds of Python gave ratios of 16 and 25."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpus": os.cpu_count(),
        "processor": names[0] if names else platform.machine(),
        "python": platform.python_version(),
    }


def bound(history: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the least round of a figure's last runs here that were no loss, less half of what a run usually spans.

    None while there are too few.
    """
    here = machine().items()
    runs = [run for run in history if run["name"] == name and not run["lost"] and here <= run.items()][-RUNS:]
    spans = [run["most"] - run["least"] for run in runs]
    return min(run["least"] for run in runs) - statistics.median(spans) / 2 if len(runs) >= ENOUGH else None


def entry(name: str, measured: Figure, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the line of the history for a figure that was measured now."""
    limit = bound(history, name)
    rounded = {key: round(value, 3) for key, value in measured._asdict().items()}
    return {
        "date": today(),
        "commit": commit(),
        "name": name,
        **rounded,
        "bound": limit if limit is None else round(limit, 3),
        "lost": limit is not None and rounded["ratio"] < limit,
        "load": round(os.getloadavg()[0], 1),
        **machine(),
    }


def commit() -> str:
    """Return the commit that is measured, with a + if files were changed since."""
    words = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def measure(script: str, short: Short, python: str, data: Path | None) -> dict[str, Figure]:
    """Run a benchmark's short form and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        words = [word.format(data=data, folder=folder) for word in short.words.split()]
        command = [python, str(HERE / f"{script}.py"), *words, "--out", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{script}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        content = json.loads(out.read_text(encoding="utf-8"))
    return {name: figure(content, path) for name, path in short.figures.items()}


def measure_table(python: str, data: Path) -> None:
    """Write the results of `TABLE`, and the chart."""
    for name, words in TABLE.items():
        script, *options = words.format(data=data).split()
        subprocess.run([python, HERE / f"{script}.py", *options, "--out", default_out(name)], check=True)
    subprocess.run([sys.executable, HERE.parent / "docs" / "extensions" / "measurements.py"], check=True)


def missing(short: Short, data: Path | None, peers: str | None) -> str:
    """Return the options that a short form needs and does not have, as words."""
    needs = {"--data": "{data}" in short.words and not data, "--peers": short.by_peers and not peers}
    return " and ".join(option for option, is_missing in needs.items() if is_missing)


def main() -> None:
    """Append a line for each figure, and end with status 1 if one is a loss."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of samples, for the benchmarks that need it")
    parser.add_argument("--peers", help="Python of an environment with datatrove, spaCy and fastText")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SHORTS), help=", ".join(SHORTS))
    parser.add_argument("--table", action="store_true", help="measure the table of docs/benchmarks.md, and draw it")
    options = parser.parse_args()
    if options.table:
        measure_table(options.peers, options.data)
        return
    history = [json.loads(line) for line in HISTORY.read_text("utf-8").splitlines()] if HISTORY.exists() else []
    lost = []
    for script in options.only:
        short = SHORTS[script]
        if needed := missing(short, options.data, options.peers):
            print(f"{script}: left out, it needs {needed}")
            continue
        python = options.peers if short.by_peers else sys.executable
        for name, measured in measure(script, short, python, options.data).items():
            line = entry(name, measured, history)
            with HISTORY.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            limit = f", bound {line['bound']:.2f}" if line["bound"] else ""
            print(f"{name}: {measured.ratio:.2f} ({measured.least:.2f} to {measured.most:.2f}){limit}", flush=True)
            lost += [name] if line["lost"] else []
    if lost:
        sys.exit(f"lost beyond what noise has done in the last {RUNS} runs: {', '.join(lost)}")


if __name__ == "__main__":
    main()
