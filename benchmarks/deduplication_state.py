# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data"]
# ///
"""Memory and disk of deduplication at two sizes, against the prediction of ``deduplication_state_bytes``.

    python benchmarks/deduplication_state.py [--documents 200000 2000000] [--scratch FOLDER] [--out FILE]

Documents are sixty random words, in shards of 100,000; nearly a third have a near duplicate. The steps run in one
worker; the peak memory of each is read from /proc, its disk is the size of its files.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mtnlg_data.dedup.plan import deduplication_state_bytes

from mtnlg_data.dedup.stage import deduplicate_documents
from mtnlg_data.document import batch_documents, write_documents
from mtnlg_data.engine.units import manifest_path
from mtnlg_data.schema import Document
from mtnlg_data.steps.deduplicate import DeduplicateSettings
from record import conditions, write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mtnlg_data.engine import Summary, U

WORDS, SHARD_DOCUMENTS, COPIED = 60, 100_000, 0.15
STEPS = {
    "write_signatures": "signatures",
    "write_contents": "copies",
    "find_copies": "copies",
    "write_band_runs": "bands",
    "link_bands": "bands",
    "write_stars": "clusters",
    "write_forest": "clusters",
    "collect_candidates": "candidates",
    "deduplicate_group": "verify",
    "write_removals": "ledger",
    "write_names": "ledger",
    "write_ledger": "ledger",
    "write_survivors": "write",
}


class MeasuringEngine:
    """An engine of one worker, as in a run, that records the peak memory of each step and the size of its files."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self.memory: dict[str, int] = {}
        self.disk: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._pool = pool
        self._step = ""

    def imap(self, function: Callable[[U], Summary], units: Iterable[U]) -> Iterator[tuple[U, Summary]]:
        """Run all units, then yield them with their summaries."""
        work = list(units)
        name = function.args[0].__name__  # type: ignore[attr-defined]  # a partial of the engine
        step = self._step = STEPS.get(name, self._step)  # merges belong to the step before
        started = time.perf_counter()
        summaries, peak = self._pool.submit(_run_all, function, work).result()
        self.seconds[step] = self.seconds.get(step, 0) + time.perf_counter() - started
        self.memory[step] = max(self.memory.get(step, 0), peak)
        sizes = (unit.output.stat().st_size for unit in work) if step != "write" else ()
        self.disk[step] = self.disk.get(step, 0) + sum(sizes)
        yield from zip(work, summaries, strict=True)


def _run_all(function: Callable[[U], Summary], units: list[U]) -> tuple[list[Summary], int]:
    """Return the summaries, and the peak resident bytes meanwhile."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    summaries = [function(unit) for unit in units]
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return summaries, next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def write_corpus(folder: Path, documents: int) -> list[Path]:
    """Write shards of documents, a share of them copies with one more word; return the paths."""
    draw = np.random.default_rng(1)
    vocabulary = np.array([f"{number:x}word"[:6] for number in draw.integers(0, 1 << 24, 50_000)], object)

    def make_documents(first: int, count: int) -> Iterator[Document]:
        fresh = round(count / (1 + COPIED))
        texts = [" ".join(words) for words in vocabulary[draw.integers(0, len(vocabulary), (fresh, WORDS))]]
        texts += [f"{text} more" for text in texts[: count - fresh]]
        return (Document(f"web/{first + number}", "web", text) for number, text in enumerate(texts))

    paths = []
    for number, first in enumerate(range(0, documents, SHARD_DOCUMENTS)):
        paths.append(folder / f"web-{number:05d}.parquet")
        write_documents(paths[-1], batch_documents(make_documents(first, min(SHARD_DOCUMENTS, documents - first))))
    return paths


def measure(documents: int, scratch: Path) -> dict[str, Any]:
    """Return predicted and measured bytes of every step."""
    settings = DeduplicateSettings()
    shards = write_corpus(scratch / "in", documents)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        engine = MeasuringEngine(pool)
        summary = deduplicate_documents(shards, scratch / "out", settings, ["web"], engine)
    manifest = json.loads(
        manifest_path(scratch / "out" / "state" / "forest" / "0-0000000-0000000.arrow").read_text(encoding="utf-8")
    )
    share: float = manifest["summary"]["candidates"] / documents
    characters = round(summary["characters_in"] / documents)
    steps = {
        state.step: {
            "memory_announced": state.memory,
            "memory_measured": engine.memory[state.step],
            "disk_announced": state.disk,
            "disk_measured": engine.disk[state.step],
            "seconds": round(engine.seconds[state.step], 1),
        }
        for state in deduplication_state_bytes(
            documents, settings, characters=characters, largest_shard=SHARD_DOCUMENTS, candidate_share=share
        )
    }
    return {
        "documents": documents,
        "characters_a_document": characters,
        "candidates": round(share, 4),
        "within_what_was_announced": all(
            step[f"{what}_measured"] <= step[f"{what}_announced"]
            for step in steps.values()
            for what in ("memory", "disk")
        ),
        "most_memory_over_announced": round(
            max(step["memory_measured"] / step["memory_announced"] for step in steps.values()), 3
        ),
        "disk_over_announced": round(
            sum(step["disk_measured"] for step in steps.values())
            / sum(step["disk_announced"] for step in steps.values()),
            3,
        ),
        "steps": steps,
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, nargs="+", default=[200_000, 2_000_000])
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    about = conditions("mtnlg-data", "numpy", "pyarrow", "scipy", "numba")
    sizes = []
    for documents in options.documents:
        folder = Path(tempfile.mkdtemp(dir=options.scratch))
        sizes.append(measure(documents, folder))
        shutil.rmtree(folder)
    paper = deduplication_state_bytes(320_000_000, DeduplicateSettings())
    result = {
        "sizes": sizes,
        "announced_for_320_million_documents": {
            "most_memory_of_a_process": max(step.memory for step in paper),
            "disk": sum(step.disk for step in paper),
        },
        **about,
    }
    write_result(result, options.out)


if __name__ == "__main__":
    main()
