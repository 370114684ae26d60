"""Disk, memory and hours of a curation, estimated stage by stage before it runs.

    disk     an upper bound: as if no document were dropped
    memory   what each worker holds at once, times the workers, plus the process that hands out the work
    hours    of the stage's units on the workers, at their measured costs (``schedule.py``)

A corpus is two numbers: how many documents are extracted, and their mean length. The paper's had 320 million after
deduplication (paper.md 4.4), of about 4,600 characters (339 B tokens). The figures of deduplication come from
``dedup.plan``.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

from mtnlg_data.console import Failure, output
from mtnlg_data.dedup.plan import deduplication_state_bytes
from mtnlg_data.document import CHARACTERS_PER_GROUP, ROWS_PER_GROUP
from mtnlg_data.exact.plan import exact_state_bytes
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.quality.classifier import CLASSIFIED_CHARACTERS
from mtnlg_data.tokens.encoder import BYTES_PER_CHARACTER_ENCODED, MAX_BATCH_CHARACTERS
from mtnlg_data.tokens.encoding import TOKENS_PER_BATCH
from mtnlg_data.tokens.stage import TEXT_BYTES_PER_UNIT
from mtnlg_data.tokens.store import dtype_for

from .schedule import CHARACTERS_PER_TOKEN, MEAN_SHARD, PAGE_BYTES, efficiency_plan, encoded_exchange

if TYPE_CHECKING:
    from mtnlg_data.extract.language import LanguageSettings
    from mtnlg_data.recipe import Recipe

BYTES_PER_CHARACTER = 0.40  # on disk, of English in Parquet at zstd-3
ROW_BYTES = 64  # on disk, of a document beside its text: id, source, language, score
INDEX_ROW_BYTES = 20  # of a document in an .idx
ENCODED_ROW_BYTES = 16  # of a document in an encoded file: a key and an offset
SUMMARY_BYTES = 20_000  # memory of a shard's summary in the process that collects them
BATCHES_HELD = 4  # of tokens, by a unit that sorts: the last one, and the next as read, gathered and sorted
GPT2_VOCABULARY = 50_257
#: Memory of Python and all libraries of the stages, raised to what scoring took in 2026-11-23-curation-scale.json.
PROCESS_BYTES = 480_000_000
SCAN_BYTES = 150_000_000  # memory of the tasks' n-grams, and of their matches in the documents being scanned
PAGE_BYTES_PER_CHARACTER = 30  # memory of a page while it is parsed: the parser's tree, and texts on the way


class StagePlan(NamedTuple):
    """One stage: bytes left on disk, peak memory of a worker and of all processes."""

    stage: str
    disk: int
    memory_a_worker: int
    memory: int


class Corpus(NamedTuple):
    """Size of the corpus, and the number of processes."""

    documents: int
    characters: int  # mean length of a document
    workers: int

    @property
    def text(self) -> int:
        """Characters of all documents."""
        return self.documents * self.characters


def plan(recipe: Recipe, documents: int, characters: int, workers: int) -> dict[str, Any]:
    """The plan for so many documents of this mean length, as JSON.

    ``fits`` compares it with the memory of this machine and the free disk at the recipe's ``input``. Raises ``Failure``
    if that folder does not exist.
    """
    if not recipe.input.is_dir():
        raise Failure(f"{recipe.input}: no such folder; give the folder of the corpus by --input FOLDER")
    corpus = Corpus(documents, characters, workers)
    quality = [_quality(recipe, corpus)] if recipe.filtered else []
    stages = [
        _extract(recipe, corpus),
        *quality,
        _shard_stage("clean", corpus, _language_model_bytes(recipe.resolved_clean)),
    ]
    stages += [_shard_stage("filter", corpus)] if recipe.filters else []
    stages += [_deduplicate(recipe, corpus)]
    stages += [_exact(recipe, corpus)] if recipe.exact.kinds else []
    stages += [_shard_stage("decontaminate", corpus, SCAN_BYTES), _tokenize(recipe, corpus)]
    disk, memory = sum(stage.disk for stage in stages), max(stage.memory for stage in stages)
    scheduled = efficiency_plan(recipe, documents, characters, workers)
    hours = scheduled.pop("stages")
    memory_here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk_here = shutil.disk_usage(recipe.input).free
    return {
        "documents": documents,
        "characters_a_document": characters,
        "workers": workers,
        "stages": [{**stage._asdict(), "hours": hours[stage.stage]} for stage in stages],
        "disk": disk,
        "memory": memory,
        "here": {"disk": disk_here, "memory": memory_here},
        "fits": {"disk": disk <= disk_here, "memory": memory <= memory_here},
        "schedule": scheduled,
    }


def _stage(name: str, corpus: Corpus, disk: int, working_set: int) -> StagePlan:
    """``working_set`` is a worker's memory beside its libraries; the driver holds the summary of every shard."""
    worker = PROCESS_BYTES + working_set
    shards = 1 + corpus.text // round(MEAN_SHARD * ExtractSettings().shard_characters)
    return StagePlan(name, disk, worker, corpus.workers * worker + PROCESS_BYTES + SUMMARY_BYTES * shards)


def _text_disk(corpus: Corpus) -> int:
    return int(BYTES_PER_CHARACTER * corpus.text) + ROW_BYTES * corpus.documents


def _group_memory(corpus: Corpus) -> int:
    """Memory of a row group of text three times: as read by Arrow, as Python strings, and as written again."""
    return 3 * min(ROWS_PER_GROUP * corpus.characters, 2 * CHARACTERS_PER_GROUP)


def _shard_stage(name: str, corpus: Corpus, working_set: int = 0) -> StagePlan:
    """A stage that streams the shards by row groups; ``working_set`` is its memory beside a row group."""
    return _stage(name, corpus, _text_disk(corpus), _group_memory(corpus) + working_set)


def _extract(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """Memory: the longest page being parsed, and an unfinished row group for every source that one file feeds."""
    sources_per_file = max(1, sum(source.kind == "pile" for source in recipe.sources.values()))
    page = PAGE_BYTES_PER_CHARACTER * recipe.extract.largest_page + 2 * recipe.extract.largest
    working_set = page + sources_per_file * _group_memory(corpus) + _language_model_bytes(recipe.resolved_extract)
    return _stage("extract", corpus, _text_disk(corpus), working_set)


def _language_model_bytes(settings: LanguageSettings) -> int:
    """Memory of the fastText model that tells languages; 0 where none is given."""
    return settings.language_model.stat().st_size if settings.language_model else 0


def _quality(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """One process trains on the beginnings of all sampled documents; then the workers score."""
    sampled = 2 * min(recipe.quality.sample, corpus.documents)
    scoring = _shard_stage("quality", corpus)
    training = 2 * PROCESS_BYTES + 2 * sampled * min(CLASSIFIED_CHARACTERS, corpus.characters)
    return scoring._replace(memory=max(scoring.memory, training))


def _deduplicate(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """The figures of ``deduplication_state_bytes``, plus the documents that are written."""
    steps = deduplication_state_bytes(corpus.documents, recipe.deduplicate, characters=corpus.characters)
    worker = max(step.memory for step in steps)
    memory = max(step.memory * (corpus.workers if step.workers else 1) for step in steps)
    stage = _stage("deduplicate", corpus, 0, 0)
    driver = stage.memory - corpus.workers * PROCESS_BYTES
    disk = _text_disk(corpus) + sum(step.disk for step in steps)
    return stage._replace(disk=disk, memory_a_worker=worker, memory=memory + driver)


def _exact(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """A stage over the shards, with the state of its search."""
    largest = recipe.extract.shard_characters
    state = exact_state_bytes(corpus.documents, corpus.characters, largest, recipe.exact)
    stage = _shard_stage("exact", corpus, state.memory)
    return stage._replace(disk=stage.disk + state.disk)


def _tokenize(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """Tokens are on disk as encoded, merged once for each level of the exchange, and in the stores."""
    width = dtype_for(recipe.tokenize.vocabulary or GPT2_VOCABULARY).itemsize
    tokens = int(corpus.text / CHARACTERS_PER_TOKEN) + corpus.documents
    encoded = 1 + len(list(encoded_exchange(corpus.text, tokens, len(recipe.sources)).merges()))
    disk = (encoded + 1) * width * tokens + (INDEX_ROW_BYTES + encoded * ENCODED_ROW_BYTES) * corpus.documents
    encoding = 3 * min(TEXT_BYTES_PER_UNIT, corpus.text) + 3 * width * int(TEXT_BYTES_PER_UNIT / CHARACTERS_PER_TOKEN)
    encoding += BYTES_PER_CHARACTER_ENCODED * MAX_BATCH_CHARACTERS
    gathering = BATCHES_HELD * width * min(TOKENS_PER_BATCH, tokens)
    return _stage("tokenize", corpus, disk, max(encoding, gathering))


def print_plan(planned: dict[str, Any]) -> None:
    """Print a plan as a table on stdout."""
    size = f"{planned['documents']:,} documents of {planned['characters_a_document']:,} characters"
    table = Table("stage", title=f"{size}, {planned['workers']} workers", title_justify="left")
    for column in ("disk", "memory per worker", "memory", "hours"):
        table.add_column(column, justify="right")
    for stage in planned["stages"]:
        sizes = [_format_size(stage[key]) for key in ("disk", "memory_a_worker", "memory")]
        table.add_row(stage["stage"], *sizes, f"{stage['hours']:,.1f}")
    run = planned["schedule"]
    totals = (_format_size(planned["disk"]), "", _format_size(planned["memory"]), f"{run['hours']:,.1f}")
    table.add_row("all", *totals, style="bold")
    here, console = planned["here"], output(soft_wrap=True)
    console.print(table)
    console.print("Upper bounds: as if no document were dropped and no file removed on the way.")
    console.print(
        f"Hours at the costs of {run['costs']}; of pages, with {PAGE_BYTES} bytes of .warc.gz for a character."
    )
    idle = ", ".join(f"{step} {share:.1%}" for step, share in run["idle"].items())
    console.print(f"Of the workers' hours {run['efficiency']:.1%} are work; most are idle at {idle}.")
    for key, name in (("memory", "memory"), ("disk", "free disk")):
        verdict = "enough" if planned["fits"][key] else "too little"
        console.print(f"This machine has {_format_size(here[key])} of {name}: {verdict}.")


def _format_size(size: float) -> str:
    return f"{size / 1e12:.2f} TB" if size >= 1e12 else f"{size / 1e9:.1f} GB"
