"""Shards without what the ledger removes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtnlg_data.document import read_documents, write_documents
from mtnlg_data.engine import key_of
from mtnlg_data.shards import Tallies

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mtnlg_data.engine import Summary
    from mtnlg_data.shards import Made, Shard

REASON = "duplicate"


@dataclass(frozen=True)
class Survivors:
    """Unit: one shard → its documents that stay."""

    shard: Shard
    removed: Made
    output: Path

    @cached_property
    def key(self) -> str:
        """See ``Unit``."""
        return key_of("survivors", self.shard.checksum, self.shard.path.name, self.removed.key)


def survive(unit: Survivors) -> Summary:
    """Run one unit."""
    tallies = Tallies()
    write_documents(unit.output, _kept(unit, tallies))
    return tallies.summary()


def _kept(unit: Survivors, tallies: Tallies) -> Iterator[pa.RecordBatch]:
    is_removed = np.load(unit.removed.path, mmap_mode="r")[unit.shard.first :]
    first = 0
    for batch in read_documents(unit.shard.path):
        stays = ~is_removed[first : first + batch.num_rows]
        lengths = pc.utf8_length(batch["text"]).to_pylist()
        for source, length, kept in zip(batch["source"].to_pylist(), lengths, stays.tolist(), strict=True):
            if kept:
                tallies[source].keep(length)
            else:
                tallies[source].drop(length, REASON)
        yield batch.filter(pa.array(stays)) if not stays.all() else batch
        first += batch.num_rows
