"""Pipeline schedules, one file each: the orders in which ranks work, by the name in ``train.schedule``.

Each file of this folder defines ``SCHEDULE``; the file name is the schedule's, with ``_`` for ``-`` and before a digit.
An installed package adds a schedule by an entry point of the group ``mtnlg_parallel.schedules``;
``package.module:name`` and ``path/file.py:name`` name any other. `mtnlg_parallel.conformance` tests a schedule as
``train.schedule`` of its cases.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mtnlg_model.console import UsageFailure
from mtnlg_model.registry import load, references

from .schedule import KINDS, Action, Order, Schedule

if TYPE_CHECKING:
    from mtnlg_model.config import ModelConfig
    from mtnlg_parallel.layout import Layout

__all__ = ["DEFAULT", "OURS", "Action", "Order", "Schedule", "load_schedule", "orders", "schedule_error"]

GROUP: Final = "mtnlg_parallel.schedules"
OURS: Final = {
    module.name.strip("_").replace("_", "-"): f"{__name__}.{module.name}:SCHEDULE"
    for module in pkgutil.iter_modules(__path__)
    if module.name != "schedule"
}
"""References of the schedules in this folder, by name."""

DEFAULT: Final = "1f1b"


@cache
def schedule_names() -> tuple[str, ...]:
    """Names of all schedules: ours, then those of entry points."""
    return tuple(references(GROUP, OURS))


@cache
def load_schedule(name: str) -> Schedule:
    """The schedule of a name or a reference. Raises ``UsageFailure`` that lists the names."""
    schedule = load(name, references(GROUP, OURS), f'train.schedule = "{name}"')
    if not isinstance(schedule, Schedule):
        raise UsageFailure(f"{name}: a {type(schedule).__name__}, not a Schedule (mtnlg_parallel.schedules)")
    return schedule


def schedule_of(chunks: int) -> str:
    """Name of the first of our schedules that can order ``chunks`` parts of the decoder per rank."""
    return next(name for name in OURS if load_schedule(name).takes(chunks))


def resolve_name(name: str) -> str:
    """Check a name or a reference without loading it; makes a file's path absolute, as ranks may run in another folder.

    Raises ``UsageFailure`` that lists the names.
    """
    if ":" in name:
        return str(Path(name).absolute()) if ".py:" in name else name
    if name not in (names := schedule_names()):
        raise UsageFailure(f"schedule {name}: unknown; {', '.join(names)}, package.module:name or file.py:name")
    return name


@cache
def orders(name: str, ranks: int, chunks: int, micro_batches: int) -> tuple[Order, ...]:
    """Every rank's actions in one step. Raises ``UsageFailure`` unless a rank has each pass once, in a valid order."""
    schedule = load_schedule(name)
    made = schedule.orders(ranks, chunks, micro_batches)
    kinds = KINDS if schedule.splits_backward else KINDS[:2]
    work = sorted(Action(kind, m, c) for kind in kinds for m in range(micro_batches) for c in range(chunks))
    for rank, order in enumerate(made):
        if sorted(order) != work:
            raise UsageFailure(f"schedule {name}: rank {rank} of {ranks} must have each {', '.join(kinds)} pass once")
        places = {action: place for place, action in enumerate(order)}
        for before, kind in pairwise(kinds):
            if any(places[a] < places[a._replace(kind=before)] for a in order if a.kind == kind):
                raise UsageFailure(f"schedule {name}: rank {rank} of {ranks} has a {kind} pass before its input")
    return made


def schedule_error(layout: Layout, config: ModelConfig, name: str, chunks: int) -> str | None:
    """Why a schedule with ``chunks`` parts per rank does not fit this layout and decoder; None if it does."""
    schedule = load_schedule(name)
    if schedule.most_chunks is not None and chunks > schedule.most_chunks:
        others = " or ".join(f'"{other}"' for other in OURS if load_schedule(other).takes(chunks))
        return f'train.chunks = {chunks} needs train.schedule = {others}, not "{name}"'
    if chunks < schedule.fewest_chunks:
        return f'train.schedule = "{name}" needs train.chunks = {schedule.fewest_chunks} or more'
    if chunks > 1 and layout.pp == 1:
        return f"train.chunks = {chunks} needs layout.pp = 2 or more; one stage has nothing to interleave"
    if layout.pp * chunks > config.layers:
        most = config.layers // layout.pp
        return f"layout.pp = {layout.pp} x train.chunks = {chunks} for model.layers = {config.layers}; use 1 to {most}"
    return None
