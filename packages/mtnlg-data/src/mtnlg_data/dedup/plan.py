"""Disk and memory that deduplication takes, predicted before it runs.

All state is in arrays of fixed width, so its bytes follow from counts: the number of documents, the settings, and an
assumed share of near duplicates. benchmarks/deduplication_state.py compares the prediction with measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.document import CHARACTERS_PER_GROUP, ROWS_PER_GROUP
from mtnlg_data.exchange import Exchange
from mtnlg_data.words import BATCH_CHARACTERS

from .clusters import FOREST_ROWS, LINKS_REDUCED
from .minhash import signature_bytes
from .runs import ROWS_PER_RANGE, RUN_BYTES
from .verify import GROUP_BYTES

if TYPE_CHECKING:
    from .stage import DeduplicateSettings

LIBRARY_BYTES = 350_000_000  # Python, NumPy, Arrow, SciPy and numba, in every process
CHARACTERS_PER_WORD = 6  # of English, separator included
# A row on disk: of a content hash, a key of a band, an end of a link, a cluster's root, a candidate beside its keys and
# set, a removed document, the same with its names, and compressed in the ledger.
CONTENT_BYTES, KEY_BYTES, LINK_BYTES, ROOT_BYTES, CANDIDATE_BYTES = 36, 16, 16, 16, 36
REMOVAL_BYTES, NAMED_BYTES, LEDGER_BYTES = 20, 160, 64
FILE_BYTES = 4096  # of a file beside its rows
MERGE_BYTES = 7 * RUN_BYTES  # memory of a merge: rows as read, together, sorted, and waiting to be written
LINK_MEMORY_BYTES = 100  # of a link while it is united with others


class StepState(NamedTuple):
    """One step: bytes it leaves on disk, and peak memory of each of its processes.

    ``workers`` is False for a step that runs in one process while the others wait: a copy of the ledger's parts.
    """

    step: str
    disk: int
    memory: int
    workers: bool


def deduplication_state_bytes(
    documents: int,
    settings: DeduplicateSettings,
    *,
    characters: int = 4600,
    largest_shard: int = 100_000,
    candidate_share: float = 0.3,
) -> tuple[StepState, ...]:
    """Disk and memory of every deduplication step, for documents of ``characters`` characters on average.

    ``largest_shard`` is the document count of the largest shard, ``candidate_share`` the approximate share of documents
    that have a near duplicate. No process takes 2 GB, however many documents there are.
    """
    bands = settings.bands
    candidates = round(candidate_share * documents)
    shingles = characters // CHARACTERS_PER_WORD if settings.shingle == "word" else characters
    candidate_bytes = 8 * shingles + 8 * bands + CANDIDATE_BYTES
    group = min(GROUP_BYTES, candidate_bytes * candidates)
    # A row group in Arrow and as Python strings, and the arrays of one batch of texts.
    text = 3 * min(ROWS_PER_GROUP * characters, CHARACTERS_PER_GROUP) + 64 * BATCH_CHARACTERS
    shard = min(largest_shard, documents)
    shards = -(-documents // largest_shard)
    files = FILE_BYTES * shards
    copies = 1 + sum(1 for _ in Exchange(shards, 1).merges())  # of what shards hand on
    in_range = min(ROWS_PER_RANGE, documents)
    merge = min(MERGE_BYTES, 7 * KEY_BYTES * bands * documents)
    forest = LINK_MEMORY_BYTES * min(FOREST_ROWS // 2, candidates)
    links = LINK_MEMORY_BYTES * min(LINKS_REDUCED, bands * candidates)
    named = candidates * (2 * copies * REMOVAL_BYTES + copies * NAMED_BYTES + LEDGER_BYTES)
    # (step, disk, memory beside the libraries, workers)
    steps = (
        ("signatures", signature_bytes(documents, bands) + files, text + signature_bytes(shard, bands), True),
        ("copies", copies * CONTENT_BYTES * documents + files, merge + 2 * CONTENT_BYTES * in_range, True),
        ("bands", (copies * KEY_BYTES * documents + LINK_BYTES * candidates) * bands, merge + links, True),
        ("clusters", ROOT_BYTES * candidates, max(forest, merge + 2 * ROOT_BYTES * in_range), True),
        ("candidates", copies * candidate_bytes * candidates, text + merge + signature_bytes(shard, bands), True),
        ("verify", REMOVAL_BYTES * candidates, merge + 2 * group, True),
        ("ledger", named, merge + 2 * REMOVAL_BYTES * in_range, True),
        ("join", LEDGER_BYTES * candidates, min(MERGE_BYTES, 7 * NAMED_BYTES * candidates), False),
        ("write", 0, text + shard, True),
    )
    return tuple(StepState(step, disk, LIBRARY_BYTES + memory, workers) for step, disk, memory, workers in steps)
