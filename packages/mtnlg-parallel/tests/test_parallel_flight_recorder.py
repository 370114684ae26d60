"""The flight recorder: a rank's entries become a small trace, and traces name the ranks that hold up the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mtnlg_parallel.training.flight_recorder import Trace, missing_ranks, summarize


def trace(*peers: int, **groups: tuple[int, bool]) -> Trace:
    """Of groups: the number of the last collective entered, whether the rank waits in it; and ranks that it meets."""
    return Trace({name: (last, last if waits else 0, "all_reduce") for name, (last, waits) in groups.items()}, [*peers])


def entry(
    group: str, number: int, ended: bool = True, operation: str = "nccl:all_reduce", **more: object
) -> dict[str, Any]:
    state = {"state": "completed" if ended else "scheduled", "retired": ended, "is_p2p": False}
    return {"process_group": [group, ""], "collective_seq_id": number, "profiling_name": operation, **state, **more}


def test_trace_has_last_and_oldest_pending_collectives() -> None:
    entries = [
        *(entry("0", number) for number in range(1, 100)),
        entry("5", 7, ended=False, operation="nccl:_reduce_scatter_base"),
        entry("5", 8, ended=False),
        entry("6", 3, retired=True, state="scheduled", operation="gloo:barrier"),
        entry("alone", 1, ended=False),
        entry("0", 0, ended=False, is_p2p=True, operation="nccl:recv 3<-1"),
        entry("0", 0, ended=True, is_p2p=True, operation="nccl:send 3->2"),
    ]
    groups = {"0": [0, 1, 2, 3], "5": [1, 3], "6": [0, 3], "alone": [3], "silent": [2, 3]}
    last = {"0": (99, 0, ""), "5": (8, 7, "_reduce_scatter_base"), "6": (3, 0, ""), "silent": (0, 0, "")}
    assert summarize(entries, groups) == Trace(last, [1])


BEHIND = {rank: trace(all=(12 - (rank == 2), rank != 2)) for rank in range(4)}
# Rank 0 waits for 2 in data parallelism, which waits for 3 in tensor parallelism.
CHAIN = {
    0: trace(dp0=(12, True), tp0=(7, False)),
    1: trace(dp1=(12, True), tp0=(7, False)),
    2: trace(dp0=(11, False), tp1=(7, True)),
    3: trace(dp1=(11, False), tp1=(6, False)),
}
CIRCLE = {
    0: trace(tp0=(4, True), dp0=(1, False)),
    1: trace(tp0=(3, False), dp1=(2, True)),
    2: trace(tp1=(3, False), dp0=(2, True)),
    3: trace(tp1=(4, True), dp1=(1, False)),
}
ALL_WAIT = {rank: trace(all=(12, True)) for rank in range(4)}


@pytest.mark.parametrize(
    ("traces", "missing"),
    [
        (BEHIND, [2]),
        (CHAIN, [3]),
        (CIRCLE, []),
        (ALL_WAIT, []),
        ({rank: trace(all=(12, False)) for rank in range(4)}, []),
        ({0: trace(tp0=(900, True)), 1: trace(tp0=(0, False)), 2: trace(), 3: trace()}, [1]),
        ({0: trace(1), 1: trace(2), 2: trace()}, [2]),
        ({0: trace(), 1: trace(2), 2: trace(1)}, []),  # they meet
        ({}, []),
    ],
)
def test_the_origin_alone_is_named(traces: dict[int, Trace], missing: list[int]) -> None:
    read = {rank: Trace(*json.loads(json.dumps(each))) for rank, each in traces.items()}
    for each in (traces, read):
        found, hanging = missing_ranks(each)
        assert (list(found), hanging) == (missing, "all_reduce 12" if traces is ALL_WAIT else "")


def test_watchdog_line_names_waiting_ranks_and_phase() -> None:
    assert missing_ranks(BEHIND)[0] == {2: "has not entered all_reduce 12, which ranks wait for: 0, 1, 3"}
    many = {rank: trace(all=(12 - (rank == 2), rank != 2)) for rank in range(2240)}
    assert missing_ranks(many)[0][2].endswith(": 0, 1, 3, 4 and 2235 more")
