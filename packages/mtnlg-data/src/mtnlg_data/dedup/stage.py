"""Fuzzy deduplication across all sources (paper.md 4.3).

    signature.py       every document, a shard at a time → band keys, in sorted runs (runs.py)
    bands.py           runs → links between documents that share a key
    clusters.py        links → clusters of candidates (graph.py), in groups that fit into memory
    candidates.py      their names, keys and exact shingle sets, laid down group by group
    verify.py          buckets of a group → pairs that are duplicates
    representative.py  pairs → components, and who of each stays
    ledger.py          the ledger of all that goes, and for whose sake
    survivors.py       the shards of what stays

Each step is a set of units, so a killed run goes on from there. No step holds all documents; ``plan.py`` says what
every step takes of disk and memory, before it runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from shutil import rmtree
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field, PositiveInt

from mtnlg_data.console import Failure
from mtnlg_data.document import Made, in_order, numbered
from mtnlg_data.engine import key_of, run_units
from mtnlg_data.engine.units import finished
from mtnlg_data.settings import Settings
from mtnlg_data.tally import stage

from .bands import BandPart, Run, bands_at_once, link, parts_of
from .candidates import CandidatesOf, collect
from .clusters import Clusters, cluster
from .ledger import Ledger, Removed, Survivors, enter, mark, survive
from .minhash import ShingleKind, Signatures, sign
from .representatives import Group, judge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Engine, Summary


BULK = "verification"  # the part of the state that no other threshold could use


class DeduplicateSettings(Settings):
    """How near is a duplicate, and how it is looked for; the defaults are the paper's (4.3)."""

    bands: PositiveInt = 20
    rows: PositiveInt = 13  # values a band: bands * rows MinHash values in all
    threshold: float = Field(0.8, gt=0, le=1)  # Jaccard similarity from which a pair is one document
    shingle: ShingleKind = "word"
    shingle_length: PositiveInt = 5
    rounds: PositiveInt = 11  # pivots a bucket
    seed: int = Field(1, ge=0, lt=1 << 32)
    alarm_share: float = Field(0.5, ge=0, le=1)  # a source that would lose more than this stops the run; 1: none does


def deduplicate_documents(
    shards: Sequence[Path], out: Path, settings: DeduplicateSettings, priority: Sequence[str], engine: Engine
) -> Summary:
    """Write ``out/<shard name>`` with what stays and ``out/removed.parquet``, the ledger; returns the stage's account.

    ``priority`` names the sources, the best first: of a component the document from the best source stays. Those that
    it does not name come after, all alike. The account's ``duplicates`` has components, cluster sizes, sample pairs,
    and each source's removed share. Where a source would lose more than ``alarm_share`` of its documents it raises
    ``Failure`` before any is removed; called again with a higher share, it goes on from there.
    """
    if not shards:
        raise Failure("nothing to deduplicate: no shards were given")
    all_shards = numbered(shards)
    ledger, found = _search(all_shards, out, settings, tuple(priority), engine)
    found["removed_share"] = _shares(found.pop("documents"), found.pop("removed"), settings.alarm_share, ledger.path)
    if engine.part[1] == 1:  # tasks that share the folder may still be looking at it
        rmtree(out / "state" / BULK, ignore_errors=True)
    removed = Removed(ledger, all_shards, out / "state" / "removed.npy")
    run_units(engine, mark, [removed], "deduplicate: mark")
    survivors = [Survivors(shard, Made.by(removed), out / shard.path.name) for shard in all_shards]
    summaries = run_units(engine, survive, survivors, "deduplicate: write")
    return {**stage("deduplicate", summaries, in_order(summaries, priority)), "duplicates": found}


def _shares(documents: dict[str, int], removed: dict[str, int], alarm_share: float, ledger: Path) -> dict[str, float]:
    """The share of its documents that each source would lose. Raises ``Failure`` where that is alarming."""
    shares = {source: removed.get(source, 0) / count for source, count in documents.items() if count}
    alarming = {source: share for source, share in shares.items() if share > alarm_share}
    if alarming:
        what = ", ".join(f"{source} {share:.1%}" for source, share in alarming.items())
        right = f"{np.ceil(max(alarming.values()) * 100) / 100:g}"
        raise Failure(
            f"of {what} would go as duplicates, more than alarm_share = {alarm_share:g}; nothing is removed yet: "
            f"look at the pairs in {ledger}; if they are right, the same command goes on with "
            f"--set deduplicate.alarm_share={right} (mtnlg-data dedup: --set alarm_share={right})"
        )
    return {source: round(share, 6) for source, share in shares.items()}


def _search(
    shards: list[Shard], out: Path, settings: DeduplicateSettings, priority: tuple[str, ...], engine: Engine
) -> tuple[Made, Summary]:
    """Run all units up to the ledger, unless that is done; returns it and its summary."""
    state = out / "state"
    shingle = (settings.shingle, settings.shingle_length)
    how = (settings.threshold, settings.rounds, settings.seed)
    signatures = tuple(
        Signatures(s, *shingle, settings.bands, settings.rows, settings.seed, state / f"{s.path.stem}.run")
        for s in shards
    )
    signed = key_of([(unit.shard.path.name, unit.key) for unit in signatures])
    ledger = Ledger(key_of(signed, how, priority), shards, (), (), out / "removed.parquet")
    found = finished(ledger)
    if found is None:
        documents = run_units(engine, sign, signatures, "deduplicate: signatures")
        bulk = state / BULK
        runs = [Run(unit.output, unit.shard.first, unit.shard.rows, settings.bands) for unit in signatures]
        clusters, groups = _cluster([run for run in runs if run.rows], signed, state, engine)
        candidates = [
            CandidatesOf(shard, run, clusters, groups, *shingle, bulk / f"{shard.path.stem}.arrow")
            for shard, run in zip(shards, runs, strict=True)
            if groups and run.rows
        ]
        files = [unit.output for unit in candidates]
        where = run_units(engine, collect, candidates, "deduplicate: candidates")
        parts = [
            Group(number, files, batches, ledger.verified, *how, priority, shards, bulk / f"group-{number:06d}.parquet")
            for number, batches in enumerate(_batches_of([found["groups"] for found in where], len(groups)))
        ]
        run_units(engine, judge, parts, "deduplicate: verify")
        sources: Counter[str] = Counter()
        for summary in documents:
            sources.update(summary["documents"])
        ledger = replace(ledger, documents=tuple(sorted(sources.items())), parts=[part.output for part in parts])
        found = run_units(engine, enter, [ledger], "deduplicate: ledger")[0]
    return Made.by(ledger), found


def _cluster(runs: list[Run], signed: str, state: Path, engine: Engine) -> tuple[Made, list[int]]:
    """Run the units from the runs to the clusters; returns these and the ends of their groups."""
    documents = sum(run.rows for run in runs)
    parts = parts_of(documents)
    links = [
        BandPart(bands, part, parts, runs, signed, state / f"bands-{bands[0]:03d}-{part:05d}.links")
        for bands in (bands_at_once(documents, runs[0].bands) if runs else ())
        for part in range(parts)
    ]
    clusters = Clusters([unit.output for unit in links], key_of(signed, parts), runs, documents, state / "clusters")
    run_units(engine, link, links, "deduplicate: bands")
    summary = run_units(engine, cluster, [clusters], "deduplicate: clusters")[0]
    return Made.by(clusters), summary["groups"]


def _batches_of(files: list[list[int]], groups: int) -> list[bytes]:
    """Of every group its record batches as int32[n, 2], file and number; given the group of each batch of each file."""
    file = np.repeat(np.arange(len(files), dtype=np.int32), [len(of_file) for of_file in files])
    batch = np.concatenate([np.arange(len(of_file), dtype=np.int32) for of_file in [*files, []]])
    group = np.concatenate([np.array(of_file, np.int32) for of_file in [*files, []]])
    order = np.argsort(group, kind="stable")
    pairs = np.stack([file, batch], axis=1)[order]
    return [part.tobytes() for part in np.split(pairs, np.searchsorted(group[order], np.arange(1, groups)))][:groups]
