"""What decontamination keeps and cuts of each document, decided from match positions alone (paper.md 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from pydantic import NonNegativeInt, PositiveInt, model_validator

from mtnlg_data.engine import key_of
from mtnlg_data.settings import Settings, setting

from .matches import read_matches_to_cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_data.document import UnitOutput

    from .matches import Match, ScanUnit


class DecontaminateSettings(Settings):
    """What counts as contamination, and how much around it is cut; the defaults are the paper's (4.4)."""

    n: PositiveInt = setting(13, "Length of an n-gram.", unit="words", paper="13 in Megatron's tool")
    minimum: PositiveInt = setting(
        8, "Shortest task text that counts as one n-gram.", unit="words", paper="8 in Megatron's tool"
    )
    common: PositiveInt = setting(
        10,
        "n-grams in as many documents or more are not cut.",
        unit="documents",
        paper="10 in Megatron's tool",
    )
    window: NonNegativeInt = setting(200, "Text cut on each side of a match.", unit="characters", paper="200")
    shortest: NonNegativeInt = setting(200, "Shortest piece that is kept.", unit="characters", paper="200")
    most_splits: PositiveInt = setting(10, "Most pieces of a document that is kept.", paper="10")
    alarm_share: float = setting(0.1, "Warn of a source that loses more as a whole.", unit="share", ge=0, le=1)

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if self.minimum > self.n:
            raise ValueError(f"minimum = {self.minimum} is more than n = {self.n}")
        return self


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
