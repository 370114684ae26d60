"""What is cut out of a document for the tasks' n-grams that it holds, decided from numbers alone (paper.md 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from mtnlg_data.engine import key_of
from mtnlg_data.settings import Settings

from .matches import matches_to_cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mtnlg_data.document import Made

    from .matches import Match, Scan


class DecontaminateSettings(Settings):
    """Which overlap is contamination, and what is cut; the defaults are the paper's (4.4)."""

    n: PositiveInt = Field(13, description="words of an n-gram")
    minimum: PositiveInt = Field(8, description="words of the shortest task text that counts as one n-gram")
    common: PositiveInt = Field(10, description="n-grams in so many documents are left alone")
    window: NonNegativeInt = Field(200, description="characters cut on each side of a match")
    shortest: NonNegativeInt = Field(200, description="characters of the shortest piece that is kept")
    most_splits: PositiveInt = Field(10, description="pieces of a document that is kept")

    @model_validator(mode="after")
    def _are_in_order(self) -> Self:
        if self.minimum > self.n:
            raise ValueError(f"minimum = {self.minimum} is more than n = {self.n}")
        return self


class Cutting(NamedTuple):
    """One match for which a text is cut: characters ``start`` to ``end`` of it go."""

    match: Match
    start: int
    end: int


def pieces(length: int, matches: Sequence[Match], shortest: int) -> tuple[list[tuple[int, int]], list[Cutting]]:
    """What is kept of a text of this length, as spans, and what is cut, given its matches in order of start."""
    begin = 0
    kept: list[tuple[int, int]] = []
    cuts: list[Cutting] = []
    for match in matches:
        if match.start < begin:
            continue
        if begin and length - begin < shortest:
            break
        stop = match.stop + 1 if match.stop > begin else begin
        kept.append((begin, stop))
        begin = min(match.resume + 1, length)
        cuts.append(Cutting(match, stop, begin))
    kept.append((begin, length))
    return [(start, end) for start, end in kept if end - start >= max(1, shortest)], cuts


class Decision(NamedTuple):
    """What becomes of a document with matches: the spans of it that are kept, or the reason why all of it goes."""

    kept: list[tuple[int, int]]
    cuts: list[Cutting]
    reason: str | None


@dataclass(frozen=True)
class Decisions:
    """What becomes of the documents of one shard, decided from numbers alone."""

    scan: Scan
    count: Made
    settings: DecontaminateSettings

    def __iter__(self) -> Iterator[tuple[int, Decision]]:
        """Of every document with matches that are to be cut: its row and the decision, in order."""
        is_cut = np.load(self.count.path)
        for row, length, matches in matches_to_cut(self.scan.output, is_cut):
            kept, cuts = pieces(length, matches, self.settings.shortest)
            reason = "contaminated" if not kept else "split" if len(kept) > self.settings.most_splits else None
            yield row, Decision(kept, cuts, reason)

    @property
    def key(self) -> str:
        """A digest of all that they depend on."""
        return key_of(self.scan.key, self.scan.shard.path.name, self.count.key, self.settings.model_dump())
