"""Keep one of near duplicates, of the source named first; OUT/dropped/duplicates-*.parquet list the others."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import PositiveInt, ValidationInfo, field_validator, model_validator

from mtnlg_data.console import say
from mtnlg_data.quantities import alarm_share
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import Cost, Step

if TYPE_CHECKING:
    from mtnlg_data.document import Shard
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide


ShingleKind = Literal["word", "character"]
SIGNATURE, MISSED = 260, 3  # see ``choose_bands``
LONGEST_SIGNATURE = 1 << 16  # 8-byte values per document of a batch


@cache
def choose_bands(threshold: float) -> tuple[int, int]:
    """Bands and rows to find pairs of at least this similarity, with at most ``SIGNATURE`` values in all.

    A pair of similarity J is compared with probability 1 - (1 - J**rows)**bands. As in datasketch's ``MinHashLSH`` the
    choice minimizes a weighted sum of two areas: of pairs below the threshold that are compared, and of pairs above it
    that are not. Each compared pair is verified, so a missed pair weighs ``MISSED`` times one that is compared in vain;
    with this weight, a threshold of 0.8 gives the paper's 20 and 13.
    """
    similarities = (np.arange(1000) + 0.5) / 1000
    rows = np.arange(1, SIGNATURE + 1)[:, None]
    compared = 1 - (1 - similarities**rows) ** (SIGNATURE // rows)
    best = int(np.where(similarities < threshold, compared, MISSED * (1 - compared)).sum(1).argmin()) + 1
    return SIGNATURE // best, best


class DeduplicateSettings(Settings):
    """What counts as a duplicate and how duplicates are searched; the defaults are the paper's (4.3)."""

    threshold: float = setting(0.8, "Lowest Jaccard similarity of a duplicate pair.", paper="0.8", gt=0, le=1)
    bands: PositiveInt = setting(
        None,
        "Bands: documents with an equal band are compared; default by the threshold: 20 for 0.8.",
        paper="20",
        validate_default=True,
    )
    rows: PositiveInt = setting(
        None,
        "MinHash values per band; default by the threshold: 13 for 0.8.",
        paper="13",
        validate_default=True,
    )
    shingle: ShingleKind = setting("word", "Unit of shingles.")
    shingle_length: PositiveInt = setting(5, "Words or characters per shingle.")
    rounds: PositiveInt = setting(11, "Pivots per bucket, each compared with all that remain in it.", paper="11")
    seed: int = setting(1, "Seed of the hash functions and of the pivots.", ge=0, lt=1 << 32)
    alarm_share: float = alarm_share(0.5, "Stop if a source of at least 100 documents would lose more.")

    @field_validator("bands", "rows", mode="before")
    @classmethod
    def _for_threshold(cls, given: object, info: ValidationInfo) -> object:
        chosen = choose_bands(info.data.get("threshold", 0.8))
        return chosen[info.field_name == "rows"] if given is None else given

    @model_validator(mode="after")
    def _check_signature(self) -> Self:
        if self.bands * self.rows > LONGEST_SIGNATURE:
            raise ValueError(
                f"bands = {self.bands} times rows = {self.rows} values per signature, more than "
                f"{LONGEST_SIGNATURE}; RefinedWeb's, 450 x 20, is the longest that is known"
            )
        return self


class Deduplicate(Step[DeduplicateSettings, Settings]):
    """Fuzzy deduplication across all sources (paper.md 4.3)."""

    number, version = 4, 2
    recorded = False  # in the ledger instead

    def check(self) -> None:
        """Print the share of pairs that the search will find, at and around the threshold."""
        bands, rows, threshold = self.settings.bands, self.settings.rows, self.settings.threshold
        around = sorted({max(0.0, threshold - 0.1), threshold, min(1.0, threshold + 0.1)})
        chances = {similarity: 1 - (1 - similarity**rows) ** bands for similarity in around}
        shares = ", ".join(
            f"{share:.1%} of pairs of similarity {similarity:.3g}" for similarity, share in chances.items()
        )
        warning = "WARNING: " if chances[threshold] < 0.5 else ""
        say(f"{warning}deduplicate: {bands} bands of {rows} values find {shares}")

    def cost(self, corpus: CorpusSize) -> Cost:
        """State has a fixed width per document and band; sets of shingles, one per candidate, are removed at the end.

        A cluster of near duplicates has four documents on average, of which all but one are removed.
        """
        near, length = corpus.near_duplicates, 6 if self.settings.shingle == "word" else 1
        candidate = 8 * corpus.characters // length + 8 * self.settings.bands + 120
        kept = 1 - 0.75 * near
        state = (47 * self.settings.bands + 110) * corpus.documents
        return Cost(
            core_seconds=0.0169 * corpus.text / 1e6,
            memory=350_000_000 + min(650_000_000, 4 * round(near * candidate * corpus.documents)) + corpus.group // 4,
            disk=round(kept * corpus.disk) + state,
            scratch=round(near * candidate * corpus.documents),
            kept=kept,
        )

    def open(self, shard: Shard, item: Any = None, **shared: Any) -> Decide:  # noqa: ANN401
        """Drop the removals of the shard, which are ``item``."""
        from mtnlg_data.dedup.ledger import drop_removed  # noqa: PLC0415  (numba)

        return drop_removed(shard, item, shared["numbering"])

    def run(self, job: Job) -> list[Done]:
        """Search, verify, remove."""
        from mtnlg_data.dedup.stage import deduplicate  # noqa: PLC0415  (numba)

        return deduplicate(job, self.settings)
