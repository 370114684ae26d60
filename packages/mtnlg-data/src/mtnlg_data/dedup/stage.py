"""Fuzzy deduplication across all sources (paper.md 4.3).

    minhash.py          documents, one shard per unit → signatures → sorted band keys (a run per shard)
    bands.py            runs → links between documents that share a band key
    clusters.py         links → clusters of candidates (union_find.py), in groups that fit into memory
    candidates.py       the candidates' names, keys and exact shingle sets, by group
    verify.py           candidates of a group → pairs that are duplicates
    representatives.py  pairs → components, and the document that each keeps
    ledger.py           the ledger of removed documents, and the shards without them

Each step is a set of units, so a killed run resumes. No step holds all documents; ``plan.py`` predicts the disk and
memory of every step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from shutil import rmtree
from typing import TYPE_CHECKING

import numpy as np
from pydantic import PositiveInt  # noqa: TC002  (pydantic reads the annotation)

from mtnlg_data.console import Failure
from mtnlg_data.document import UnitOutput, number_shards
from mtnlg_data.engine import DROPPED, StageFolder, code_digest, key_of
from mtnlg_data.engine.units import verified_summary
from mtnlg_data.settings import Settings, setting
from mtnlg_data.tally import SMALL_SOURCE, loss_alarm, order_sources, stage_summary

from .bands import BandUnit, SignatureRun, count_key_ranges, group_bands, link_bands
from .candidates import CandidateUnit, collect_candidates
from .clusters import ClusterUnit, cluster_documents
from .ledger import LedgerUnit, RemovalMaskUnit, SurvivorUnit, write_ledger, write_removal_mask, write_survivors
from .minhash import ShingleKind, SignatureUnit, write_signatures
from .representatives import REASON, GroupUnit, deduplicate_group

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Engine, Summary


VERIFICATION_FOLDER = "verification"  # what a run with another threshold cannot reuse


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


def deduplicate_documents(
    shards: Sequence[Path], out: Path, settings: DeduplicateSettings, priority: Sequence[str], engine: Engine
) -> Summary:
    """Write the surviving documents to ``out/<shard name>`` and the ledger ``out/dropped/duplicates.parquet``.

    ``priority`` names the sources, best first: each component keeps its document from the best source; unnamed sources
    share the last rank. Returns the stage's summary; its ``duplicates`` has components, cluster sizes, sample pairs and
    the removed share of each source. Raises ``Failure``, before anything is removed, where a source would lose more
    than ``alarm_share`` of its documents, and has ``SMALL_SOURCE``; a second call with a higher share continues there.
    """
    if not shards:
        raise Failure("nothing to deduplicate: no shards were given")
    numbered = number_shards(shards)
    stage = StageFolder(out, "deduplicate", engine)
    ledger, duplicates = _find_duplicates(numbered, stage, settings, tuple(priority))
    documents, removed = duplicates.pop("documents"), duplicates.pop("removed")
    _check_losses(documents, removed, settings.alarm_share, ledger.path)
    shares = {source: removed.get(source, 0) / count for source, count in documents.items() if count}
    duplicates["removed_share"] = {source: round(share, 6) for source, share in shares.items()}
    if engine.task[1] == 1:  # other tasks on the same folder may still read it
        rmtree(out / VERIFICATION_FOLDER, ignore_errors=True)
    mask = RemovalMaskUnit(ledger, numbered, stage.state / "removed.npy")
    stage.run(write_removal_mask, [mask], "deduplicate: mark")
    survivors = [SurvivorUnit(shard, UnitOutput.of(mask), out / shard.path.name) for shard in numbered]
    summaries = stage.run(write_survivors, survivors, "deduplicate: write")
    stage.finish(unit.output for unit in survivors)
    summary = stage_summary("deduplicate", summaries, order_sources(summaries, priority), settings.alarm_share)
    return {**summary, "duplicates": duplicates}


def _find_duplicates(
    shards: list[Shard], stage: StageFolder, settings: DeduplicateSettings, priority: tuple[str, ...]
) -> tuple[UnitOutput, Summary]:
    """Run all units up to the ledger, unless it is done; returns the ledger and its summary."""
    folder = stage.path / VERIFICATION_FOLDER
    shingle = (settings.shingle, settings.shingle_length)
    verification = (settings.threshold, settings.rounds, settings.seed)
    signatures = tuple(
        SignatureUnit(s, *shingle, settings.bands, settings.rows, settings.seed, stage.state / f"{s.path.stem}.run")
        for s in shards
    )
    runs = [SignatureRun(unit.output, unit.shard.first, unit.shard.rows, settings.bands) for unit in signatures]
    signature_digest = key_of([(unit.shard.path.name, unit.key) for unit in signatures])
    links, clusters = _cluster_units([run for run in runs if run.rows], signature_digest, stage.state)
    candidates = [
        CandidateUnit(shard, run, UnitOutput.of(clusters), (), *shingle, folder / f"{shard.path.stem}.arrow")
        for shard, run in zip(shards, runs, strict=True)
        if run.rows
    ]
    verifying_code = code_digest(GroupUnit.__module__)
    digest = key_of([unit.key for unit in candidates], signature_digest, verifying_code, verification, priority)
    ledger = LedgerUnit(digest, shards, (), (), stage.path / DROPPED / "duplicates.parquet")
    stage.keep([*signatures, *links, clusters, ledger])
    if (summary := verified_summary(ledger)) is not None:
        return UnitOutput.of(ledger), summary
    signature_summaries = stage.run(write_signatures, signatures, "deduplicate: signatures")
    stage.run(link_bands, links, "deduplicate: bands")
    groups = stage.run(cluster_documents, [clusters], "deduplicate: clusters")[0]["groups"]
    candidates = [replace(unit, groups=groups) for unit in candidates] if groups else []
    candidate_summaries = stage.run(collect_candidates, candidates, "deduplicate: candidates")
    files = [unit.output for unit in candidates]
    batches_by_group = _batches_by_group([summary["groups"] for summary in candidate_summaries], len(groups))
    parts = [
        GroupUnit(n, files, batches, digest, *verification, priority, shards, folder / f"group-{n:06d}.parquet")
        for n, batches in enumerate(batches_by_group)
    ]
    stage.run(deduplicate_group, parts, "deduplicate: verify")
    documents: Counter[str] = Counter()
    for summary in signature_summaries:
        documents.update(summary["documents"])
    ledger = replace(ledger, documents=tuple(sorted(documents.items())), parts=[part.output for part in parts])
    (summary,) = stage.run(write_ledger, [ledger], "deduplicate: ledger")
    return UnitOutput.of(ledger), summary


def _cluster_units(runs: list[SignatureRun], digest: str, state: Path) -> tuple[list[BandUnit], ClusterUnit]:
    """The units from the runs to the clusters; ``digest`` is that of all runs."""
    documents = sum(run.rows for run in runs)
    parts = count_key_ranges(documents)
    links = [
        BandUnit(bands, part, parts, runs, digest, state / f"bands-{bands[0]:03d}-{part:05d}.links")
        for bands in (group_bands(documents, runs[0].bands) if runs else ())
        for part in range(parts)
    ]
    linked = key_of(digest, [unit.key for unit in links])
    return links, ClusterUnit([unit.output for unit in links], linked, runs, documents, state / "clusters")


def _batches_by_group(files: list[list[int]], groups: int) -> list[bytes]:
    """Record batches of each group as int32[n, 2], (file, batch in file), given the group of each file's batches."""
    file = np.repeat(np.arange(len(files), dtype=np.int32), [len(batches) for batches in files])
    batch = np.concatenate([np.arange(len(batches), dtype=np.int32) for batches in [*files, []]])
    group = np.concatenate([np.array(batches, np.int32) for batches in [*files, []]])
    order = np.argsort(group, kind="stable")
    pairs = np.stack([file, batch], axis=1)[order]
    return [part.tobytes() for part in np.split(pairs, np.searchsorted(group[order], np.arange(1, groups)))][:groups]


def _check_losses(documents: dict[str, int], removed: dict[str, int], alarm_share: float, ledger: Path) -> None:
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
