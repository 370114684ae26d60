"""The crawl of known duplicates is what its truth says, and a curation of it finds them at the planned cost."""

from __future__ import annotations

import importlib
import json
import sys
import sysconfig
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from mtnlg_data.engine import Local
from mtnlg_data.pipeline import curate
from mtnlg_data.planning.corpus_size import estimate_corpus
from mtnlg_data.planning.plan import plan
from mtnlg_data.recipe import load_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from mtnlg_data.engine import Summary
    from mtnlg_data.engine.tasks import Task

LIBRARY = Path(sysconfig.get_path("stdlib"))
FOLDERS = [
    LIBRARY / name for name in ("asyncio", "concurrent", "email", "importlib", "logging", "multiprocessing", "unittest")
]
STAGES = ["extract", "quality", "clean", "deduplicate", "decontaminate", "tokenize"]
PAGES_A_FILE = 60
RUNS = ((6, 1), (12, 2))  # files and workers
SETTINGS = ["extract.shard_characters=100_000", "tokenize.vocabulary=400", "quality.sample=100"]
RECIPE = """
[sources.web]
kind = "jsonl"
paths = ["web.jsonl"]
weight = 1.0

[deduplicate]
alarm_share = 1.0

[tokenize]
vocabulary = 4096
"""


def benchmark(name: str) -> ModuleType:
    """Import a module of benchmarks/, which is no package."""
    folder = str(Path(__file__).parents[1] / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def pool() -> list[str]:
    found: list[str] = benchmark("known_crawl").paragraphs(FOLDERS)
    return found


class Curated(NamedTuple):
    """What a curation of so many files took, and what it found."""

    watch: Any  # RunCost
    judged: dict[str, Any]
    planned: dict[str, dict[str, Any]]  # by stage
    workers: int


@pytest.fixture(scope="module")
def curated(pool: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Curated]:
    scale, found = benchmark("curation_scale"), benchmark("found_duplicates")
    runs = []
    for files, workers in RUNS:
        folder = tmp_path_factory.mktemp(f"{files}-files")
        corpus = scale.write_corpus(folder / "raw", pool, files, PAGES_A_FILE)
        options = [word for setting in SETTINGS for word in ("--set", setting)]
        watch = scale.curate(corpus, folder / "out", ["--workers", str(workers), *options])
        judged = found.judge(folder / "out", corpus.folder / "truth", PAGES_A_FILE, 0.8, (20, 13))
        recipe = load_recipe(corpus.recipe, SETTINGS)
        planned = plan(recipe, estimate_corpus(recipe), workers)["stages"]
        runs.append(Curated(watch, judged, {stage["stage"]: stage for stage in planned}, workers))
    return runs


def test_the_duplicates_of_a_crawl_are_found_and_nothing_else(curated: list[Curated]) -> None:
    for run in curated:
        judged = run.judged
        assert judged["pairs"] > 100
        for by_class in judged["recall_by_similarity"].values():
            # Components join pairs that share no band; but all pairs of one page are found or missed together.
            assert by_class["recall"] >= 0.75 * by_class["lsh_alone"]
        assert judged["recall"] > 0.9
        assert judged["removed_judged"] > 50
        assert judged["precision"] == 1


def test_memory_is_as_planned(curated: list[Curated]) -> None:
    for run in curated:
        assert list(run.watch.stages) == STAGES
        for name, cost in run.watch.stages.items():
            announced = run.planned[name]["memory" if run.workers == 1 else "memory_per_worker"]
            measured = cost.driver_bytes if run.workers == 1 else cost.worker_bytes
            assert announced == pytest.approx(measured, rel=0.2), name


@pytest.mark.parametrize("fields", [("rchar", "wchar"), ("syscr", "syscw")], ids=["bytes", "calls"])
def test_a_step_costs_in_proportion_to_what_it_reads(
    fields: tuple[str, ...], pool: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs of every step are measured at 2 and 4 files, and are those at 8.

    Costs are bytes moved, or calls that move them: the same of every run, where processor seconds are not. A file that
    is opened again, as each by every range of keys, takes calls again.
    """

    def count() -> int:
        counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return sum(int(counts[field]) for field in fields)

    scale, costs = benchmark("curation_scale"), benchmark("unit_costs")
    monkeypatch.setattr(scale, "TASKS", 4)  # which are in few of the pages
    runs: list[Any] = []
    for files in (1, 2, 4, 8):  # the first reads tables and compiled code
        folder = scale.write_corpus(tmp_path / f"{files}", pool, files, PAGES_A_FILE).folder
        runs.append(costs.curation(folder, tmp_path / f"out-{len(runs)}", SETTINGS, count))
    _, few, some, twice = runs
    slopes = some.slopes(few)
    assert {step.partition(" ")[0] for step in slopes} == {*STAGES}
    for step, slope in slopes.items():
        expected = some.costs[step] + slope * (twice.millions[step] - some.millions[step])
        assert twice.costs[step] == pytest.approx(expected, rel=0.2), step


class Sizes(Local):
    """Notes the bytes of every output of deduplication, of which some go when it is done."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sizes: dict[Path, int] = {}

    def imap(self, units: Iterable[Task]) -> Iterator[tuple[Task, Summary]]:
        for unit, summary in super().imap(units):
            if any("deduplicate" in part for part in unit.output.parts):
                self.sizes[unit.output] = unit.output.stat().st_size
            yield unit, summary


@pytest.mark.parametrize("documents", [1000, 2000])
def test_each_stage_takes_the_disk_that_is_planned(pool: list[str], tmp_path: Path, documents: int) -> None:
    draw, words = Random(documents), " ".join(pool).split()
    # Each copy is farther from the last than a compressor remembers, as in a crawl.
    families, others = ([" ".join(draw.choices(words, k=1500)) for _ in range(n * documents // 10)] for n in (1, 6))
    copies = [[f"{text} {word}" for text in families] for word in ("first", "more", "else", "again")]
    texts = [text for n, copy in enumerate(copies) for text in (*copy, *others[n::4])]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "data.toml").write_text(RECIPE)
    recipe = load_recipe(tmp_path)
    engine = Sizes()
    curate(recipe, tmp_path / "out", engine)
    size = estimate_corpus(recipe)
    assert size.documents == pytest.approx(documents, rel=0.02)
    planned = {stage["stage"]: stage for stage in plan(recipe, size._replace(near_duplicates=0.4), 1)["stages"]}
    folder_bytes = benchmark("run_watch").folder_bytes
    for name, stage in planned.items():
        folders = [
            *(tmp_path / "out").glob(f"*-{name}"),
            *([tmp_path / "out" / "tokens"] if name == "tokenize" else []),
        ]
        assert stage["disk"] == pytest.approx(sum(map(folder_bytes, folders)), rel=0.2), name
    gone = sum(size for path, size in engine.sizes.items() if not path.exists())
    assert planned["deduplicate"]["scratch"] == pytest.approx(gone, rel=0.2)
