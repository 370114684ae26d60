"""Disk and memory that deduplication takes, predicted before it runs.

All state is in arrays of fixed width, so its bytes follow from counts: the number of documents, the settings, and an
assumed share of near duplicates. benchmarks/deduplication_state.py compares the prediction with measurements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.document import group_memory
from mtnlg_data.exchange import MERGE_COPIES, ROWS_PER_RANGE, RUN_BYTES, Exchange
from mtnlg_data.words import BATCH_CHARACTERS

from .clusters import FOREST_BYTES
from .stage import LIBRARY_BYTES
from .verify import GROUP_BYTES

if TYPE_CHECKING:
    from .stage import DeduplicateSettings

CHARACTERS_PER_WORD = 6  # of English, separator included
BATCH_COPIES = 16  # memory for a character of a batch of texts whose shingles are hashed
# A row on disk: of a content hash, a key of a band, an end of a link, a cluster's root, a candidate beside its keys and
# set, a removed document, the same with its names, and compressed in the ledger.
CONTENT_BYTES, KEY_BYTES, LINK_BYTES, ROOT_BYTES, CANDIDATE_BYTES = 40, 16, 16, 16, 36
REMOVAL_BYTES, NAMED_BYTES, LEDGER_BYTES = 20, 160, 64
FILE_BYTES = 4096  # of a file beside its rows


class StepState(NamedTuple):
    """One step: bytes it writes, and peak memory of each of its processes; ``scratch`` goes when the stage is done."""

    step: str
    disk: int
    memory: int
    scratch: bool = False


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
    that have a near duplicate. A process's memory grows with ``largest_shard``, not with ``documents``.
    """
    bands = settings.bands
    candidates = round(candidate_share * documents)
    shingles = characters // CHARACTERS_PER_WORD if settings.shingle == "word" else characters
    candidate_bytes = 8 * shingles + 8 * bands + CANDIDATE_BYTES
    group = min(GROUP_BYTES, candidate_bytes * candidates)
    text = group_memory(characters, documents * characters)
    text += BATCH_COPIES * min(BATCH_CHARACTERS, documents * characters)
    shard = min(largest_shard, documents)
    shards = -(-documents // largest_shard)
    files = FILE_BYTES * shards
    copies = 1 + sum(1 for _ in Exchange(shards, 1).merges())  # of what shards hand on
    in_range = min(ROWS_PER_RANGE, documents)
    keys_in_range = min(ROWS_PER_RANGE, bands * documents)
    forest = FOREST_BYTES * documents
    keys = (copies * KEY_BYTES * documents + LINK_BYTES * candidates) * bands
    steps = (
        StepState("signatures", signature_bytes(documents, bands) + files, text + signature_bytes(shard, bands)),
        StepState(
            "copies",
            copies * CONTENT_BYTES * documents + files,
            _merge(CONTENT_BYTES * documents) + 3 * CONTENT_BYTES * in_range,
        ),
        StepState("bands", keys, _merge(KEY_BYTES * bands * documents) + KEY_BYTES * keys_in_range),
        StepState(
            "clusters",
            ROOT_BYTES * candidates,
            max(forest, _merge(LINK_BYTES * candidates) + 2 * ROOT_BYTES * in_range),
        ),
        StepState(
            "candidates",
            copies * candidate_bytes * candidates,
            text + _merge(candidate_bytes * candidates) + signature_bytes(shard, bands),
            scratch=True,
        ),
        StepState("verify", REMOVAL_BYTES * candidates, _merge(candidate_bytes * candidates) + 2 * group, scratch=True),
        StepState("names", copies * NAMED_BYTES * candidates, text + _merge(NAMED_BYTES * candidates), scratch=True),
        StepState(
            "ledger",
            (copies * REMOVAL_BYTES + LEDGER_BYTES) * candidates,
            _merge(NAMED_BYTES * candidates) + 2 * REMOVAL_BYTES * in_range,
        ),
        StepState("write", 0, text + shard),
    )
    return tuple(step._replace(memory=LIBRARY_BYTES + step.memory) for step in steps)


def signature_bytes(documents: int, bands: int) -> int:
    """Bytes on disk of the signatures of this many documents."""
    return documents * (8 * bands + 20)


def _merge(size: int) -> int:
    """Memory of a merge of so many bytes."""
    return MERGE_COPIES * min(RUN_BYTES, size)
