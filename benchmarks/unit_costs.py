"""Cost of every step of a curation: core-seconds per million characters that it reads.

    python benchmarks/unit_costs.py DATA [--pages 8000] [--documents 10000] [--rounds 3] [--out FILE]

DATA holds near_duplicates/articles_1000.train and extraction/html. Steps are measured on a crawl of known duplicates
beside a curated source (``curation_scale``), filter and exact on real news, recombined from the sentences of articles
(``deduplication``). A curation runs in one process, over all and over a few; a step's cost
is what lies between. Real web pages, with much more HTML to their text than those of the crawl, tell the two parts of a
page's cost apart, for each method of ``extract``; ``exact`` runs with each kind alone, and with all.

The steps' ``cost`` methods hold these numbers; ``curation_scale`` compares plans by them with what runs take.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-data[gigatoken]", "psutil"]
# ///

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from curation_scale import write_corpus as write_crawl
from deduplication import make_corpus
from known_crawl import paragraphs, warc_record
from mtnlg_data import Exact, Local, curate, load_recipe, run_step
from mtnlg_data.document import shard_source
from mtnlg_data.engine import listed_shards
from record import articles, run, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


FILES, FEW_PAGES = 8, 400
FEW = 150
WEB = {"crawl", "web"}  # sources of pages
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
[deduplicate]
alarm_share = 1.0
[tokenize]
vocabulary = 400
sample_bytes = 100_000
"""
KINDS = ("documents", "lines", "substrings")
METHODS = ("justext", "main", "resiliparse", "trafilatura")
#: Tasks whose cost does not follow the text that their step reads.
CONSTANT = {"train_classifier", "write_ngrams", "choose_rare", "write_tokenizer", "write_blend"}


def write_news(folder: Path, data: Path, count: int) -> None:
    """Write so many documents, texts of tasks, pages and the recipe."""
    folder.mkdir(parents=True)
    documents, _ = make_corpus(articles(data / "near_duplicates" / "articles_1000.train"), count)
    texts = [{"text": document.text} for document in documents]
    tasks = [{"task": "boolq", "id": document.id, "text": document.text[:300]} for document in documents[:2000]]
    for name, rows in (("news", texts), ("texts", tasks)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pages = sorted((data / "extraction" / "html").glob("*.html.gz"))
    with (folder / "pages.warc.gz").open("wb") as file:
        for number in range(max(2, count // 100)):
            page = gzip.decompress(pages[number % len(pages)].read_bytes())
            file.write(warc_record(page, number, "text/html"))
    (folder / "data.toml").write_text(NEWS, encoding="utf-8")


class Costs(Local):
    """Sums what every step takes of something that is counted, by default CPU seconds; of extract, by source."""

    def __init__(self, out: Path, count: Callable[[], float] = time.process_time) -> None:
        super().__init__(1)
        self.costs: defaultdict[str, float] = defaultdict(float)
        self._out = out
        self._count = count

    def imap(self, units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Run units in this process."""
        for unit in units:
            before = self._count()
            ((_, summary),) = super().imap([unit])
            folder = unit.output.relative_to(self._out).parts[0]
            step = "tokenize" if folder == "tokens" else folder.partition("-")[2]
            task = getattr(unit, "work", "").rpartition(":")[2]
            if step == "extract":
                step = f"extract {shard_source(unit.output)}"
            self.costs[f"{step} {task}" if task in CONSTANT else step] += self._count() - before
            yield unit, summary


class Curation(NamedTuple):
    """What a curation took by step, and the millions of characters that each read."""

    costs: dict[str, float]
    millions: dict[str, float]

    def slopes(self, few: Curation) -> dict[str, float]:
        """Costs per million characters, beside a smaller curation of the same kind."""
        slopes = {}
        for step, own in self.millions.items():
            more = own - few.millions[step]
            cost = self.costs[step] - (few.costs[step] if more else 0)  # of a source that is in both all the same
            slopes[step] = max(0.0, cost / (more or own))
        return slopes


def curation(
    folder: Path, out: Path, overrides: Sequence[str] = (), count: Callable[[], float] = time.process_time
) -> Curation:
    """Curate a folder's recipe."""
    engine = Costs(out, count)
    summary = curate(load_recipe(folder, overrides), out, engine)
    stages = {stage["name"]: stage for stage in summary["stages"]}
    millions = {name: stage["characters_in"] / 1e6 for name, stage in stages.items() if name != "extract"}
    extracted = stages["extract"]["sources"]
    millions |= {f"extract {name}": own["characters_out"] / 1e6 for name, own in extracted.items()}
    return Curation(engine.costs, millions)


def methods_of_extract(few: Sequence[Path], some: Sequence[Path], out: Path) -> dict[str, float]:
    """Costs of each method by the pages' bytes and by their text, from crawls of two kinds, a few pages of each."""
    costs: dict[str, float] = {}
    for method in METHODS:
        for folder in few:
            _extraction(folder, method, out / "first")  # imports the library
        runs = zip(*([_extraction(folder, method, out) for folder in each] for each in (few, some)), strict=True)
        more = [[b - a for a, b in zip(*run, strict=True)] for run in runs]
        (one, page), (other, larger) = ((seconds / text, size / text) for seconds, size, text in more)
        per_byte = max(0.0, (other - one) / (larger - page))
        costs |= {f"extract {method} bytes": per_byte, f"extract {method} text": one - page * per_byte}
    return costs


def _extraction(folder: Path, method: str, out: Path) -> tuple[float, float, float]:
    """CPU seconds that a folder's web pages take, and millions of their bytes and of characters of their text."""
    recipe = load_recipe(folder, [f"extract.method={method}"])
    engine = Costs(out := out / f"{method}-{folder.name}")
    summary = run_step(recipe.steps[0], recipe.files(), out / "1-extract", engine)
    (source,) = WEB & {*summary["sources"]}
    sizes = (summary["sources"][source][f"characters_{way}"] / 1e6 for way in ("in", "out"))
    return engine.costs[f"extract {source}"], *sizes


def kinds_of_exact(out: Path, few: Path) -> dict[str, float]:
    """Costs of each kind of repeats beyond what writing costs, and of that."""
    costs: dict[str, float] = {}
    for kinds in (*((kind,) for kind in KINDS), KINDS):
        taken, read = [], []
        for folder in (few, out):
            engine = Costs(folder)
            shards = listed_shards(next(folder.glob("*-clean"))) or []
            step = Exact(kinds=kinds, alarm_share=1.0)
            read.append(run_step(step, shards, folder / f"0-{'-'.join(kinds)}", engine)["characters_in"] / 1e6)
            taken.append(sum(engine.costs.values()))
        costs[" ".join(kinds)] = (taken[1] - taken[0]) / (read[1] - read[0])
    writing = (sum(costs[kind] for kind in KINDS) - costs.pop(" ".join(KINDS))) / (len(KINDS) - 1)
    return {"exact": writing} | {f"exact {kind}": costs[kind] - writing for kind in KINDS}


def measure(data: Path, pages: int = 8000, documents: int = 10_000, rounds: int = 3) -> dict[str, Any]:
    """Return the costs of every step."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        pool = paragraphs()
        for size in (FEW_PAGES, pages):
            write_crawl(base / f"crawl-{size}", pool, FILES, size // FILES)
        for size in (FEW, documents):
            write_news(base / f"news-{size}", data, size)
        names = [f"crawl-{FEW_PAGES}", f"crawl-{pages}", f"news-{FEW}", f"news-{documents}"]
        for small in names[::2]:
            curation(base / small, base / f"first-{small}")  # compiles what is compiled once
        slopes: dict[str, list[float]] = {}
        for turn in range(rounds):
            outs = [base / f"{each}-{turn}" for each in names]
            few, some, few_news, some_news = (curation(base / each, out) for each, out in zip(names, outs, strict=True))
            costs, of_news = some.slopes(few), some_news.slopes(few_news)
            costs = {step: own for step, own in costs.items() if step.removeprefix("extract ") not in WEB}
            folders = [base / each for each in names]
            costs |= methods_of_extract(folders[::2], folders[1::2], base / f"methods-{turn}")
            costs |= {"filter": of_news["filter"]} | kinds_of_exact(outs[3], outs[2])
            for step, own in costs.items():
                slopes.setdefault(step, []).append(own)
    return {
        "seconds_per_million": {step: spread(own) for step, own in slopes.items()},
        "pages": pages,
        "documents": documents,
        "rounds": rounds,
    }


if __name__ == "__main__":
    run(measure, __doc__)
