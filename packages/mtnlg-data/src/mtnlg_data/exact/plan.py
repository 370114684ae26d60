"""Disk and memory that exact deduplication takes, predicted before it runs: all its state is arrays of fixed width."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mtnlg_data.exchange import ROWS_PER_RANGE as KEYS_PER_RANGE

if TYPE_CHECKING:
    from .settings import ExactSettings

CHARACTERS_PER_TOKEN = {"word": 5.0, "character": 1.2}  # of English, white space included
CHARACTERS_PER_LINE = 200
RANGE_BYTES_PER_KEY = 120  # memory of a task while it sorts
HEAD_BYTES, ANCHOR_BYTES = 36, 24  # on disk
ITEM_MEMORY_BYTES = 72  # of a thing while its run is sorted


class ExactState(NamedTuple):
    """Bytes on disk beside the documents, and in memory of each process beside its libraries and texts."""

    disk: int
    memory: int


def exact_state_bytes(
    documents: int, characters: int, shard_characters: int, settings: ExactSettings, repeated_share: float = 0.3
) -> ExactState:
    """The state for documents of ``characters`` characters on average, in shards of ``shard_characters`` at most.

    ``repeated_share`` is the share of the text that lies in passages which recur.
    """
    text = documents * characters
    tokens = text / CHARACTERS_PER_TOKEN[settings.substring_unit]
    items = {
        "documents": float(documents),
        "lines": text / min(CHARACTERS_PER_LINE, characters),
        "substrings": repeated_share * tokens,
    }
    counts = [items[kind] for kind in settings.kinds]
    half = settings.substring_length // 2
    places = max(0.0, tokens - documents * half)  # of half-windows; a lowest one is expected twice in a window's
    anchors = 2 * places / (settings.substring_length - half + 2) if "substrings" in settings.kinds else 0
    share = min(1.0, shard_characters / max(1, text))
    largest = max(counts, default=0.0)
    memory = max(ITEM_MEMORY_BYTES * share * largest, RANGE_BYTES_PER_KEY * min(largest, KEYS_PER_RANGE))
    return ExactState(int(HEAD_BYTES * sum(counts) + ANCHOR_BYTES * anchors), int(memory))
