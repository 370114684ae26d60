"""Disk and memory that deduplication takes, predicted before it runs.

All state is in arrays of fixed width, so its bytes follow from counts: the number of documents, the settings, and an
assumed share of near duplicates. benchmarks/deduplication_state.py compares the prediction with measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.document import CHARACTERS_PER_GROUP, ROWS_PER_GROUP
from mtnlg_data.words import BATCH_CHARACTERS

from .bands import KEYS_PER_RANGE, run_file_bytes
from .candidates import TABLE_BYTES
from .clusters import CANDIDATE_OVERHEAD_BYTES, GROUP_BYTES

if TYPE_CHECKING:
    from .stage import DeduplicateSettings

LIBRARY_BYTES = 350_000_000  # Python, NumPy, Arrow, SciPy and numba, in every process
CHARACTERS_PER_WORD = 6  # of English, separator included
CANDIDATE_NAME_BYTES = 128
LEDGER_ROW_BYTES = 64  # on disk, compressed
LEDGER_ROW_MEMORY_BYTES = 256


class StepState(NamedTuple):
    """One step: bytes it leaves on disk, and peak memory of each of its processes.

    ``workers`` is False for a step that runs in one process while the others wait.
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
    that have a near duplicate. 320 million documents of the paper's size take under 8 GB in any process.
    """
    bands = settings.bands
    candidates = round(candidate_share * documents)
    shingles = characters // CHARACTERS_PER_WORD if settings.shingle == "word" else characters
    candidate_bytes = 8 * shingles + 8 * bands + CANDIDATE_NAME_BYTES
    group_bytes = min(GROUP_BYTES, (candidate_bytes + CANDIDATE_OVERHEAD_BYTES) * candidates)
    # A row group in Arrow and as Python strings, and the arrays of one batch of texts.
    text = 3 * min(ROWS_PER_GROUP * characters, CHARACTERS_PER_GROUP) + 64 * BATCH_CHARACTERS
    shard = min(largest_shard, documents)
    mask = documents  # one byte each
    group_rows = min(candidates, GROUP_BYTES // candidate_bytes)
    tables = 3 * min(TABLE_BYTES, candidate_bytes * shard)
    # (step, disk, memory beside the libraries, workers)
    steps = (
        ("signatures", run_file_bytes(documents, bands), text + shard * (12 * bands + 16), True),
        ("bands", 16 * bands * candidates, 40 * min(documents, KEYS_PER_RANGE), True),
        ("clusters", 16 * candidates, 9 * documents + 48 * candidates, False),
        ("candidates", candidate_bytes * candidates, text + tables, True),
        ("verify", LEDGER_ROW_BYTES * candidates, 3 * group_bytes // 2, True),
        ("ledger", LEDGER_ROW_BYTES * candidates + mask, mask + LEDGER_ROW_MEMORY_BYTES * group_rows, False),
        ("write", 0, text + shard, True),
    )
    return tuple(StepState(step, disk, LIBRARY_BYTES + memory, workers) for step, disk, memory, workers in steps)
