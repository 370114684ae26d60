"""How long a curation takes, and how well it uses its workers: its units, scheduled one after another, at their costs.

A step's units go to whichever worker is free first, the next step begins when all are done, and one process reads the
footers of the shards before each stage. What that leaves idle is what the number of workers costs. Units of a step are
taken to differ by half their mean either way: groups of files fill a half to a whole shard.

    efficiency   core-seconds of all units / (workers x wall seconds)
    tail         the step at which most worker-seconds are idle

Costs are those of ``MEASURED_COSTS`` (benchmarks/unit_costs.py), for English. A stage's are for each character that it
reads: behind deduplication that is what it leaves of the text. Extraction of web pages is by their
bytes, most of which the parser alone sees, and by the characters of their text.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mtnlg_data.exchange import FAN_OUT, Exchange
from mtnlg_data.exchange import ROWS_PER_RANGE as KEYS_PER_RANGE
from mtnlg_data.tokens.stage import TEXT_BYTES_PER_UNIT, TOKENS_PER_UNIT
from mtnlg_data.tokens.store import SPAN_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_data.recipe import Recipe

    from .corpus_size import CorpusSize

MEASURED_COSTS = "benchmarks/results/2026-11-23-unit-costs.json"
#: Core-seconds of each function for each million characters; for each million bytes of pages of ``extract.page_bytes``.
COSTS = {
    "extract.page_bytes": 0.0157,
    "extract.page_text": 0.18383,
    "extract.texts": 0.05311,
    "quality.draw_sample": 0.00344,
    "quality.train_classifier": 0.06937,
    "quality.filter_shard": 0.01757,
    "clean.clean_shard": 0.01906,
    "filters.filter_shard": 0.0608,
    "dedup": 0.01694,
    "exact.scan_shard.documents": 0.00204,
    "exact.scan_shard.lines": 0.00292,
    "exact.scan_shard.substrings": 0.04439,
    "exact.write_repeats.documents": 0.00014,
    "exact.write_repeats.lines": 0.0001,
    "exact.write_repeats.substrings": 0.00603,
    "exact.cut_shard": 0.00741,
    "decontaminate.scan_shard": 0.01145,
    "decontaminate.count_documents": 0.00011,
    "decontaminate.write_ledger": 0.00142,
    "decontaminate.cut_shard": 0.01102,
    "tokens.draw_sample": 0.00275,
    "tokens.encode_groups": 0.02166,
    "tokens.count_ranges": 0.0,
    "tokens.write_range": 0.00097,
    "tokens.check_span": 0.00171,
}
#: Core-seconds that a worker takes once in each stage: imports, tables, compiled code from its cache.
START_SECONDS = {
    "extract": 0.96,
    "quality": 1.24,
    "clean": 0.04,
    "deduplicate": 0.27,
    "decontaminate": 0.06,
    "tokenize": 0.28,
}
ENCODER_SECONDS = 4e-6  # for each entry of the vocabulary: an encoder is opened anew for every unit
TASK_TEXTS, SECONDS_A_TASK_TEXT = 70_000, 0.0004  # of the paper's tasks
TRAINING_SECONDS_A_MEGABYTE = 0.26  # of a vocabulary; measured on 5 MB of English
TAILS_SHOWN = 3
CHARACTERS_PER_TOKEN = 4.3  # English, GPT-2's tokenizer
GPT2_VOCABULARY = 50_257
GOLDEN = 0.6180339887498949  # its multiples spread evenly, in any number
MEAN_SHARD = 0.75  # of the largest: groups fill a half to a whole
SHARD_SECONDS = 0.002  # of the driver, for a shard and stage: footer and manifest; 0.25 ms on a local disk


class Step(NamedTuple):
    """Units of one kind: how many, and the core-seconds of one on average; or what the driver, or each worker does."""

    stage: str
    step: str
    units: int
    seconds: float
    of: Literal["units", "driver", "each"] = "units"


class Schedule(NamedTuple):
    """Wall seconds of all steps, and of each stage; its core-seconds; those of units; idle worker-seconds by step."""

    wall: float
    walls: dict[str, float]
    cores: dict[str, float]
    busy: float
    idle: dict[str, float]

    def efficiency(self, workers: int) -> float:
        """Share of the workers' time that is work."""
        return self.busy / (workers * self.wall) if self.wall else 1.0


def schedule(steps: list[Step], workers: int) -> Schedule:
    """Schedule the steps, each after the one before."""
    busy = 0.0
    walls: dict[str, float] = {}
    cores: dict[str, float] = {}
    idle: dict[str, float] = {}
    for step in steps:
        ends = [0.0] * workers
        work = 0.0
        for number in range(step.units if step.of == "units" else 1):
            seconds = step.seconds * (0.5 + number * GOLDEN % 1 if step.units > 1 else 1.0)
            work += seconds
            heapq.heapreplace(ends, ends[0] + seconds)
        walls[step.stage] = walls.get(step.stage, 0.0) + max(ends)
        cores[step.stage] = cores.get(step.stage, 0.0) + work * (workers if step.of == "each" else 1)
        of_units = work if step.of == "units" else 0.0
        busy += of_units
        name = f"{step.stage}: {step.step}"
        idle[name] = idle.get(name, 0.0) + workers * max(ends) - of_units
    return Schedule(sum(walls.values()), walls, cores, busy, idle)


def steps_of(recipe: Recipe, corpus: CorpusSize) -> Iterator[Step]:
    """The steps of a recipe over such a corpus, in order."""
    of_all, rest = _Text(recipe, corpus.text), _Text(recipe, corpus.rest.text)
    yield from of_all.begin("extract")
    pages = corpus.share(recipe, (name for name, source in recipe.sources.items() if source.kind == "warc"))
    of_page = corpus.page_bytes * COSTS["extract.page_bytes"] + COSTS["extract.page_text"]
    of_text = pages * of_page + (1 - pages) * COSTS["extract.texts"]
    yield of_all.spread("extract", "extract", of_all.shards, of_text)
    if recipe.filtered:
        share = corpus.share(recipe, recipe.filtered)
        _, sampled = corpus.training_sample(recipe)
        yield from of_all.begin("quality")
        yield of_all.spread("quality", "sample", of_all.shards, COSTS["quality.draw_sample"])
        yield Step("quality", "train", 1, COSTS["quality.train_classifier"] * sampled / 1e6)
        yield of_all.spread("quality", "score", share * of_all.shards, share * COSTS["quality.filter_shard"])
    yield from of_all.begin("clean")
    yield of_all.spread("clean", "clean", of_all.shards, COSTS["clean.clean_shard"])
    if recipe.filters:
        share = corpus.share(recipe, recipe.filters)
        yield from of_all.begin("filter")
        yield of_all.spread("filter", "filter", share * of_all.shards, share * COSTS["filters.filter_shard"])
    yield from of_all.begin("deduplicate")
    yield of_all.spread("deduplicate", "units", of_all.shards, COSTS["dedup"])
    if recipe.exact.kinds:
        yield from rest.begin("exact")
        for kind in dict.fromkeys(recipe.exact.kinds):
            scans = 2 if kind == "substrings" else 1  # their anchors first, then the windows of those that recur
            yield rest.spread("exact", f"scan {kind}", scans * rest.shards, COSTS[f"exact.scan_shard.{kind}"])
            keys = rest.characters / 100
            yield rest.spread("exact", f"compare {kind}", keys / KEYS_PER_RANGE, COSTS[f"exact.write_repeats.{kind}"])
        yield rest.spread("exact", "cut", rest.shards, COSTS["exact.cut_shard"])
    yield from rest.begin("decontaminate")
    yield Step("decontaminate", "n-grams", 1, task_texts(recipe) * SECONDS_A_TASK_TEXT)
    yield rest.spread("decontaminate", "scan", rest.shards, COSTS["decontaminate.scan_shard"])
    yield rest.spread("decontaminate", "count", -(-rest.shards // FAN_OUT), COSTS["decontaminate.count_documents"])
    yield rest.spread("decontaminate", "ledger", rest.shards, COSTS["decontaminate.write_ledger"])
    yield rest.spread("decontaminate", "cut", rest.shards, COSTS["decontaminate.cut_shard"])
    yield from rest.begin("tokenize")
    yield from _tokenize(recipe, rest, corpus.rest.documents)


class _Text:
    """The text that a stage reads, in shards."""

    def __init__(self, recipe: Recipe, characters: float) -> None:
        self.characters = characters
        self.shards = int(-(-characters // round(MEAN_SHARD * recipe.extract.shard_characters)))

    def begin(self, stage: str) -> Iterator[Step]:
        """What comes before the units of a stage."""
        yield Step(stage, "start", 1, START_SECONDS.get(stage, 0.0), "each")
        yield Step(stage, "footers of shards", 1, SHARD_SECONDS * self.shards, "driver")

    def spread(self, stage: str, step: str, units: float, seconds_a_million: float) -> Step:
        """A step over the text in so many units."""
        count = max(1, round(units))
        return Step(stage, step, count, seconds_a_million * self.characters / 1e6 / count)


def task_texts(recipe: Recipe) -> int:
    """How many texts the recipe's tasks have, a line each; without their file as many as the paper's."""
    if recipe.texts is None or not (recipe.input / recipe.texts).is_file():
        return TASK_TEXTS
    with (recipe.input / recipe.texts).open("rb") as file:
        return sum(1 for _ in file)


def encoded_exchange(text: float, tokens: float, sources: int) -> Exchange:
    """The exchange of the encoded files of a source, of so many even ones."""
    return Exchange(max(1, round(text / TEXT_BYTES_PER_UNIT / sources)), round(tokens / TOKENS_PER_UNIT / sources))


def _tokenize(recipe: Recipe, text: _Text, documents: int) -> Iterator[Step]:
    sources = len(recipe.sources)
    tokens = text.characters / CHARACTERS_PER_TOKEN + documents
    files = encoded_exchange(text.characters, tokens, sources)
    blocks = len({files.range(number).files for number in range(files.ranges)})
    encoders = max(text.shards, round(text.characters / TEXT_BYTES_PER_UNIT))
    if recipe.tokenize.vocabulary:
        sample = min(recipe.tokenize.sample_bytes, text.characters)
        yield text.spread("tokenize", "sample", text.shards, COSTS["tokens.draw_sample"])
        yield Step("tokenize", "vocabulary", 1, TRAINING_SECONDS_A_MEGABYTE * sample / 1e6)
    opened = ENCODER_SECONDS * (recipe.tokenize.vocabulary or GPT2_VOCABULARY)
    yield text.spread("tokenize", "encode", encoders, COSTS["tokens.encode_groups"])
    yield Step("tokenize", "encoders", max(1, encoders), opened)
    for level in files.merges():
        yield text.spread("tokenize", "merge", len(level) * sources, COSTS["tokens.write_range"])
    yield text.spread("tokenize", "count", blocks * sources, COSTS["tokens.count_ranges"])
    yield text.spread("tokenize", "shuffle", files.ranges * sources, COSTS["tokens.write_range"])
    yield text.spread("tokenize", "check", (2 * tokens + 20 * documents) / SPAN_BYTES, COSTS["tokens.check_span"])


def efficiency_plan(recipe: Recipe, corpus: CorpusSize, workers: int) -> dict[str, Any]:
    """Hours from begin to end of all steps and of each stage, how much of the workers' is work, and where most is idle.

    ``core_hours`` are what all processes compute in a stage.
    """
    planned = schedule(list(steps_of(recipe, corpus)), workers)
    longest = sorted(planned.idle.items(), key=lambda item: -item[1])[:TAILS_SHOWN]
    return {
        "hours": planned.wall / 3600,
        "stages": {stage: seconds / 3600 for stage, seconds in planned.walls.items()},
        "core_hours": {stage: seconds / 3600 for stage, seconds in planned.cores.items()},
        "efficiency": planned.efficiency(workers),
        "idle": {step: seconds / (workers * planned.wall) for step, seconds in longest},
        "costs": MEASURED_COSTS,
        "page_bytes": corpus.page_bytes,
    }
