"""Cost of every step of a curation: core-seconds for each million characters, or in all where a step is bounded.

    python benchmarks/unit_costs.py [--documents 4000] [--rounds 3] [--out FILE]

The corpus is that of benchmarks/plan.py: documents of 4,600 characters of real news in two sources, one of them
filtered, a fifth of them copies, and task texts. A curation runs in one process, over the corpus and over a few
documents; a step's cost is what lies between. ``mtnlg_data.planning.schedule`` reckons with these figures.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtnlg_data.engine import Local
from mtnlg_data.pipeline import curate
from mtnlg_data.planning.schedule import steps_of
from mtnlg_data.recipe import load_recipe
from plan import FEW, SHARED, sentences, write_corpus
from record import conditions, default_out, option_parser, write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

RECIPE = f"""
[sources.news]
kind = "jsonl"
paths = ["news/news.jsonl"]
weight = 0.5
curated = true
filters = ["gopher_repetition", "gopher_quality", "c4", "fineweb", "pii"]
[sources.web]
kind = "jsonl"
paths = ["web/news.jsonl"]
weight = 0.5
filtered = true
filters = ["gopher_repetition", "gopher_quality", "c4", "fineweb", "pii"]
[exact]
kinds = ["documents", "lines", "substrings"]
alarm_share = 1.0
[quality]
alpha = 0.01
alarm_share = 1.0
[deduplicate]
alarm_share = 1.0
[decontaminate]
alarm_share = 1.0
[tokenize]
tokenizer = "{SHARED / "gpt2"}"
"""


class Costs(Local):
    """Sums the CPU seconds and counts the units of every function."""

    def __init__(self) -> None:
        super().__init__(1)
        self.seconds: dict[str, float] = {}
        self.units: dict[str, int] = {}

    def imap(self, function: Callable[[Any], Any], units: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Run units in this process."""
        inner = function.args[0]  # type: ignore[attr-defined]  # a partial of the engine
        name = f"{inner.__module__.split('.')[1]}.{inner.__name__}"
        for unit in units:
            before = time.process_time()
            summary = function(unit)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - before
            self.units[name] = self.units.get(name, 0) + 1
            yield unit, summary


def curation(folder: Path, documents: int, out: Path, pool: list[str]) -> tuple[Costs, float]:
    """Run a curation; return its costs, and the millions of characters of its documents."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for number, source in enumerate(("news", "web")):
            write_corpus(folder / source, documents + number, pool)
        copies = (folder / "news" / "news.jsonl").read_text(encoding="utf-8").splitlines()[: documents // 2]
        with (folder / "web" / "news.jsonl").open("a", encoding="utf-8") as file:  # a fifth of all
            file.writelines(f"{line}\n" for line in copies)
        (folder / "data.toml").write_text(RECIPE, encoding="utf-8")
    overrides = [f"texts='{folder / 'news' / 'texts.jsonl'}'"]
    engine = Costs()
    summary = curate(load_recipe(folder, overrides), out, engine)
    return engine, next(stage for stage in summary["stages"] if stage["name"] == "clean")["characters_in"] / 1e6


def measure(documents: int, rounds: int) -> dict[str, Any]:
    """Return the costs of every step."""
    pool = sentences()
    slopes: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        curation(base / "few", FEW, base / "first", pool)  # compiles what is compiled once
        for turn in range(rounds):
            few, some = curation(base / "few", FEW, base / f"few-{turn}", pool)
            costs, characters = curation(base / "all", documents, base / f"all-{turn}", pool)
            for step, seconds in costs.seconds.items():
                slope = (seconds - few.seconds.get(step, 0.0)) / (characters - some)
                slopes.setdefault(step, []).append(max(0.0, slope))
        planned = {
            str(size): compare(
                base / "all", size, *curation(base / f"check-{size}", size, base / f"checked-{size}", pool)
            )
            for size in (documents, 2 * documents)
        }
    steps = {
        step: {
            "seconds_a_million": round(statistics.median(own), 6),
            "from": round(min(own), 6),
            "to": round(max(own), 6),
            "units": costs.units[step],
            "seconds": round(costs.seconds[step], 3),
        }
        for step, own in slopes.items()
    }
    return {"steps": steps, "millions_of_characters": round(characters, 3), "documents": documents, "plan": planned}


def compare(folder: Path, documents: int, costs: Costs, millions: float) -> dict[str, float]:
    """Return the seconds that the plan has for such a curation, and those measured, both without the tasks' n-grams.

    The plan has as many task texts as the paper's tasks have, whatever the corpus.
    """
    number = 2.5 * documents
    planned = steps_of(load_recipe(folder), round(number), round(1e6 * millions / number))
    seconds = sum(step.units * step.seconds for step in planned if step.step != "n-grams" and not step.driver)
    measured = sum(each for name, each in costs.seconds.items() if name != "decontaminate.write_ngrams")
    return {"planned_seconds": round(seconds, 2), "measured_seconds": round(measured, 2), "ratio": seconds / measured}


def main() -> None:
    """Measure; print the result and write it to ``--out``."""
    parser = option_parser(__doc__, rounds=3)
    parser.add_argument("--documents", type=int, default=4000)
    parser.set_defaults(out=default_out("unit-costs"))
    options = parser.parse_args()
    machine = conditions("mtnlg-data", "numpy", "numba", "pyarrow", "tokenizers", "gigatoken")
    result = measure(options.documents, options.rounds)
    result |= {"rounds": options.rounds, "machine": machine | {"load_average_after": round(os.getloadavg()[0], 1)}}
    write_result(result, options.out)


if __name__ == "__main__":
    main()
