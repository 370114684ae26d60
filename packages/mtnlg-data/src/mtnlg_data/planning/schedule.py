"""How well a curation uses its workers: its units, scheduled one after another, at their measured costs.

A step's units go to whichever worker is free first, the next step begins when all are done, and one process reads the
footers of the shards before each stage. What that leaves idle is what the number of workers costs. Units of a step are
taken to differ by half their mean either way: groups of files fill a half to a whole shard.

    efficiency   core-seconds of all units / (workers x wall seconds)
    tail         the step at which most worker-seconds are idle

Costs are those of ``MEASURED_COSTS`` (benchmarks/unit_costs.py), for English; extraction's is by the web page.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from mtnlg_data.exact.runs import KEYS_PER_RANGE
from mtnlg_data.exchange import FAN_OUT, Exchange
from mtnlg_data.tokens.stage import TEXT_BYTES_PER_UNIT, TOKENS_PER_UNIT
from mtnlg_data.tokens.store import SPAN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_data.recipe import Recipe

MEASURED_COSTS = "benchmarks/results/2026-11-23-unit-costs.json"
#: Core-seconds for each million characters of each function; of all those of deduplication under ``dedup``.
COSTS = {
    "extract.extract_group": 0.05487,
    "quality.draw_sample": 0.00673,
    "quality.train_classifier": 0.07053,
    "quality.filter_shard": 0.00952,
    "clean.clean_shard": 0.01889,
    "filters.filter_shard": 0.06066,
    "exact.scan_shard": 0.04726,
    "exact.write_repeats": 0.00871,
    "exact.cut_shard": 0.00881,
    "decontaminate.scan_shard": 0.05451,
    "decontaminate.count_documents": 0.0008,
    "decontaminate.write_ledger": 0.01823,
    "decontaminate.cut_shard": 0.03814,
    "tokens.encode_groups": 0.00273,
    "tokens.count_ranges": 0.00011,
    "tokens.write_range": 0.00063,
    "tokens.check_span": 0.00068,
    "dedup": 0.02921,
}
ENCODER_SECONDS = 0.4  # an encoder is opened anew for every unit
PAGE_BYTES = 4  # of .warc.gz for a character of text
PAGE_BYTES_A_SECOND = 6.9e6  # extracted
TASK_TEXTS, SECONDS_A_TASK_TEXT = 70_000, 0.0004  # of the paper's tasks
TRAINING_SECONDS_A_MEGABYTE = 0.26  # of a vocabulary; measured on 5 MB of English
TAILS_SHOWN = 3
CHARACTERS_PER_TOKEN = 4.3  # English, GPT-2's tokenizer
GOLDEN = 0.6180339887498949  # its multiples spread evenly, in any number
MEAN_SHARD = 0.75  # of the largest: groups fill a half to a whole
SHARD_SECONDS = 0.002  # of the driver, for a shard and stage: footer and manifest; 0.25 ms on a local disk


class Step(NamedTuple):
    """Units of one kind: how many, and the core-seconds of one on average; ``driver`` for work that no worker has."""

    stage: str
    step: str
    units: int
    seconds: float
    driver: bool = False


class Schedule(NamedTuple):
    """Wall seconds of all steps and of each stage, their core-seconds, and the idle worker-seconds of each step."""

    wall: float
    walls: dict[str, float]
    busy: float
    idle: dict[str, float]

    def efficiency(self, workers: int) -> float:
        """Share of the workers' time that is work."""
        return self.busy / (workers * self.wall) if self.wall else 1.0


def schedule(steps: list[Step], workers: int) -> Schedule:
    """Schedule the steps, each after the one before."""
    busy = 0.0
    walls: dict[str, float] = {}
    idle: dict[str, float] = {}
    for step in steps:
        ends = [0.0] * workers
        work = 0.0
        for number in range(step.units):
            seconds = step.seconds * (0.5 + number * GOLDEN % 1 if step.units > 1 else 1.0)
            work += seconds
            heapq.heapreplace(ends, ends[0] + seconds)
        walls[step.stage] = walls.get(step.stage, 0.0) + max(ends)
        busy += 0.0 if step.driver else work
        name = f"{step.stage}: {step.step}"
        idle[name] = idle.get(name, 0.0) + workers * max(ends) - (0.0 if step.driver else work)
    return Schedule(sum(walls.values()), walls, busy, idle)


def steps_of(recipe: Recipe, documents: int, characters: int) -> Iterator[Step]:
    """The steps of a recipe over so many documents of this mean length, in order."""
    millions = documents * characters / 1e6
    shards = -(-documents * characters // round(MEAN_SHARD * recipe.extract.shard_characters))

    def spread(stage: str, step: str, units: float, seconds_a_million: float) -> Step:
        count = max(1, round(units))
        return Step(stage, step, count, seconds_a_million * millions / count)

    def footers(stage: str) -> Step:
        return Step(stage, "footers of shards", 1, SHARD_SECONDS * shards, driver=True)

    weights = {name: source.weight for name, source in recipe.sources.items()}
    warc = [name for name, source in recipe.sources.items() if source.kind == "warc"]
    pages = sum(weights[name] for name in warc) / sum(weights.values())
    yield spread(
        "extract",
        "extract",
        shards,
        pages * 1e6 * PAGE_BYTES / PAGE_BYTES_A_SECOND + (1 - pages) * COSTS["extract.extract_group"],
    )
    if recipe.filtered:
        share = sum(weights[name] for name in recipe.filtered) / sum(weights.values())
        trained = min(2 * recipe.quality.sample, documents) * characters / 1e6
        yield footers("quality")
        yield spread("quality", "sample", shards, COSTS["quality.draw_sample"])
        yield Step("quality", "train", 1, COSTS["quality.train_classifier"] * trained)
        yield spread("quality", "score", share * shards, 2 * share * COSTS["quality.filter_shard"])
    yield footers("clean")
    yield spread("clean", "clean", shards, COSTS["clean.clean_shard"])
    if recipe.filters:
        share = sum(weights[name] for name in recipe.filters) / sum(weights.values())
        yield footers("filter")
        yield spread("filter", "filter", share * shards, share * COSTS["filters.filter_shard"])
    yield footers("deduplicate")
    yield spread("deduplicate", "units", shards, COSTS["dedup"])
    if recipe.exact.kinds:
        yield footers("exact")
        yield spread("exact", "scan", shards * (len(recipe.exact.kinds) + 1), COSTS["exact.scan_shard"])
        yield spread("exact", "compare", millions * 1e6 / 100 / KEYS_PER_RANGE, COSTS["exact.write_repeats"])
        yield spread("exact", "cut", shards, COSTS["exact.cut_shard"])
    yield footers("decontaminate")
    yield Step("decontaminate", "n-grams", 1, task_texts(recipe) * SECONDS_A_TASK_TEXT)
    yield spread("decontaminate", "scan", shards, COSTS["decontaminate.scan_shard"])
    yield spread("decontaminate", "count", -(-shards // FAN_OUT), COSTS["decontaminate.count_documents"])
    yield spread("decontaminate", "ledger", shards, COSTS["decontaminate.write_ledger"])
    yield spread("decontaminate", "cut", shards, COSTS["decontaminate.cut_shard"])
    yield from _tokenize(recipe, documents, millions)


def task_texts(recipe: Recipe) -> int:
    """How many texts the recipe's tasks have, a line each; without their file as many as the paper's."""
    if recipe.texts is None or not (recipe.input / recipe.texts).is_file():
        return TASK_TEXTS
    with (recipe.input / recipe.texts).open("rb") as file:
        return sum(1 for _ in file)


def encoded_exchange(text: float, tokens: float, sources: int) -> Exchange:
    """The exchange of the encoded files of a source, of so many even ones."""
    return Exchange(max(1, round(text / TEXT_BYTES_PER_UNIT / sources)), round(tokens / TOKENS_PER_UNIT / sources))


def _tokenize(recipe: Recipe, documents: int, millions: float) -> Iterator[Step]:
    sources = len(recipe.sources)
    tokens = 1e6 * millions / CHARACTERS_PER_TOKEN + documents
    files = encoded_exchange(1e6 * millions, tokens, sources)
    blocks = len({files.range(number).files for number in range(files.ranges)})
    levels = [len(level) * sources for level in files.merges()]
    spans = round((2 * tokens + 20 * documents) / SPAN_BYTES)
    shards = -(-1e6 * millions // (MEAN_SHARD * recipe.extract.shard_characters))
    steps = [
        ("encode", round(1e6 * millions / TEXT_BYTES_PER_UNIT), COSTS["tokens.encode_groups"]),
        *(("merge", units, COSTS["tokens.write_range"]) for units in levels),
        ("count", blocks * sources, COSTS["tokens.count_ranges"]),
        ("shuffle", files.ranges * sources, COSTS["tokens.write_range"]),
        ("check", spans, COSTS["tokens.check_span"]),
    ]
    yield Step("tokenize", "footers of shards", 1, SHARD_SECONDS * shards, driver=True)
    if recipe.tokenize.vocabulary:
        yield Step("tokenize", "vocabulary", 1, TRAINING_SECONDS_A_MEGABYTE * recipe.tokenize.sample_bytes / 1e6)
    for step, units, cost in steps:
        count = max(1, units)
        yield Step("tokenize", step, count, cost * millions / count + ENCODER_SECONDS * (step == "encode"))


def efficiency_plan(recipe: Recipe, documents: int, characters: int, workers: int) -> dict[str, Any]:
    """Hours of all steps and of each stage, how much of them is work, and the steps that leave most of them idle."""
    planned = schedule(list(steps_of(recipe, documents, characters)), workers)
    longest = sorted(planned.idle.items(), key=lambda item: -item[1])[:TAILS_SHOWN]
    return {
        "hours": planned.wall / 3600,
        "stages": {stage: seconds / 3600 for stage, seconds in planned.walls.items()},
        "efficiency": planned.efficiency(workers),
        "idle": {step: seconds / (workers * planned.wall) for step, seconds in longest},
        "costs": MEASURED_COSTS,
    }
