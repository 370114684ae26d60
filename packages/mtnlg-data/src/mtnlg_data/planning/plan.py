"""Disk, memory and hours of a curation, estimated stage by stage before it runs.

    disk     what each stage leaves, as if no document were dropped but duplicates; of all the most at a time
    memory   what each worker holds at once, times the workers, plus the process that hands out the work
    hours    from begin to end of the stage, its units on so many workers at their measured costs (``schedule.py``)

What a corpus is told by is in ``corpus_size.py``. The paper's had 320 million documents after deduplication (paper.md
4.4), of about 4,600 characters (339 B tokens). The figures of deduplication come from ``dedup.plan``, those of exact
repeats from ``exact.plan``. tests/test_curation_scale.py compares all with measurements.
"""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

from mtnlg_data.console import Failure, output
from mtnlg_data.dedup.plan import deduplication_state_bytes
from mtnlg_data.dedup.stage import LIBRARY_BYTES
from mtnlg_data.document import group_memory
from mtnlg_data.exact.plan import exact_state_bytes
from mtnlg_data.quality.classifier import BUCKETS
from mtnlg_data.quality.training import LIBRARY_BYTES as TRAINING_LIBRARIES
from mtnlg_data.quality.training import TRAINING_BYTES
from mtnlg_data.tokens.encoder import MAX_BATCH_CHARACTERS
from mtnlg_data.tokens.encoding import TOKENS_PER_BATCH
from mtnlg_data.tokens.stage import TEXT_BYTES_PER_UNIT
from mtnlg_data.tokens.store import dtype_for

from .schedule import CHARACTERS_PER_TOKEN, GPT2_VOCABULARY, MEAN_SHARD, efficiency_plan, encoded_exchange, task_texts

if TYPE_CHECKING:
    from mtnlg_data.extract.language import LanguageSettings
    from mtnlg_data.recipe import Recipe

    from .corpus_size import CorpusSize

ROW_BYTES = 64  # on disk, of a document beside its text: id, source, language, score
INDEX_ROW_BYTES = 20  # of a document in an .idx
ENCODED_ROW_BYTES = 16  # of a document in an encoded file: a key and an offset
SUMMARY_BYTES = 20_000  # memory of a shard's summary in the process that collects them
BATCHES_HELD = 4  # of tokens, by a unit that sorts: the last one, and the next as read, gathered and sorted
#: Memory of a worker that has run the stages up to this one, beside what it holds at work: Python, what it has imported
#: by then, tables of libraries, and compiled code.
LIBRARIES = {
    "extract": 160_000_000,
    "quality": TRAINING_LIBRARIES,
    "clean": 200_000_000,
    "filter": 380_000_000,
    "deduplicate": LIBRARY_BYTES,
    "exact": 390_000_000,
    "decontaminate": 400_000_000,
    "tokenize": 415_000_000,
}
DRIVER_BYTES = 225_000_000  # the same of the process that hands out the work
ALONE_BYTES, ALONE_MORE = 285_000_000, 35_000_000  # of one that does all by itself: at least, and more than a worker
TASK_TEXT_BYTES = 2_200  # memory of the n-grams of a task's text, and of their matches in the documents being scanned
PAGE_COPIES = 8  # memory for a byte of a page; one of nothing but tags takes 20
#: Memory of a batch of English while it is encoded: by gigatoken, and by tokenizers, which takes 500 for Thai.
BYTES_PER_CHARACTER_ENCODED = {True: 30, False: 130}
TOKENIZER_ENTRY_BYTES = 70  # on disk, of a token and its merge


class StagePlan(NamedTuple):
    """One stage: bytes that stay on disk, those that go when it is done, peak memory of a worker, of all processes."""

    stage: str
    disk: int
    scratch: int
    memory_a_worker: int
    memory: int


class _Plan:
    """The stages of a recipe over a corpus, on so many workers."""

    def __init__(self, recipe: Recipe, corpus: CorpusSize, workers: int) -> None:
        self.stages: list[StagePlan] = []
        self._recipe = recipe
        self._corpus = corpus
        self._workers = workers
        self._libraries = 0
        self._group = group_memory(corpus.characters, min(corpus.text, recipe.extract.shard_characters))
        self._text_disk = self._packed(corpus.text, corpus.documents)
        self._kept = corpus.rest.documents / max(1, corpus.documents)
        shards = 1 + corpus.text // round(MEAN_SHARD * recipe.extract.shard_characters)
        self._driver = DRIVER_BYTES + self._group + SUMMARY_BYTES * shards

    def _packed(self, characters: int, documents: int) -> int:
        return int(self._corpus.packed * characters) + ROW_BYTES * documents

    def add(self, name: str, disk: int, working_set: int, *, scratch: int = 0, alone: int = 0) -> None:
        """Add a stage; ``working_set`` is a worker's memory beside its libraries, ``alone`` that of one that trains."""
        self._libraries = max(self._libraries, LIBRARIES[name])
        libraries = self._libraries if self._workers > 1 else max(self._libraries + ALONE_MORE, ALONE_BYTES)
        worker, one = libraries + working_set, libraries + max(alone, working_set)
        driver = self._driver if self._workers > 1 else 0
        self.stages.append(StagePlan(name, disk, scratch, one, (self._workers - 1) * worker + one + driver))

    def add_shards(self, name: str, working_set: int = 0, disk: int = 0, share: float = 1.0) -> None:
        """Add a stage that streams this share of the shards by row groups; the rest is what it has beside them."""
        self.add(name, round(share * self._text_disk) + disk, self._group + working_set)

    def extract(self) -> None:
        """Memory: the longest page being parsed, and a row group being written for every source that one file feeds."""
        sources_per_file = max(1, sum(source.kind == "pile" for source in self._recipe.sources.values()))
        page = PAGE_COPIES * min(self._corpus.longest, self._recipe.extract.largest_page)
        working_set = (
            page + sources_per_file * (self._group // 2) + _language_model_bytes(self._recipe.resolved_extract)
        )
        self.add("extract", self._text_disk, working_set)

    def quality(self) -> None:
        """One process trains on the beginnings of all sampled documents; then the workers score."""
        sampled, characters = self._corpus.training_sample(self._recipe)
        share = self._corpus.share(self._recipe, self._recipe.filtered)
        disk = round(share * self._text_disk) + self._packed(characters, sampled) + 4 * BUCKETS
        self.add("quality", disk, self._group, alone=TRAINING_BYTES + 2 * characters)

    def filter(self) -> None:
        """Only sources with filters are read."""
        self.add_shards("filter", share=self._corpus.share(self._recipe, self._recipe.filters))

    def deduplicate(self) -> None:
        """The figures of ``deduplication_state_bytes``, plus the documents that are written."""
        corpus = self._corpus
        steps = deduplication_state_bytes(
            corpus.documents,
            self._recipe.deduplicate,
            characters=corpus.characters,
            largest_shard=max(1, self._recipe.extract.shard_characters // max(1, corpus.characters)),
            candidate_share=corpus.near_duplicates,
        )
        scratch = sum(step.disk for step in steps if step.scratch)
        disk = round(self._kept * self._text_disk) + sum(step.disk for step in steps) - scratch
        self.add("deduplicate", disk, max(step.memory for step in steps) - LIBRARY_BYTES, scratch=scratch)

    def exact(self) -> None:
        """A stage over the shards, with the state of its search."""
        corpus, recipe = self._corpus.rest, self._recipe
        state = exact_state_bytes(corpus.documents, corpus.characters, recipe.extract.shard_characters, recipe.exact)
        self.add_shards("exact", state.memory, state.disk, self._kept)

    def decontaminate(self) -> None:
        """The n-grams of all task texts are in the memory of each worker."""
        self.add_shards("decontaminate", TASK_TEXT_BYTES * task_texts(self._recipe), share=self._kept)

    def tokenize(self) -> None:
        """Tokens are on disk as encoded, merged once for each level of the exchange, and in the stores."""
        corpus, settings = self._corpus.rest, self._recipe.tokenize
        vocabulary = settings.vocabulary or GPT2_VOCABULARY
        width = dtype_for(vocabulary).itemsize
        tokens = int(corpus.text / CHARACTERS_PER_TOKEN) + corpus.documents
        exchange = encoded_exchange(corpus.text, tokens, len(self._recipe.sources))
        encoded = 1 + sum(1 for _ in exchange.merges())
        disk = (encoded + 1) * width * tokens + (INDEX_ROW_BYTES + encoded * ENCODED_ROW_BYTES) * corpus.documents
        disk += TOKENIZER_ENTRY_BYTES * vocabulary
        if settings.vocabulary:
            disk += self._packed(min(settings.sample_bytes, corpus.text), 0)
        unit = min(TEXT_BYTES_PER_UNIT, corpus.text)
        encoding = self._group + 3 * width * int(unit / CHARACTERS_PER_TOKEN)
        by_gigatoken = settings.library != "tokenizers" and find_spec("gigatoken") is not None
        encoding += BYTES_PER_CHARACTER_ENCODED[by_gigatoken] * min(MAX_BATCH_CHARACTERS, unit)
        gathering = BATCHES_HELD * width * min(TOKENS_PER_BATCH, tokens)
        self.add("tokenize", disk, max(encoding, gathering))


def plan(recipe: Recipe, corpus: CorpusSize, workers: int) -> dict[str, Any]:
    """The plan for a corpus of this size, as JSON.

    ``fits`` compares it with the memory of this machine and the free disk at the recipe's ``input``. Raises ``Failure``
    if that folder does not exist.
    """
    if not recipe.input.is_dir():
        raise Failure(f"{recipe.input}: no such folder; give the folder of the corpus by --input FOLDER")
    planned = _Plan(recipe, corpus, workers)
    planned.extract()
    if recipe.filtered:
        planned.quality()
    planned.add_shards("clean", _language_model_bytes(recipe.resolved_clean))
    if recipe.filters:
        planned.filter()
    planned.deduplicate()
    if recipe.exact.kinds:
        planned.exact()
    planned.decontaminate()
    planned.tokenize()
    stages = planned.stages
    left = accumulate(stage.disk for stage in stages)
    disk = max(so_far + stage.scratch for so_far, stage in zip(left, stages, strict=True))
    memory = max(stage.memory for stage in stages)
    scheduled = efficiency_plan(recipe, corpus, workers)
    hours, core_hours = scheduled.pop("stages"), scheduled.pop("core_hours")
    memory_here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk_here = shutil.disk_usage(recipe.input).free
    return {
        "documents": corpus.documents,
        "characters_a_document": corpus.characters,
        "near_duplicates": corpus.near_duplicates,
        "workers": workers,
        "stages": [
            {**stage._asdict(), "hours": hours[stage.stage], "core_hours": core_hours[stage.stage]} for stage in stages
        ],
        "disk": disk,
        "memory": memory,
        "here": {"disk": disk_here, "memory": memory_here},
        "fits": {"disk": disk <= disk_here, "memory": memory <= memory_here},
        "schedule": scheduled,
    }


def _language_model_bytes(settings: LanguageSettings) -> int:
    """Memory of the fastText model that tells languages; 0 where none is given."""
    return settings.language_model.stat().st_size if settings.language_model else 0


def print_plan(planned: dict[str, Any]) -> None:
    """Print a plan as a table on stdout."""
    size = f"{planned['documents']:,} documents of {planned['characters_a_document']:,} characters"
    table = Table("stage", title=f"{size}, {planned['workers']} workers", title_justify="left")
    for column in ("disk", "and for a time", "memory per worker", "memory", "hours"):
        table.add_column(column, justify="right")
    for stage in planned["stages"]:
        sizes = [_format_size(stage[key]) for key in ("disk", "scratch", "memory_a_worker", "memory")]
        table.add_row(stage["stage"], *sizes, f"{stage['hours']:,.1f}")
    run = planned["schedule"]
    totals = (_format_size(planned["disk"]), "", "", _format_size(planned["memory"]), f"{run['hours']:,.1f}")
    table.add_row("all", *totals, style="bold")
    here, console = planned["here"], output(soft_wrap=True)
    console.print(table)
    near = f"{planned['near_duplicates']:.0%} of them with a near duplicate"
    console.print(f"Disk with duplicates dropped and nothing else, {near}, and no file removed on the way.")
    console.print(
        f"Hours from begin to end, at the costs of {run['costs']}; of pages, with {run['page_bytes']:.1f} bytes for a "
        "character."
    )
    idle = ", ".join(f"{step} {share:.1%}" for step, share in run["idle"].items())
    console.print(f"Of the workers' hours {run['efficiency']:.1%} are work; most are idle at {idle}.")
    for key, name in (("memory", "memory"), ("disk", "free disk")):
        verdict = "enough" if planned["fits"][key] else "too little"
        console.print(f"This machine has {_format_size(here[key])} of {name}: {verdict}.")


def _format_size(size: float) -> str:
    return f"{size / 1e12:.2f} TB" if size >= 1e12 else f"{size / 1e9:.1f} GB"
