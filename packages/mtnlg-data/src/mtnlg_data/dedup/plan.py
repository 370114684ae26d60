"""What deduplication takes of disk and memory, said before it runs.

All state is in arrays of fixed width, so the bytes follow from counts. ``documents`` and the settings are known; how
many documents have a near duplicate is not, and is assumed. A benchmark holds these figures to what is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.document import CHARACTERS_A_GROUP, ROWS_A_GROUP
from mtnlg_data.words import CHARACTERS_AT_ONCE

from .bands import KEYS_A_PART, run_bytes
from .candidates import BYTES_AT_ONCE
from .clusters import GROUP_BYTES, OBJECTS_BYTES

if TYPE_CHECKING:
    from .stage import DeduplicateSettings

LIBRARIES = 350_000_000  # Python, NumPy, Arrow, SciPy and numba, in every worker
WORD = 6  # characters a word of English, with what parts it from the next
NAMES = 128  # of a candidate
LEDGER_ROW = 64  # compressed
LEDGER_ROW_READ = 256


class StepState(NamedTuple):
    """One step: bytes that it leaves on disk, and the peak of each of its processes.

    ``workers`` is False of a step that one process does while the others wait.
    """

    step: str
    disk: int
    memory: int
    workers: bool


def state_bytes(
    documents: int,
    settings: DeduplicateSettings,
    *,
    characters: int = 4600,
    shard: int = 100_000,
    candidates: float = 0.3,
) -> tuple[StepState, ...]:
    """Disk and memory of every step of ``deduplicate``, for documents of so many characters on average.

    ``shard`` is how many documents the largest shard has; ``candidates`` the share of documents that have a near
    duplicate, about. 320 million documents of the paper's size take under 8 GB in any process.
    """
    bands = settings.bands
    some = round(candidates * documents)
    shingles = characters // WORD if settings.shingle == "word" else characters
    candidate = 8 * shingles + 8 * bands + NAMES
    gathered = min(GROUP_BYTES, (candidate + OBJECTS_BYTES) * some)
    # A row group as Arrow holds it and as Python's strings, and the arrays of what is worked on at once.
    text = 3 * min(ROWS_A_GROUP * characters, CHARACTERS_A_GROUP) + 64 * CHARACTERS_AT_ONCE
    shard = min(shard, documents)
    mask = documents  # a byte each
    part = min(some, GROUP_BYTES // candidate)
    return (
        StepState(
            "signatures", run_bytes(documents, bands), LIBRARIES + text + shard * (12 * bands + 16), workers=True
        ),
        StepState("bands", 16 * bands * some, LIBRARIES + 40 * min(documents, KEYS_A_PART), workers=True),
        StepState("clusters", 16 * some, LIBRARIES + 9 * documents + 48 * some, workers=False),
        StepState(
            "candidates", candidate * some, LIBRARIES + text + 3 * min(BYTES_AT_ONCE, candidate * shard), workers=True
        ),
        StepState("verify", LEDGER_ROW * some, LIBRARIES + 3 * gathered // 2, workers=True),
        StepState("ledger", LEDGER_ROW * some + mask, LIBRARIES + mask + LEDGER_ROW_READ * part, workers=False),
        StepState("write", 0, LIBRARIES + text + shard, workers=True),
    )
