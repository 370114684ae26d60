"""Fuzzy deduplication across all sources (paper.md 4.3).

    minhash.py     documents, one shard per task → band keys and content hashes
    copies.py      content hashes → exact copies, of which one goes on
    clusters.py    band keys → links between documents that share one → clusters of candidates (union_find.py)
    candidates.py  what verification needs of the candidates: exact shingle sets, band keys
    verify.py      candidates of a group of clusters → pairs that are duplicates, and the document that each keeps
    copies.py      what is removed: near duplicates, and copies with them
    ledger.py      the ledger of removed documents, and the shards without them

Between steps rows are exchanged by key range: no task holds all documents' rows, or opens a number of files that grows
with them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from pydantic import PositiveInt, model_validator

from mtnlg_data.console import Failure
from mtnlg_data.engine import DROPPED
from mtnlg_data.exchange import MERGE_COPIES, RUN_BYTES, Numbering, Range, Rows, count_ranges
from mtnlg_data.job import Job
from mtnlg_data.settings import Settings, setting
from mtnlg_data.tally import SMALL_SOURCE, loss_alarm, order_sources, stage_summary

from .candidates import collect_candidates
from .clusters import FOREST_BYTES, check_memory, link_bands, write_band_rows, write_clusters
from .copies import find_copies, write_removals
from .ledger import (
    REASON,
    ledger_summary,
    sample_pairs,
    sampled_rows,
    write_ledger,
    write_names,
    write_survivors,
)
from .minhash import ShingleKind, write_signatures
from .verify import GROUP_BYTES, deduplicate_group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Engine, Summary


LONGEST_SIGNATURE = 1 << 16  # values of 8 bytes, of every document of a batch
LIBRARY_BYTES = 380_000_000  # memory of a worker that has extracted and cleaned before, with all that it has imported


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
        0.5, "Stop if a source of 100 documents or more would lose more than this.", unit="share", ge=0, le=1
    )

    @model_validator(mode="after")
    def _check_signature(self) -> Self:
        if self.bands * self.rows > LONGEST_SIGNATURE:
            raise ValueError(
                f"bands = {self.bands} times rows = {self.rows} is the length of a document's signature, and more than "
                f"{LONGEST_SIGNATURE}; RefinedWeb's, 450 x 20, is the longest that is known"
            )
        return self


def deduplicate_documents(
    shards: Sequence[Path], out: Path, settings: DeduplicateSettings, priority: Sequence[str], engine: Engine
) -> Summary:
    """Write the surviving documents to ``out/<shard name>`` and the ledger ``out/dropped/duplicates-*.parquet``.

    ``priority`` names the sources, best first: each component keeps its document from the best source; unnamed sources
    share the last rank. Returns the stage's summary; its ``duplicates`` has components, cluster sizes, sample pairs and
    the removed share of each source. Raises ``Failure``, before anything is removed, where a source would lose more
    than ``alarm_share`` of its documents, and has ``SMALL_SOURCE``; a second call with a higher share continues there.
    """
    if not shards:
        raise Failure("nothing to deduplicate: no shards were given")
    job = Job("deduplicate", shards, out, engine)
    numbering = Numbering(sum(shard.rows for shard in job.shards))
    check_memory(numbering.count)
    candidates = _find_candidates(job, numbering, settings, tuple(priority))
    removals, duplicates = _find_duplicates(job, numbering, settings, candidates)
    documents: Counter[str] = Counter()
    for done in candidates.contents.written:
        documents.update(done.summary["documents"])
    removed = duplicates.pop("removed")
    check_losses(documents, removed, settings.alarm_share, out / DROPPED / "duplicates-*.parquet")
    shares = {source: removed.get(source, 0) / documents[source] for source in sorted(documents)}
    duplicates["removed_share"] = {source: round(share, 6) for source, share in shares.items()}
    sampled = [sampled_rows(duplicates["samples"], shard.path.name) for shard in job.shards]
    items = [(item, out / item[0].path.name) for item in zip(job.shards, removals, sampled, strict=True)]
    survivors = job.map("write", write_survivors, items, numbering=numbering)
    texts = {
        (shard.path.name, row): text
        for shard, rows, done in zip(job.shards, sampled, survivors, strict=True)
        for row, text in zip(rows, done.summary["samples"], strict=True)
    }
    duplicates["samples"] = sample_pairs(duplicates["samples"], texts)
    job.folder.finish(done.output for done in survivors)
    summaries = [done.summary for done in survivors]
    summary = stage_summary("deduplicate", summaries, order_sources(summaries, priority), settings.alarm_share)
    return {**summary, "duplicates": duplicates}


class Candidates(NamedTuple):
    """What is known of a corpus before pairs are verified; it is the same for any threshold."""

    contents: Rows
    copies: Rows
    candidates: Rows
    spans: list[tuple[int, int]]  # keys of each shard's documents


def _find_candidates(
    job: Job, numbering: Numbering, settings: DeduplicateSettings, priority: tuple[str, ...]
) -> Candidates:
    """Run the tasks up to the candidates."""
    shards, shingle = job.shards, (settings.shingle, settings.shingle_length)
    signature = {"shingle": shingle, "bands": settings.bands, "rows": settings.rows, "seed": settings.seed}
    numbered = [(shard, shard.first) for shard in shards]
    contents = job.rows("contents", write_signatures, numbered, label="signatures", **signature)
    ranges = contents.ranges(count_ranges(numbering.count))
    copies = job.rows("copies", find_copies, ranges, numbering=numbering, priority=priority)
    spans = [numbering.span(shard.first, shard.rows) for shard in shards]
    own_copies = copies.ranges(len(shards), spans)
    items = list(zip(shards, contents.written, own_copies, strict=True))
    bands = job.rows("bands", write_band_rows, items, numbering=numbering)
    ranges = bands.ranges(count_ranges(settings.bands * numbering.count))
    links = job.map("bands", link_bands, [(one, job.state / f"links-{n:05d}") for n, one in enumerate(ranges)])
    memory = LIBRARY_BYTES + FOREST_BYTES * numbering.count
    labels = job.rows("clusters", write_clusters, [links], memory=memory, numbering=numbering)
    items = list(zip(shards, contents.written, labels.ranges(1, spans), own_copies, strict=True))
    found = job.rows(
        "candidates", collect_candidates, items, scratch=True, numbering=numbering, shingle=shingle, priority=priority
    )
    return Candidates(contents, copies, found, spans)


def _find_duplicates(
    job: Job, numbering: Numbering, settings: DeduplicateSettings, found: Candidates
) -> tuple[list[Range], Summary]:
    """Run the tasks up to the ledger; returns what it removes of each shard, and its summary."""
    size = sum(done.summary["bytes"] for done in found.candidates.written)
    groups = found.candidates.ranges(-(-size // GROUP_BYTES))
    near = job.rows(
        "near",
        deduplicate_group,
        groups,
        label="verify",
        scratch=True,
        memory=LIBRARY_BYTES + MERGE_COPIES * RUN_BYTES + 2 * GROUP_BYTES,
        numbering=numbering,
        threshold=settings.threshold,
        rounds=settings.rounds,
        seed=settings.seed,
    )
    parts = count_ranges(numbering.count)
    items = list(zip(near.ranges(parts), found.copies.ranges(parts), strict=True))
    removals = job.rows("removals", write_removals, items, label="ledger", numbering=numbering)
    own = removals.ranges(len(job.shards), found.spans)
    names = job.rows(
        "names", write_names, list(zip(job.shards, own, strict=True)), label="ledger", scratch=True, numbering=numbering
    )
    ledger = job.map(
        "ledger",
        write_ledger,
        [
            ((named, _shards_in(job.shards, numbering, named)), job.out / DROPPED / f"duplicates-{number:05d}.parquet")
            for number, named in enumerate(names.ranges(parts))
        ],
        numbering=numbering,
    )
    return own, ledger_summary(done.summary for done in ledger)


def _shards_in(shards: list[Shard], numbering: Numbering, documents: Range) -> list[Shard]:
    """The shards that a range of documents is in."""
    first, last = numbering.numbers(np.array(documents.keys[:2], np.uint64)).tolist()
    return [shard for shard in shards if shard.first <= last and shard.first + shard.rows > first]


def check_losses(documents: dict[str, int], removed: dict[str, int], alarm_share: float, ledger: Path) -> None:
    """Raise ``Failure`` where a source of ``SMALL_SOURCE`` documents or more would lose more than ``alarm_share``."""
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
            f"{'; '.join(alarms)}; nothing is removed yet. Review the pairs in {ledger}; if they are right, run the "
            f"same command with --set deduplicate.alarm_share={sufficient} "
            f"(mtnlg-data dedup: --alarm-share {sufficient})"
        )
