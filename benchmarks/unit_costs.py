"""Cost of every step of a curation: core-seconds for each million characters that its stage reads.

    python benchmarks/unit_costs.py [--pages 8000] [--documents 4000] [--rounds 3] [--out FILE]

Stages are measured on a crawl of known duplicates beside a curated source (``curation_scale``), filters and the search
for exact repeats on real news (``plan``). A curation runs in one process, over all and over a few; a step's cost is
what lies between. The cost of starting is what a process of its own takes beyond that, over a few. Real web pages, with
much more HTML to their text than those of the crawl, tell the two parts of a page's cost apart.

``mtnlg_data.planning.schedule`` reckons with these ``costs`` and ``start_seconds``; ``plan`` compares what it then has
for the crawl, and for one of twice the pages, with the seconds that these take.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[gigatoken]"]
# ///

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from curation_scale import read_paragraphs
from curation_scale import write_corpus as write_crawl
from mtnlg_data.engine import Local
from mtnlg_data.pipeline import curate
from mtnlg_data.planning import schedule
from mtnlg_data.planning.corpus_size import CorpusSize, estimate_corpus
from mtnlg_data.quality.classifier import CLASSIFIED_CHARACTERS
from mtnlg_data.recipe import load_recipe
from plan import FEW, sentences
from plan import write_corpus as write_news
from record import conditions, default_out, option_parser, write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FILES, FEW_PAGES = 8, 400
RULES = ["gopher_repetition", "gopher_quality", "c4", "fineweb", "pii"]
NEWS = f"""
[sources.news]
kind = "jsonl"
paths = ["news.jsonl"]
weight = 0.5
filters = {RULES}
[sources.web]
kind = "warc"
paths = ["*.warc.gz"]
weight = 0.5
filters = {RULES}
[extract]
max_failed = 1.0
[exact]
kinds = ["documents", "lines", "substrings"]
alarm_share = 1.0
[deduplicate]
alarm_share = 1.0
[tokenize]
vocabulary = 400
sample_bytes = 100_000
"""
STAGES = {
    "extract": "extract",
    "quality": "quality",
    "clean": "clean",
    "filters": "filter",
    "dedup": "deduplicate",
    "exact": "exact",
    "decontaminate": "decontaminate",
    "tokens": "tokenize",
}
#: Steps that every kind of repeats has of its own, and what of theirs belongs to which kind.
KINDS = {"anchors": "substrings", "windows": "substrings"}
OF_KINDS = {"exact.scan_shard", "exact.write_repeats"}
#: What is planned by another measure than the text that a stage reads.
CONSTANT = {"decontaminate.write_ngrams", "decontaminate.choose_rare", "tokens.write_tokenizer", "tokens.write_blend"}


class Costs(Local):
    """Sums what every function takes of something that is counted, by default CPU seconds."""

    def __init__(self, count: Callable[[], float] = time.process_time) -> None:
        super().__init__(1)
        self.costs: defaultdict[str, float] = defaultdict(float)
        self._count = count

    def imap(self, function: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Run units in this process."""
        inner = function.args[0]  # type: ignore[attr-defined]  # a partial of the engine
        name = f"{inner.__module__.split('.')[1]}.{inner.__name__}"
        for unit in units:
            before = self._count()
            summary = function(unit)
            if name == "extract.extract_group":
                step = f"extract.{unit.pieces[0][0].kind}"
            elif name in OF_KINDS:
                step = f"{name}.{KINDS.get(unit.kind, unit.kind)}"
            else:
                step = name
            self.costs[step] += self._count() - before
            yield unit, summary


class Curation(NamedTuple):
    """What a curation took by function, and the millions of characters that each stage read."""

    costs: dict[str, float]
    millions: dict[str, float]
    size: CorpusSize

    @property
    def web(self) -> tuple[float, float]:
        """Millions of bytes of web pages, and of characters of their text."""
        return self.millions["pages"], self.millions["web text"]

    def amount(self, function: str) -> float:
        """The millions that a function's cost is for."""
        if function == "quality.train_classifier":
            return self.millions["trained"]
        return self.millions[STAGES[function.partition(".")[0]]]


def curation(
    folder: Path, out: Path, overrides: Sequence[str] = (), count: Callable[[], float] = time.process_time
) -> Curation:
    """Curate a folder's recipe."""
    recipe = load_recipe(folder, overrides)
    engine = Costs(count)
    summary = curate(recipe, out, engine)
    stages = {stage["name"]: stage for stage in summary["stages"]}
    size = estimate_corpus(recipe)._replace(near_duplicates=gone(stages["deduplicate"]))
    millions = {name: stage["characters_in"] / 1e6 for name, stage in stages.items()}
    web = [name for name, source in recipe.sources.items() if source.kind == "warc"]
    of_web = [stages["extract"]["sources"][name] for name in web]
    millions["pages"] = sum(source["characters_in"] for source in of_web) / 1e6
    millions["web text"] = sum(source["characters_out"] for source in of_web) / 1e6
    millions["texts"] = stages["extract"]["characters_out"] / 1e6 - millions["web text"]
    kinds = [[stages["extract"]["sources"][name] for name in names] for names in (recipe.filtered, recipe.curated)]
    counts = [(sum(own["documents_out"] for own in kind), sum(own["characters_out"] for own in kind)) for kind in kinds]
    drawn = min(recipe.quality.sample, *(documents for documents, _ in counts))
    means = [min(CLASSIFIED_CHARACTERS, characters / max(1, documents)) for documents, characters in counts]
    millions["trained"] = drawn * sum(means) / 1e6
    return Curation(engine.costs, millions, size)


def gone(stage: dict[str, Any]) -> float:
    """Share of the text that a stage drops."""
    return float(1 - stage["characters_out"] / stage["characters_in"])


def unit_costs(few: Curation, some: Curation) -> dict[str, float]:
    """Costs of every step for each million, by a small and a large curation of one kind; of web pages in all."""
    costs = {"extract.texts": some.costs["extract.jsonl"] / some.millions["texts"]}
    costs["extract.warc"] = (some.costs["extract.warc"] - few.costs["extract.warc"]) / (some.web[1] - few.web[1])
    for function in some.costs:
        if not function.startswith("extract."):
            more = some.costs[function] - few.costs[function]
            costs[function] = max(0.0, more / (some.amount(function) - few.amount(function)))
    return costs


def of_pages(crawl: Curation, one: float, news: Curation, other: float) -> dict[str, float]:
    """The two parts of a page's cost, by the costs of a million characters in two kinds of pages."""
    bytes_one, bytes_other = (own.web[0] / own.web[1] for own in (crawl, news))
    a_byte = max(0.0, (other - one) / (bytes_other - bytes_one))
    return {"extract.page_bytes": a_byte, "extract.page_text": one - bytes_one * a_byte}


def start(folder: Path, out: Path) -> tuple[float, Curation]:
    """What a process takes until it has a recipe, and then for its first curation."""
    return time.process_time(), curation(folder, out)


def start_seconds(folder: Path, out: Path, costs: dict[str, float]) -> dict[str, float]:
    """Core-seconds of a new process, by stage, beyond those that the text costs; what is planned by itself is not."""
    for turn in range(2):  # the first compiles what is not in the cache
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            began, cold = pool.submit(start, folder, out / f"{turn}").result()
    seconds = defaultdict(float, extract=began)
    for function, own in cold.costs.items():
        if function not in CONSTANT:
            text = 0.0 if function.startswith("extract.") else costs[function] * cold.amount(function)
            seconds[STAGES[function.partition(".")[0]]] += own - text
    (pages, of_web), texts = cold.web, cold.millions["texts"]
    seconds["extract"] -= costs["extract.page_bytes"] * pages + costs["extract.page_text"] * of_web
    seconds["extract"] -= costs["extract.texts"] * texts
    return {stage: round(max(0.0, own), 2) for stage, own in seconds.items()}


def measure(pages: int, documents: int, rounds: int) -> dict[str, Any]:
    """Return the costs of every step."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        pool, news = read_paragraphs(base), sentences()
        for size in (FEW_PAGES, pages, 2 * pages):
            write_crawl(base / f"crawl-{size}", pool, FILES, size // FILES)
        for size in (FEW, documents):
            write_news(base / f"news-{size}", size, news)
            (base / f"news-{size}" / "data.toml").write_text(NEWS, encoding="utf-8")
        names = [f"crawl-{FEW_PAGES}", f"crawl-{pages}", f"news-{FEW}", f"news-{documents}"]
        for small in names[::2]:
            curation(base / small, base / f"first-{small}")  # compiles what is compiled once
        slopes: dict[str, list[float]] = {}
        for turn in range(rounds):
            few, some, few_news, some_news = (curation(base / each, base / f"{each}-{turn}") for each in names)
            costs, of_news = unit_costs(few, some), unit_costs(few_news, some_news)
            costs |= of_pages(some, costs.pop("extract.warc"), some_news, of_news["extract.warc"])
            costs |= {step: own for step, own in of_news.items() if step.partition(".")[0] in ("filters", "exact")}
            for step, own in costs.items():
                slopes.setdefault(step, []).append(own)
        median = {step: statistics.median(own) for step, own in slopes.items()}
        started = start_seconds(base / names[0], base / "starts", median)
        schedule.COSTS.update(costs := planned_costs(median))
        recipe = load_recipe(base / names[1])
        compared = {
            str(size): compare(recipe, curation(base / f"crawl-{size}", base / f"check-{size}"))
            for size in (pages, 2 * pages)
        }
    steps = {
        step: {"seconds_a_million": round(median[step], 6), "from": round(min(own), 6), "to": round(max(own), 6)}
        for step, own in slopes.items()
    }
    return {
        "steps": steps,
        "costs": costs,
        "start_seconds": started,
        "pages": pages,
        "documents": documents,
        "plan": compared,
    }


def planned_costs(costs: dict[str, float]) -> dict[str, float]:
    """The costs that a plan is made of, of those of every function."""
    return {
        name: round(sum(own for step, own in costs.items() if step == name or step.startswith(f"{name}.")), 5)
        for name in schedule.COSTS
    }


def compare(recipe: Any, curated: Curation) -> dict[str, Any]:  # noqa: ANN401  (a recipe)
    """What the plan has for such a corpus, and what it took, by stage, without starts and what is once for all."""
    planned: defaultdict[str, float] = defaultdict(float)
    for step in schedule.steps_of(recipe, curated.size):
        if step.of == "units" and step.step not in ("n-grams", "vocabulary"):
            planned[step.stage] += step.units * step.seconds
    took: defaultdict[str, float] = defaultdict(float)
    for function, own in curated.costs.items():
        if function not in CONSTANT:
            took[STAGES[function.partition(".")[0]]] += own
    return {stage: {"planned": round(planned[stage], 2), "measured": round(took[stage], 2)} for stage in planned} | {
        "ratio": round(sum(planned.values()) / sum(took.values()), 3)
    }


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__, rounds=3)
    parser.add_argument("--pages", type=int, default=8000, help="of the crawl")
    parser.add_argument("--documents", type=int, default=4000, help="of news")
    parser.set_defaults(out=default_out("unit-costs"))
    options = parser.parse_args()
    machine = conditions("mtnlg-data", "numpy", "numba", "pyarrow", "tokenizers", "gigatoken")
    result = measure(options.pages, options.documents, options.rounds)
    result |= {"rounds": options.rounds, "machine": machine | {"load_average_after": round(os.getloadavg()[0], 1)}}
    write_result(result, options.out)


if __name__ == "__main__":
    main()
