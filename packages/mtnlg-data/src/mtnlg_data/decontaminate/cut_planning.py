"""Plan what decontamination keeps and cuts of each document, from match positions alone (paper.md 4.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .matches import read_matches_to_cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .matches import Match


class Cut(NamedTuple):
    """Characters ``start`` up to ``end`` of a text, cut for one match."""

    match: Match
    start: int
    end: int


class CutPlan(NamedTuple):
    """What happens to a document with matches: the spans kept, or the reason to drop the whole document."""

    kept: list[tuple[int, int]]
    cuts: list[Cut]
    reason: str | None


def plan_shard(matches: Path, rare: Path, shortest: int, most_splits: int) -> Iterator[tuple[int, CutPlan]]:
    """Yield row and plan of each document with matches to cut, in order, from the files of matches and rare n-grams."""
    for row, length, row_matches in read_matches_to_cut(matches, np.load(rare)):
        kept, cuts = plan_cuts(length, row_matches, shortest)
        reason = "contaminated" if not kept else "split" if len(kept) > most_splits else None
        yield row, CutPlan(kept, cuts, reason)


def plan_cuts(length: int, matches: Sequence[Match], shortest: int) -> tuple[list[tuple[int, int]], list[Cut]]:
    """Spans kept and cuts made in a text of this length, given its matches in order of start."""
    begin = 0
    kept: list[tuple[int, int]] = []
    cuts: list[Cut] = []
    for match in matches:
        if match.start < begin:
            continue
        if begin and length - begin < shortest:
            break
        stop = match.stop + 1 if match.stop > begin else begin
        kept.append((begin, stop))
        begin = min(match.resume + 1, length)
        cuts.append(Cut(match, stop, begin))
    kept.append((begin, length))
    return [(start, end) for start, end in kept if end - start >= max(1, shortest)], cuts
