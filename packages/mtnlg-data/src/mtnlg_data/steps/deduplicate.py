"""Keep one of near duplicates, of the source named first; OUT/dropped/duplicates-*.parquet list the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import PositiveInt, model_validator

from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import Cost, Step

if TYPE_CHECKING:
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize


ShingleKind = Literal["word", "character"]
LONGEST_SIGNATURE = 1 << 16  # values of 8 bytes, of every document of a batch


class DeduplicateSettings(Settings):
    """What counts as a duplicate and how duplicates are searched; the defaults are the paper's (4.3)."""

    bands: PositiveInt = setting(20, "Bands of the search: documents that agree in one are compared.", paper="20")
    rows: PositiveInt = setting(13, "MinHash values of a band.", paper="13")
    threshold: float = setting(0.8, "Lowest Jaccard similarity of a duplicate pair.", paper="0.8", gt=0, le=1)
    shingle: ShingleKind = setting("word", "What shingles are made of.")
    shingle_length: PositiveInt = setting(5, "Words or characters of a shingle.")
    rounds: PositiveInt = setting(11, "Pivots of a bucket, each compared with all that are left in it.", paper="11")
    seed: int = setting(1, "Of the hash functions and of the pivots.", ge=0, lt=1 << 32)
    alarm_share: float = setting(
        0.5, "Stop if a source of 100 documents or more would lose more.", unit="share", keyed=False, ge=0, le=1
    )

    @model_validator(mode="after")
    def _check_signature(self) -> Self:
        if self.bands * self.rows > LONGEST_SIGNATURE:
            raise ValueError(
                f"bands = {self.bands} times rows = {self.rows} is the length of a document's signature, and more than "
                f"{LONGEST_SIGNATURE}; RefinedWeb's, 450 x 20, is the longest that is known"
            )
        return self


class Deduplicate(Step[DeduplicateSettings, Settings]):
    """Fuzzy deduplication across all sources (paper.md 4.3)."""

    number, version = 4, 2

    def cost(self, corpus: CorpusSize) -> Cost:
        """State of fixed width per document and band, and per candidate its set of shingles; the rest goes in the end.

        Of documents with a near duplicate all but one of each cluster go, of four on average.
        """
        near, length = corpus.near_duplicates, 6 if self.settings.shingle == "word" else 1
        candidate = 8 * corpus.characters // length + 8 * self.settings.bands + 120
        kept = 1 - 0.75 * near
        state = (47 * self.settings.bands + 110) * corpus.documents
        return Cost(
            core_seconds=0.0169 * corpus.text / 1e6,
            memory=450_000_000 + min(650_000_000, 4 * round(near * candidate * corpus.documents)) + corpus.group // 4,
            disk=round(kept * corpus.disk) + state,
            scratch=round(near * candidate * corpus.documents),
            kept=kept,
        )

    def run(self, job: Job) -> list[Done]:
        """Search, verify, remove."""
        from mtnlg_data.dedup.stage import deduplicate  # noqa: PLC0415  (numba)

        return deduplicate(job, self.settings)
