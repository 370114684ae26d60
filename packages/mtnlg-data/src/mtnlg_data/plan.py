"""What a curation takes of disk, memory and time, said before it runs.

    disk     nothing is assumed to be dropped, so every stage is told its most
    memory   of each process by what it holds at once; so many workers, and the one process that hands out the work
    hours    characters over the rate that was measured; of pages the bytes of the WARC files that are here already

A corpus is known here by two numbers: how many documents are extracted, and how long they are. The paper's had 320
million behind deduplication (paper.md 4.4), of about 4,600 characters (339 B tokens). Deduplication's own figures are
those of ``dedup.plan``.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from mtnlg_data.dedup.plan import state_bytes
from mtnlg_data.extract.text import ExtractSettings
from mtnlg_data.quality.classifier import WINDOW
from mtnlg_data.tokens.stage import TEXT_AT_ONCE, TOKENS_AT_ONCE
from mtnlg_data.tokens.store import dtype_for

from .console import Failure
from .document import CHARACTERS_A_GROUP, ROWS_A_GROUP

if TYPE_CHECKING:
    from .recipe import Recipe

PACKED = 0.40  # bytes on disk a character of English, in Parquet at zstd-3
ROW = 64  # bytes a document beside its text: id, source, language, score, packed
CHARACTERS_A_TOKEN = 4.3  # of English by GPT-2's tokenizer
INDEX_ROW = 20  # bytes a document in an .idx
ENCODED_ROW = 16  # and in what is encoded: a key and an offset
SUMMARY = 20_000  # bytes that a shard's account takes in the process that gathers them
GPT2_VOCABULARY = 50_257
PROCESS = 420_000_000  # bytes of Python and all libraries that the stages import; MEASURED came before it, and is why
SCAN = 150_000_000  # of the tasks' n-grams, and of where they stand in the documents at hand
PAGE = 30  # bytes that a page takes for each of its characters: the parser's tree of it, and texts on the way
#: Millions of characters a second and worker; of pages, millions of bytes of .warc.gz. Medians, measured on
#: two busy cores with plain English news, in which every document held sentences of the tasks: the best for cleaning
#: and the worst for decontamination.
RATES = {
    "extract": 6.9,
    "quality": 47.0,
    "clean": 44.4,
    "deduplicate": 45.8,
    "decontaminate": 8.8,
    "tokenize": 2.1,
}
MEASURED = "benchmarks/results/2026-11-21-plan.json"


class StagePlan(NamedTuple):
    """One stage: bytes it leaves on disk, peak bytes of a worker and of all processes, hours where a rate is known."""

    stage: str
    disk: int
    memory_a_worker: int
    memory: int
    hours: float | None


class Corpus(NamedTuple):
    """What is to be curated, and by how many processes."""

    documents: int
    characters: int  # of each, on average
    workers: int

    @property
    def text(self) -> int:
        """Characters of all."""
        return self.documents * self.characters


def plan(recipe: Recipe, documents: int, characters: int, workers: int) -> dict[str, Any]:
    """The plan of a curation of so many documents, each of so many characters on average, as JSON.

    ``fits`` says whether memory and free disk of this machine are enough; the disk is that of the recipe's ``input``.
    Raises ``Failure`` where there is no such folder.
    """
    if not recipe.input.is_dir():
        raise Failure(f"{recipe.input}: no such folder; --set input=FOLDER is where the corpus lies, or will lie")
    corpus = Corpus(documents, characters, workers)
    judged = [_quality(recipe, corpus)] if recipe.filtered else []
    stages = [_extract(recipe, corpus), *judged, _text("clean", corpus), _deduplicate(recipe, corpus)]
    stages += [_text("decontaminate", corpus, SCAN), _tokenize(recipe, corpus)]
    disk, memory = sum(stage.disk for stage in stages), max(stage.memory for stage in stages)
    memory_here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    disk_here = shutil.disk_usage(recipe.input).free
    return {
        "documents": documents,
        "characters_a_document": characters,
        "workers": workers,
        "stages": [stage._asdict() for stage in stages],
        "disk": disk,
        "memory": memory,
        "here": {"disk": disk_here, "memory": memory_here},
        "fits": {"disk": disk <= disk_here, "memory": memory <= memory_here},
        "rates": MEASURED,
    }


def _stage(name: str, corpus: Corpus, disk: int, held: int, hours: float | None) -> StagePlan:
    """``held`` is what a worker holds beside its libraries; the process that hands out work holds every summary."""
    worker = PROCESS + held
    shards = 1 + corpus.text // ExtractSettings().shard_characters
    return StagePlan(name, disk, worker, corpus.workers * worker + PROCESS + SUMMARY * shards, hours)


def _hours(rate: str, amount: float, workers: int) -> float | None:
    return amount / (RATES[rate] * 1e6 * workers * 3600) if rate in RATES else None


def _packed(corpus: Corpus) -> int:
    return int(PACKED * corpus.text) + ROW * corpus.documents


def _group(corpus: Corpus) -> int:
    """A row group of text: as Arrow read it, as Python's strings, and as it is written again."""
    return 3 * min(ROWS_A_GROUP * corpus.characters, 2 * CHARACTERS_A_GROUP)


def _text(name: str, corpus: Corpus, held: int = 0) -> StagePlan:
    """A stage that goes through the shards, a row group at a time; ``held`` is what it has beside that."""
    return _stage(name, corpus, _packed(corpus), _group(corpus) + held, _hours(name, corpus.text, corpus.workers))


def _extract(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """The longest page at work, and of every source that one file feeds a row group in the making."""
    fed = max(1, sum(source.kind == "pile" for source in recipe.sources.values()))
    held = PAGE * recipe.extract.largest_page + 2 * recipe.extract.largest + fed * _group(corpus)
    return _stage("extract", corpus, _packed(corpus), held, _hours_of_pages(recipe, corpus))


def _hours_of_pages(recipe: Recipe, corpus: Corpus) -> float | None:
    """Of the WARC files that are here; none where some source has no file yet."""
    try:
        pages = sum(file.path.stat().st_size for file in recipe.files() if file.kind == "warc")
    except Failure:
        return None
    return _hours("extract", pages, corpus.workers)


def _quality(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """One process trains, with the beginnings of all its samples; then the workers score."""
    sampled = 2 * min(recipe.quality.sample, corpus.documents)
    scoring = _text("quality", corpus)
    training = 2 * PROCESS + 2 * sampled * min(WINDOW, corpus.characters)
    return scoring._replace(memory=max(scoring.memory, training))


def _deduplicate(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """Its own figures, step by step; the documents that are left come on top."""
    steps = state_bytes(corpus.documents, recipe.deduplicate, characters=corpus.characters)
    worker = max(step.memory for step in steps)
    memory = max(step.memory * (corpus.workers if step.workers else 1) for step in steps)
    whole = _stage("deduplicate", corpus, 0, 0, _hours("deduplicate", corpus.text, corpus.workers))
    beside = whole.memory - corpus.workers * PROCESS
    return whole._replace(
        disk=_packed(corpus) + sum(step.disk for step in steps), memory_a_worker=worker, memory=memory + beside
    )


def _tokenize(recipe: Recipe, corpus: Corpus) -> StagePlan:
    """Tokens lie three times: as encoded, in parts, and in the stores."""
    width = dtype_for(recipe.tokenize.vocabulary or GPT2_VOCABULARY).itemsize
    tokens = int(corpus.text / CHARACTERS_A_TOKEN) + corpus.documents
    disk = 3 * width * tokens + (2 * INDEX_ROW + ENCODED_ROW) * corpus.documents
    encoding = 3 * min(TEXT_AT_ONCE, corpus.text) + 3 * width * int(TEXT_AT_ONCE / CHARACTERS_A_TOKEN)
    gathering = 3 * width * min(TOKENS_AT_ONCE, tokens)
    held = max(encoding, gathering)
    return _stage("tokenize", corpus, disk, held, _hours("tokenize", corpus.text, corpus.workers))


def show(planned: dict[str, Any]) -> None:
    """Print a plan as a table on stdout."""
    many = f"{planned['documents']:,} documents of {planned['characters_a_document']:,} characters"
    table = Table("stage", title=f"{many}, {planned['workers']} workers", title_justify="left")
    for column in ("on disk", "a worker holds", "all hold", "hours"):
        table.add_column(column, justify="right")
    for stage in planned["stages"]:
        hours = "" if stage["hours"] is None else f"{stage['hours']:,.1f}"
        sizes = [_size(stage[of]) for of in ("disk", "memory_a_worker", "memory")]
        table.add_row(stage["stage"], *sizes, hours)
    known = [stage["hours"] for stage in planned["stages"] if stage["hours"] is not None]
    hours = f"{sum(known):,.1f}" if len(known) == len(planned["stages"]) else ""
    table.add_row("all", _size(planned["disk"]), "", _size(planned["memory"]), hours, style="bold")
    here, console = planned["here"], Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print("At most: nothing is assumed to be dropped, and no file to be removed on the way.")
    if known:
        console.print(f"Hours as measured in {planned['rates']}; of pages, for the files that are here.")
    for what, of in (("memory", "memory"), ("disk", "free disk")):
        verdict = "enough" if planned["fits"][what] else "too little"
        console.print(f"Here are {_size(here[what])} of {of}: {verdict}.")


def _size(n: float) -> str:
    return f"{n / 1e12:.2f} TB" if n >= 1e12 else f"{n / 1e9:.1f} GB"
