"""What decontamination keeps and cuts of each document, decided from match positions alone (paper.md 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.engine import key_of

from .matches import read_matches_to_cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_data.document import UnitOutput
    from mtnlg_data.steps.decontaminate import DecontaminateSettings

    from .matches import Match, ScanUnit


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


@dataclass(frozen=True)
class ShardCutPlans:
    """The cut plans of one shard's documents; iterating computes them anew."""

    scan: ScanUnit
    count: UnitOutput
    settings: DecontaminateSettings

    def __iter__(self) -> Iterator[tuple[int, CutPlan]]:
        """Row and plan of each document with matches to cut, in order."""
        is_cut = np.load(self.count.path)
        for row, length, matches in read_matches_to_cut(self.scan.output, is_cut):
            kept, cuts = plan_cuts(length, matches, self.settings.shortest)
            reason = "contaminated" if not kept else "split" if len(kept) > self.settings.most_splits else None
            yield row, CutPlan(kept, cuts, reason)

    @property
    def key(self) -> str:
        """Digest of the matches, the shard's name, the common n-grams and the settings."""
        return key_of(
            self.scan.key, self.scan.shard.path.name, self.count.key, self.settings.model_dump(exclude={"alarm_share"})
        )


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
