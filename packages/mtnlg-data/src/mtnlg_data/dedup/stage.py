"""Fuzzy deduplication across all sources (paper.md 4.3).

    minhash.py     documents, one shard per task → band keys and content hashes
    copies.py      content hashes → exact copies, of which one is kept
    clusters.py    band keys → links between documents that share one → clusters of candidates (union_find.py)
    candidates.py  what verification needs of the candidates: exact shingle sets, band keys
    verify.py      candidates of a group of clusters → pairs that are duplicates, and the document that each keeps
    copies.py      the documents to remove: near duplicates, and exact copies
    ledger.py      the ledger of removed documents, and the shards without them

Between steps rows are exchanged by key range: no task holds all documents' rows, or opens a number of files that grows
with them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.engine import DROPPED
from mtnlg_data.exchange import MERGE_COPIES, RUN_BYTES, Numbering, Range, count_ranges
from mtnlg_data.summary import SMALL_SOURCE, loss_alarm

from .candidates import collect_candidates
from .clusters import FOREST_BYTES, check_memory, link_bands, write_band_rows, write_clusters
from .copies import find_copies, write_removals
from .ledger import REASON, ledger_summary, sample_pairs, write_ledger, write_names
from .minhash import write_signatures
from .verify import GROUP_BYTES, deduplicate_group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Summary
    from mtnlg_data.job import Done, Job
    from mtnlg_data.steps.deduplicate import DeduplicateSettings


LIBRARY_BYTES = 330_000_000  # memory of a worker that has extracted and cleaned before, with all that it has imported


def deduplicate(job: Job, settings: DeduplicateSettings) -> list[Done]:
    """Write the surviving documents to ``<shard name>`` and the ledger ``dropped/duplicates-*.parquet``.

    The sources of the job's step are in the order of their priority: each component keeps its document from the best
    source. ``duplicates`` of the summary has components, cluster sizes, sample pairs and the removed share of each
    source. Raises ``Failure``, before anything is removed, if a source of ``SMALL_SOURCE`` documents or more would lose
    more than ``alarm_share`` of them; a second call with a higher share continues from there.
    """
    shards = job.shards
    numbering = Numbering(sum(shard.rows for shard in shards))
    check_memory(numbering.total)
    documents, removals, duplicates = _search(job, shards, numbering, settings)
    removed = duplicates.pop("removed")
    _check_losses(documents, removed, settings.alarm_share, job.out / DROPPED)
    shares = {source: removed.get(source, 0) / documents[source] for source in sorted(documents)}
    duplicates["removed_share"] = {source: round(share, 6) for source, share in shares.items()}
    job.details["duplicates"] = duplicates | {"samples": sample_pairs(duplicates["samples"], shards)}
    return job.write(removals, name="write", numbering=numbering)


def _search(
    job: Job, shards: Sequence[Shard], numbering: Numbering, settings: DeduplicateSettings
) -> tuple[Counter[str], list[Range], Summary]:
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
    documents: Counter[str] = Counter()
    for done in contents.written:
        documents.update(done.summary["documents"])
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
