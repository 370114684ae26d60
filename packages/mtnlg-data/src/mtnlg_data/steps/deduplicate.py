"""Keep one of near duplicates, of the source named first; OUT/dropped/duplicates-*.parquet list the others."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from pydantic import PositiveInt, ValidationInfo, field_validator, model_validator

from mtnlg_data.console import Failure, say
from mtnlg_data.dedup.candidates import collect_candidates
from mtnlg_data.dedup.clusters import FOREST_BYTES, check_memory, link_bands, write_band_rows, write_clusters
from mtnlg_data.dedup.copies import find_copies, write_removals
from mtnlg_data.dedup.ledger import REASON, drop_removed, ledger_summary, sample_pairs, write_ledger, write_names
from mtnlg_data.dedup.minhash import write_signatures
from mtnlg_data.dedup.verify import GROUP_BYTES, deduplicate_group
from mtnlg_data.engine import DROPPED
from mtnlg_data.exchange import MERGE_COPIES, RUN_BYTES, Numbering, Range, count_ranges
from mtnlg_data.quantities import alarm_share
from mtnlg_data.settings import Settings, setting
from mtnlg_data.step import Cost, Step
from mtnlg_data.summary import SMALL_SOURCE, add_up, loss_alarm

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary
    from mtnlg_data.job import Done, Job
    from mtnlg_data.planning.corpus_size import CorpusSize
    from mtnlg_data.step import Decide


ShingleKind = Literal["word", "character"]
SIGNATURE, MISSED = 260, 3  # see ``choose_bands``
LONGEST_SIGNATURE = 1 << 16  # 8-byte values per document of a batch
LIBRARY_BYTES = 330_000_000  # memory of a worker that has extracted and cleaned before, with all that it has imported


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
        return drop_removed(shard, item, shared["numbering"])

    def run(self, job: Job) -> list[Done]:
        """Write the surviving documents to ``<shard name>`` and the ledger ``dropped/duplicates-*.parquet``.

        The sources of the step are in the order of their priority: each component keeps its document from the best
        source. ``duplicates`` of the summary has components, cluster sizes, sample pairs and the removed share of each
        source. Raises ``Failure``, before anything is removed, if a source of ``SMALL_SOURCE`` documents or more would
        lose more than ``alarm_share`` of them; a second call with a higher share continues from there.
        """
        shards = job.shards
        numbering = Numbering(sum(shard.rows for shard in shards))
        check_memory(numbering.total)
        documents, removals, duplicates = _search(job, shards, numbering, self.settings)
        removed = duplicates.pop("removed")
        _check_losses(documents, removed, self.settings.alarm_share, job.out / DROPPED)
        shares = {source: removed.get(source, 0) / documents[source] for source in sorted(documents)}
        duplicates["removed_share"] = {source: round(share, 6) for source, share in shares.items()}
        job.details["duplicates"] = duplicates | {"samples": sample_pairs(duplicates["samples"], shards)}
        return job.write(removals, name="write", numbering=numbering)


def _search(
    job: Job, shards: Sequence[Shard], numbering: Numbering, settings: DeduplicateSettings
) -> tuple[dict[str, int], list[Range], Summary]:
    """Run the tasks up to the ledger; returns the documents by source, the removals by shard, the ledger's summary.

    Up to the candidates, results are the same for any threshold.
    """
    shingle = (settings.shingle, settings.shingle_length)
    contents = job.rows(
        "signatures",
        write_signatures,
        [(shard, shard.first) for shard in shards],
        shingle=shingle,
        bands=settings.bands,
        rows=settings.rows,
        seed=settings.seed,
        priority=list(job.step.sources),
    )
    ranges = contents.ranges(count_ranges(numbering.total))
    copies = job.rows("copies", find_copies, ranges, numbering=numbering)
    spans = [numbering.span(shard.first, shard.rows) for shard in shards]
    own_copies = copies.ranges(len(shards), spans)
    signed = list(zip(shards, contents.written, own_copies, strict=True))
    bands = job.rows("bands", write_band_rows, signed, numbering=numbering)
    ranges = bands.ranges(count_ranges(settings.bands * numbering.total))
    chains = [(one, job.state / "links" / f"{number:05d}.arrow") for number, one in enumerate(ranges)]
    links = job.map("bands", link_bands, chains)
    memory = LIBRARY_BYTES + FOREST_BYTES * numbering.total
    labels = job.rows("clusters", write_clusters, [links], memory=memory, numbering=numbering)
    items = list(zip(shards, contents.written, labels.ranges(1, spans), own_copies, strict=True))
    candidates = job.rows("candidates", collect_candidates, items, scratch=True, numbering=numbering, shingle=shingle)
    size = sum(done.summary["bytes"] for done in candidates.written)
    near = job.rows(
        "verify",
        deduplicate_group,
        candidates.ranges(-(-size // GROUP_BYTES)),
        scratch=True,
        memory=LIBRARY_BYTES + MERGE_COPIES * RUN_BYTES + 2 * GROUP_BYTES,
        numbering=numbering,
        threshold=settings.threshold,
        rounds=settings.rounds,
        seed=settings.seed,
    )
    parts = count_ranges(numbering.total)
    of_parts = list(zip(near.ranges(parts), copies.ranges(parts), strict=True))
    removals = job.rows("removals", write_removals, of_parts, numbering=numbering)
    shard_ranges = removals.ranges(len(shards), spans)
    removed = list(zip(shards, shard_ranges, strict=True))
    names = job.rows("names", write_names, removed, scratch=True, numbering=numbering)
    ledger = job.map(
        "ledger",
        write_ledger,
        [
            ((named, _shards_in(shards, numbering, named)), job.out / DROPPED / f"duplicates-{number:05d}.parquet")
            for number, named in enumerate(names.ranges(parts))
        ],
        numbering=numbering,
    )
    documents = add_up([{}, *(done.summary["documents"] for done in contents.written)])
    return documents, shard_ranges, ledger_summary(done.summary for done in ledger)


def _shards_in(shards: Sequence[Shard], numbering: Numbering, documents: Range) -> list[Shard]:
    """The shards that a range of documents is in."""
    first, last = numbering.numbers(np.array([documents.first, documents.last], np.uint64)).tolist()
    return [shard for shard in shards if shard.first <= last and shard.first + shard.rows > first]


def _check_losses(documents: dict[str, int], removed: dict[str, int], alarm_share: float, ledger: Path) -> None:
    """Raise ``Failure`` if a source of ``SMALL_SOURCE`` documents or more would lose more than ``alarm_share``."""
    losses = {source: {REASON: removed.get(source, 0)} for source, count in documents.items() if count >= SMALL_SOURCE}
    alarms = [
        alarm["message"]
        for source, lost in losses.items()
        if (alarm := loss_alarm("deduplicate", source, documents[source], lost, alarm_share)) is not None
    ]
    if alarms:
        most = max(lost[REASON] / documents[source] for source, lost in losses.items())
        sufficient = f"{np.ceil(most * 100) / 100:g}"
        raise Failure(
            f"{'; '.join(alarms)}; nothing is removed yet. Review the pairs by mtnlg-data inspect {ledger}; if they "
            f"are right, run the same command with --set deduplicate.alarm_share={sufficient} "
            f"(mtnlg-data dedup: --alarm-share {sufficient})"
        )
