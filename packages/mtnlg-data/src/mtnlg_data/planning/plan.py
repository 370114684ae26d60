"""Disk, memory and hours of a curation, estimated step by step before it runs.

    disk     bytes that each step leaves, as if only duplicates were dropped; the total is the peak
    memory   bytes that each worker holds at once, times the workers, plus the process that hands out the work
    hours    core-seconds of the work divided by the workers, plus the time of what one process does by itself

Each step returns its ``cost`` on a corpus (``corpus_size``), as measured by benchmarks/unit_costs.py for English. A
step whose ``cost`` is None is reported as unknown.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from mtnlg_data.console import Failure, output
from mtnlg_data.engine.machine import memory_bytes
from mtnlg_data.report.numbers import NARROW, data_size, duration

if TYPE_CHECKING:
    from mtnlg_data.recipe import Recipe

    from .corpus_size import CorpusSize

DRIVER_BYTES = 225_000_000  # of the process that hands out the work
SUMMARY_BYTES = 20_000  # of each shard's summary in that process
MEAN_SHARD = 0.75  # mean size of a shard over the largest: groups of files fill a half to a whole


def plan(recipe: Recipe, corpus: CorpusSize, workers: int) -> dict[str, Any]:
    """The plan for a corpus of this size, as JSON; figures of steps whose cost is unknown are None.

    ``fits`` compares it with the memory of this machine and the free disk at the recipe's ``input``. Raises ``Failure``
    if that folder does not exist.
    """
    if not (isinstance(recipe.input, Path) and recipe.input.is_dir()):
        raise Failure(f"{recipe.input}: no such folder; give the folder of the corpus by --input FOLDER")
    stages: list[dict[str, Any]] = []
    size, written, disk, memory = corpus, 0, 0, 0
    for step in recipe.steps:
        through = [name for name in step.sources if step.role_of(name) == "through"]
        if not through:
            continue
        share = size.share(recipe, through)
        cost = step.cost(size._replace(documents=round(share * size.documents)))
        stage: dict[str, Any] = dict.fromkeys(("disk", "scratch", "memory_per_worker", "memory", "hours", "core_hours"))
        if cost is not None:
            shards = size.text / (MEAN_SHARD * corpus.shard_characters)
            driver = DRIVER_BYTES + round(SUMMARY_BYTES * shards) if workers > 1 else 0
            total = (workers - 1) * cost.memory + max(cost.memory, cost.memory_alone) + driver
            stage = {
                "disk": cost.disk,
                "scratch": cost.scratch,
                "memory_per_worker": max(cost.memory, cost.memory_alone),
                "memory": total,
                "hours": (cost.core_seconds / workers + cost.seconds_alone) / 3600,
                "core_hours": (cost.core_seconds + cost.seconds_alone) / 3600,
            }
            written += cost.disk
            disk, memory = max(disk, written + cost.scratch), max(memory, total)
            size = size._replace(documents=round(cost.kept * size.documents))
        stages.append({"stage": step.name, **stage})
    here = {"disk": shutil.disk_usage(recipe.input).free, "memory": memory_bytes()}
    return {
        "documents": corpus.documents,
        "characters_per_document": corpus.characters,
        "near_duplicates": corpus.near_duplicates,
        "workers": workers,
        "stages": stages,
        "disk": disk,
        "memory": memory,
        "hours": sum(stage["hours"] or 0 for stage in stages),
        "unknown": [stage["stage"] for stage in stages if stage["hours"] is None],
        "here": here,
        "fits": {"disk": disk <= here["disk"], "memory": memory <= here["memory"]},
        "page_bytes": corpus.page_bytes,
    }


def print_plan(planned: dict[str, Any]) -> None:
    """Print a plan as a table on stdout."""
    size = "{documents:,} documents of {characters_per_document:,} characters, {workers} workers".format_map(planned)
    table = Table("stage", title=size, title_justify="left")
    for column in ("disk", "temporary disk", "memory per worker", "memory", "time"):
        table.add_column(column, justify="right")
    for stage in planned["stages"]:
        *sizes, hours = [stage[key] for key in ("disk", "scratch", "memory_per_worker", "memory", "hours")]
        cells = ["unknown"] * 5 if hours is None else [*map(data_size, sizes), _time(hours)]
        table.add_row(stage["stage"], *cells)
    disk, memory = data_size(planned["disk"]), data_size(planned["memory"])
    table.add_row("all", disk, "", "", memory, _time(planned["hours"]), style="bold")
    console = output(soft_wrap=True)
    console.print(table)
    console.print(
        f"Disk if only duplicates are dropped, {planned['near_duplicates']:.0%} of them with a near duplicate, and no "
        "intermediate file is removed."
    )
    if planned["unknown"]:
        console.print(f"The cost of {' and '.join(planned['unknown'])} is unknown and not in the sums.")
    for key, name in (("memory", "memory"), ("disk", "free disk")):
        verdict = "enough" if planned["fits"][key] else "too little"
        console.print(f"This machine has {data_size(planned['here'][key])} of {name}: {verdict}.")


def _time(hours: float) -> str:
    return duration(3600 * hours).replace(NARROW, " ")
