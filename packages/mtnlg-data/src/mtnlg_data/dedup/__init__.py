"""Fuzzy deduplication across all sources (paper.md 4.3).

Signatures of every document, a shard at a time → buckets of every band → shingle sets of the candidates → verified
pairs → components → a ledger of what goes, and for whose sake → the shards of what stays. Each arrow is a set of units,
so a killed run goes on from there; no step holds all documents, nor more than one band of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, PositiveInt

from mtnlg_data.console import Failure, say
from mtnlg_data.dedup.bands import Band, Candidates, bucket, gather
from mtnlg_data.dedup.representative import Ledger, enter
from mtnlg_data.dedup.signature import ShingleKind, Signatures, sign
from mtnlg_data.dedup.verify import ShingleSets, Verification, collect, verify
from mtnlg_data.document import read_documents, write_documents
from mtnlg_data.engine import key_of, run_units
from mtnlg_data.funnel import stage
from mtnlg_data.settings import Settings
from mtnlg_data.shards import Made, Tallies, in_order, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mtnlg_data.engine import Engine, Summary
    from mtnlg_data.shards import Shard

REASON = "duplicate"


class DeduplicateSettings(Settings):
    """How near is a duplicate, and how it is looked for; the defaults are the paper's (4.3)."""

    bands: PositiveInt = 20
    rows: PositiveInt = 13  # values a band: bands * rows MinHash values in all
    threshold: float = Field(0.8, gt=0, le=1)  # Jaccard similarity from which a pair is one document
    shingle: ShingleKind = "word"
    shingle_length: PositiveInt = 5
    rounds: PositiveInt = 11  # pivots a bucket
    seed: int = Field(1, ge=0, lt=1 << 32)
    alarm_share: float = Field(0.5, ge=0, le=1)  # a source that loses more than this is named


@dataclass(frozen=True)
class Survivors:
    """Unit: one shard and the ledger → the documents of the shard that stay."""

    shard: Shard
    ledger: Made
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("survivors", self.shard.checksum, self.shard.path.name, self.ledger.key)


def deduplicate(
    shards: Sequence[Path], out: Path, settings: DeduplicateSettings, priority: Sequence[str], engine: Engine
) -> Summary:
    """Write ``out/<shard name>`` with what stays and ``out/removed.parquet``, the ledger; returns the stage's account.

    ``priority`` names the sources, the best first: of a component the document from the best source stays. Those that
    it does not name come after, all alike. The account's ``duplicates`` has components, cluster sizes, sample pairs,
    each source's removed share, and alarms.
    """
    if not shards:
        raise Failure("nothing to deduplicate: no shards were given")
    all_shards = numbered(shards)
    ledger, found = _search(all_shards, out, settings, tuple(priority), engine)
    survivors = [Survivors(shard, Made.by(ledger), out / shard.path.name) for shard in all_shards]
    summaries = run_units(engine, survive, survivors, "deduplicate: write")
    account = stage("deduplicate", summaries, in_order(summaries, priority))
    shares = {
        source: counts["dropped"].get(REASON, 0) / counts["documents_in"]
        for source, counts in account["sources"].items()
        if counts["documents_in"]
    }
    alarms = [
        f"{source} lost {share:.0%} of its documents as duplicates, more than {settings.alarm_share:.0%}; "
        f"look at the pairs in {ledger.output}"
        for source, share in shares.items()
        if share > settings.alarm_share
    ]
    for alarm in alarms:
        say(f"warning: {alarm}")
    shares = {source: round(share, 6) for source, share in shares.items()}
    return {**account, "duplicates": {**found, "removed_share": shares, "alarms": alarms}}


def _search(
    shards: list[Shard], out: Path, settings: DeduplicateSettings, priority: tuple[str, ...], engine: Engine
) -> tuple[Ledger, Summary]:
    """Run all units up to the ledger; returns that unit and its summary."""
    state = out / "state"
    shingle = (settings.shingle, settings.shingle_length)
    lsh = (settings.bands, settings.rows, settings.seed)
    signatures = tuple(Signatures(s, *shingle, *lsh, state / f"{s.path.stem}.keys.npy") for s in shards)
    bands = tuple(Band(b, signatures, state / f"band-{b:03d}.buckets") for b in range(settings.bands))
    candidates = Candidates(bands, sum(s.rows for s in shards), state / "candidates.npy")
    sets = tuple(ShingleSets(s, Made.by(candidates), *shingle, state / f"{s.path.stem}.sets") for s in shards)
    how = (settings.threshold, settings.rounds, settings.seed)
    edges = tuple(Verification(b, sets, *how, state / f"band-{b.number:03d}.edges.npy") for b in bands)
    ledger = Ledger(edges, tuple(shards), priority, out / "removed.parquet")
    run_units(engine, sign, signatures, "deduplicate: signatures")
    run_units(engine, bucket, bands, "deduplicate: bands")
    run_units(engine, gather, [candidates], "deduplicate: candidates")
    run_units(engine, collect, sets, "deduplicate: shingles")
    run_units(engine, verify, edges, "deduplicate: verify")
    return ledger, run_units(engine, enter, [ledger], "deduplicate: components")[0]


def survive(unit: Survivors) -> Summary:
    """Run one unit."""
    name = unit.shard.path.name
    removed = pq.read_table(unit.ledger.path, columns=["row"], filters=[("shard", "=", name)])["row"]
    tallies = Tallies()
    write_documents(unit.output, _kept(unit.shard.path, set(removed.to_pylist()), tallies))
    return tallies.summary()


def _kept(path: Path, removed: set[int], tallies: Tallies) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in read_documents(path):
        lengths = pc.utf8_length(batch["text"]).to_pylist()
        stays = [first + row not in removed for row in range(len(lengths))]
        for source, length, kept in zip(batch["source"].to_pylist(), lengths, stays, strict=True):
            if kept:
                tallies[source].keep(length)
            else:
                tallies[source].drop(length, REASON)
        yield batch.filter(pa.array(stays))
        first += len(lengths)
