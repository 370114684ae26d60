"""Fuzzy deduplication across all sources (paper.md 4.3).

    minhash.py          documents, one shard per unit → band keys and content hashes
    copies.py           content hashes → exact copies, of which one goes on
    bands.py            band keys → links between documents that share one
    clusters.py         links → clusters of candidates (union_find.py)
    candidates.py       what verification needs of the candidates: exact shingle sets, band keys
    verify.py           candidates of a group of clusters → pairs that are duplicates
    representatives.py  pairs → components, and the document that each keeps
    copies.py           what is removed: near duplicates, and copies with them
    ledger.py           the ledger of removed documents, and the shards without them

Each step is a set of units, so a killed run resumes. Between steps rows are exchanged by key range (``runs.py``): no
unit holds all documents, or opens a number of files that grows with them. ``plan.py`` predicts the disk and memory of
every step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import replace
from shutil import rmtree
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.console import Failure
from mtnlg_data.document import number_shards
from mtnlg_data.engine import DROPPED, StageFolder, code_digest, key_of
from mtnlg_data.engine.units import verified_summary
from mtnlg_data.tally import SMALL_SOURCE, loss_alarm, order_sources, stage_summary

from .bands import BandRunUnit, BandUnit, link_bands, write_band_runs
from .candidates import CandidateUnit, collect_candidates
from .clusters import FOREST_ROWS, STEPS, ForestUnit, StarUnit, write_forest, write_stars
from .copies import KEPT_BY, ContentUnit, CopyUnit, RemovalUnit, find_copies, write_contents, write_removals
from .ledger import (
    REASON,
    LedgerUnit,
    NamesUnit,
    SurvivorUnit,
    ledger_summary,
    sample_pairs,
    sampled_rows,
    write_ledger,
    write_names,
    write_survivors,
)
from .minhash import SignatureUnit, write_signatures
from .representatives import GroupUnit, deduplicate_group
from .runs import Corpus, Exchanged, count_ranges, merge_files
from .verify import GROUP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.document import Shard
    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.steps.deduplicate import DeduplicateSettings


VERIFICATION_FOLDER = "verification"  # what a run with another threshold cannot reuse


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
    numbered = number_shards(shards)
    stage = StageFolder(out, "deduplicate", engine)
    search = _search_candidates(numbered, stage, settings, tuple(priority))
    removals, duplicates = _find_duplicates(search, settings)
    documents, removed = dict(search.documents), duplicates.pop("removed")
    _check_losses(documents, removed, settings.alarm_share, out / DROPPED / "duplicates-*.parquet")
    shares = {source: removed.get(source, 0) / count for source, count in documents.items() if count}
    duplicates["removed_share"] = {source: round(share, 6) for source, share in shares.items()}
    rmtree(out / VERIFICATION_FOLDER, ignore_errors=True)
    survivors = [
        SurvivorUnit(*removals, shard, sampled_rows(duplicates["samples"], shard.path.name), out / shard.path.name)
        for shard in numbered
    ]
    summaries = stage.run(write_survivors, survivors, "deduplicate: write")
    duplicates["samples"] = sample_pairs(duplicates["samples"], zip(survivors, summaries, strict=True))
    stage.finish(unit.output for unit in survivors)
    summary = stage_summary("deduplicate", summaries, order_sources(summaries, priority), settings.alarm_share)
    return {**summary, "duplicates": duplicates}


class Search(NamedTuple):
    """What is known of a corpus before pairs are verified; it is the same for any threshold."""

    stage: StageFolder
    corpus: Corpus
    shards: list[Shard]
    signatures: list[SignatureUnit]
    priority: tuple[str, ...]
    documents: tuple[tuple[str, int], ...]  # of each source
    copies: Exchanged  # by the document that stays
    labels: Exchanged  # root of each candidate's cluster

    def merge(self, rows: Exchanged, label: str) -> Exchanged:
        """Merge the files of these rows as far as their readers need; returns the rows."""
        for units in rows.merges():
            self.stage.run(merge_files, units, label)
        return rows


def _search_candidates(
    shards: list[Shard], stage: StageFolder, settings: DeduplicateSettings, priority: tuple[str, ...]
) -> Search:
    """Run the units up to the clusters of candidates."""
    shingle = (settings.shingle, settings.shingle_length)
    signatures = [
        SignatureUnit(s, *shingle, settings.bands, settings.rows, settings.seed, stage.state / f"{s.path.stem}.minhash")
        for s in shards
    ]
    summaries = stage.run(write_signatures, signatures, "deduplicate: signatures")
    sources: Counter[str] = Counter()
    for summary in summaries:
        sources.update(summary["documents"])
    documents = sum(shard.rows for shard in shards)
    code = [code_digest(unit.__module__) for unit in (ContentUnit, BandUnit, StarUnit)]
    digest = key_of([(unit.shard.path.name, unit.key) for unit in signatures], code, priority)
    corpus = Corpus(stage.state, documents, digest)
    ranges = count_ranges(documents)
    contents = corpus.exchanged("contents", len(shards), ranges)
    copies = corpus.exchanged("copies", contents.ranges, len(shards))
    bands = corpus.exchanged("bands", len(shards), count_ranges(documents * settings.bands))
    links = corpus.exchanged("links", bands.ranges, ranges)
    of_kept = copies._replace(folder=copies.folder / KEPT_BY, ranges=links.ranges)
    search = Search(stage, corpus, shards, signatures, priority, tuple(sorted(sources.items())), of_kept, links)
    numbered = [(n, unit.shard.first, unit.output) for n, unit in enumerate(signatures)]
    stage.run(
        write_contents,
        [ContentUnit(corpus, *signed, priority, contents.path(signed[0])) for signed in numbered],
        "deduplicate: copies",
    )
    search.merge(contents, "deduplicate: copies")
    finders = [CopyUnit(corpus, n, contents, copies.path(n)) for n in range(contents.ranges)]
    stage.run(find_copies, finders, "deduplicate: copies")
    search.merge(copies, "deduplicate: copies")
    search.merge(of_kept, "deduplicate: copies")
    band_runs = [BandRunUnit(corpus, *signed, copies, bands.path(signed[0])) for signed in numbered]
    stage.run(write_band_runs, band_runs, "deduplicate: bands")
    search.merge(bands, "deduplicate: bands")
    linked = stage.run(
        link_bands,
        [BandUnit(corpus, n, bands, links.path(n)) for n in range(bands.ranges)],
        "deduplicate: bands",
    )
    return search._replace(labels=_label_clusters(search, links, sum(summary["rows"] for summary in linked)))


def _label_clusters(search: Search, links: Exchanged, rows: int) -> Exchanged:
    """Contract the links until they fit one unit, or lead to roots; returns the roots of all linked documents."""
    corpus, turn, label = search.corpus, 0, "deduplicate: clusters"
    while rows > FOREST_ROWS:
        changed = 0
        for step in STEPS:
            stars = corpus.exchanged(f"{step}-{turn:02d}", links.ranges, links.ranges)
            search.merge(links, label)
            units = [StarUnit(corpus, step, n, links, stars.path(n)) for n in range(links.ranges)]
            summaries = search.stage.run(write_stars, units, label)
            rows = sum(summary["rows"] for summary in summaries)
            changed += sum(summary["changed"] for summary in summaries)
            links = stars
        if not changed:
            search.merge(links, label)
            labels = corpus.exchanged("labels", links.ranges, links.ranges)
            units = [StarUnit(corpus, "label", n, links, labels.path(n)) for n in range(links.ranges)]
            search.stage.run(write_stars, units, label)
            return labels
        turn += 1
    labels = corpus.exchanged("forest", 1, 1)
    search.stage.run(write_forest, [ForestUnit(corpus, links, rows, labels.path(0))], label)
    return labels


class Removals(NamedTuple):
    """The documents to be removed, by document, each with its twin."""

    corpus: Corpus
    rows: Exchanged


def _find_duplicates(search: Search, settings: DeduplicateSettings) -> tuple[Removals, Summary]:
    """Run the units up to the ledger, unless it is done; returns what it removes, and its summary."""
    stage, shards = search.stage, search.shards
    verification = (settings.threshold, settings.rounds, settings.seed)
    code = [code_digest(unit.__module__) for unit in (CandidateUnit, GroupUnit, RemovalUnit, LedgerUnit)]
    digest = key_of(search.corpus.digest, code, verification)
    corpus = search.corpus._replace(digest=digest)
    removals = Removals(corpus, corpus.exchanged("removals", search.copies.ranges, len(shards)))
    scratch = corpus._replace(folder=stage.path / VERIFICATION_FOLDER)
    names = scratch.exchanged("names", len(shards), search.copies.ranges)
    ledger = [
        LedgerUnit(corpus, n, own, names, stage.path / DROPPED / f"duplicates-{n:05d}.parquet")
        for n, own in enumerate(_shards_of_ranges(shards, corpus, names.ranges))
    ]
    near = scratch.exchanged("near", 0, search.copies.ranges)
    removers = [RemovalUnit(corpus, n, near, search.copies, removals.rows.path(n)) for n in range(search.copies.ranges)]
    made = [*ledger, *removers, *(unit for units in removals.rows.merges() for unit in units)]
    done = [summary for unit in made if (summary := verified_summary(unit)) is not None]
    if len(done) == len(made):
        stage.keep(made)
        return removals, ledger_summary(done[: len(ledger)])
    near = near._replace(files=_verify_groups(search, scratch, settings))
    search.merge(near, "deduplicate: verify")
    stage.run(write_removals, [replace(unit, near=near) for unit in removers], "deduplicate: ledger")
    search.merge(removals.rows, "deduplicate: ledger")
    named = [NamesUnit(corpus, n, shard, removals.rows, names.path(n)) for n, shard in enumerate(shards)]
    stage.run(write_names, named, "deduplicate: ledger")
    search.merge(names, "deduplicate: ledger")
    return removals, ledger_summary(stage.run(write_ledger, ledger, "deduplicate: ledger"))


def _shards_of_ranges(shards: list[Shard], corpus: Corpus, ranges: int) -> Iterator[tuple[Shard, ...]]:
    """The shards that each range of documents is in."""
    ends = [shard.first + shard.rows for shard in shards]
    for number in range(ranges):
        first, last = corpus.bounds(number, ranges)
        yield tuple(shards[bisect_right(ends, first) : bisect_right(ends, last) + 1])


def _verify_groups(search: Search, corpus: Corpus, settings: DeduplicateSettings) -> int:
    """Run the units from clusters to near duplicates; returns how many of them wrote some."""
    candidates = corpus.exchanged("candidates", len(search.shards), 1)
    found, of_shard = (search.labels, search.copies), (settings.shingle, settings.shingle_length)
    units = [
        CandidateUnit(search.corpus, n, unit.shard, unit.output, *found, *of_shard, search.priority, candidates.path(n))
        for n, unit in enumerate(search.signatures)
    ]
    size = sum(summary["bytes"] for summary in search.stage.run(collect_candidates, units, "deduplicate: candidates"))
    if not size:
        return 0
    candidates = corpus.exchanged("candidates", len(search.shards), -(-size // GROUP_BYTES))
    search.merge(candidates, "deduplicate: candidates")
    near = corpus.exchanged("near", candidates.ranges, search.copies.ranges)
    verification = (settings.threshold, settings.rounds, settings.seed)
    groups = [GroupUnit(corpus, n, candidates, *verification, near.path(n)) for n in range(candidates.ranges)]
    search.stage.run(deduplicate_group, groups, "deduplicate: verify")
    return len(groups)


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
