"""The flight recorder: a rank's entries become a small trace, and traces name the ranks that hold up the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mtnlg_parallel.layout import Layout
from mtnlg_parallel.training.flight_recorder import GroupTrace, Trace, entered_by_all, missing_ranks, summarize

FOUR = Layout(tp=2, dp=2)  # tensor parallel groups 0 1 and 2 3, data parallel groups 0 2 and 1 3
ALL, TP, DP = "tp+dp+pp", "tp", "dp"


def trace(*groups: tuple[str, str, int, bool], peers: tuple[int, ...] = ()) -> Trace:
    """Of (name, members, number of the last collective entered, whether the rank waits in it)."""
    return Trace(
        tuple(GroupTrace(name, axes, last, last if waits else 0, "all_reduce") for name, axes, last, waits in groups),
        peers,
    )


def entry(
    group: str, number: int, ended: bool = True, operation: str = "nccl:all_reduce", **more: object
) -> dict[str, Any]:
    state = {"state": "completed" if ended else "scheduled", "retired": ended, "is_p2p": False}
    return {"process_group": [group, ""], "collective_seq_id": number, "profiling_name": operation, **state, **more}


def test_a_trace_holds_the_last_collective_of_each_group_and_the_oldest_that_has_not_ended() -> None:
    entries = [
        *(entry("0", number) for number in range(1, 100)),
        entry("5", 7, ended=False, operation="nccl:_reduce_scatter_base"),
        entry("5", 8, ended=False),
        entry("6", 3, retired=True, state="scheduled", operation="gloo:barrier"),
        entry("alone", 1, ended=False),
        entry("0", 0, ended=False, is_p2p=True, operation="nccl:recv 3<-1"),
        entry("0", 0, ended=True, is_p2p=True, operation="nccl:send 3->2"),
    ]
    groups = {"0": [0, 1, 2, 3], "5": [1, 3], "6": [0, 3], "alone": [3]}
    assert summarize(entries, groups, FOUR, 3) == Trace(
        (
            GroupTrace("nccl/0", ALL, 99, 0, ""),
            GroupTrace("nccl/5", DP, 8, 7, "_reduce_scatter_base"),
            GroupTrace("gloo/6", (0, 3), 3, 0, ""),
        ),
        (1,),
    )


def test_a_trace_stays_small_at_2240_ranks() -> None:
    layout = Layout(tp=8, pp=35, dp=8)
    groups = {str(n): list(range(n % 64 + 2)) for n in range(200)} | {"all": list(range(2240))}
    entries = [entry("all", 1), *(entry(str(n), 1, ended=False) for n in range(200))]
    assert len(json.dumps(summarize(entries, groups, layout, 0))) < 8000


def test_the_rank_behind_the_others_is_named_with_collective_and_group() -> None:
    traces = {rank: trace(("0", ALL, 12, True)) for rank in (0, 1, 3)} | {2: trace(("0", ALL, 11, False))}
    assert missing_ranks(FOUR, traces) == {
        2: "has not entered all_reduce 12 of the group of all ranks, where 3 ranks wait"
    }
    assert not entered_by_all(FOUR, traces)


def test_where_one_group_waits_for_another_the_origin_alone_is_named() -> None:
    """Rank 0 waits for 2 in data parallelism, which waits for 3 in tensor parallelism."""
    traces = {
        0: trace(("dp0", DP, 12, True), ("tp0", TP, 7, False)),
        1: trace(("dp1", DP, 12, True), ("tp0", TP, 7, False)),
        2: trace(("dp0", DP, 11, False), ("tp1", TP, 7, True)),
        3: trace(("dp1", DP, 11, False), ("tp1", TP, 6, False)),
    }
    assert list(missing_ranks(FOUR, traces)) == [3]
    assert "of the data parallel group of rank 1" in missing_ranks(FOUR, traces)[3]


def test_all_have_entered_where_no_rank_is_behind() -> None:
    traces: dict[int, Trace | None] = {rank: trace(("0", ALL, 12, True)) for rank in range(4)}
    assert not missing_ranks(FOUR, traces)
    assert entered_by_all(FOUR, traces) == "all_reduce 12 of the group of all ranks"
    assert not entered_by_all(FOUR, {rank: trace(("0", ALL, 12, False)) for rank in range(4)})


def test_a_rank_without_a_trace_is_named_only_where_no_other_is_behind() -> None:
    traces: dict[int, Trace | None] = {rank: trace(("0", ALL, 12, True)) for rank in range(3)} | {3: None}
    assert missing_ranks(FOUR, traces) == {
        3: "was not seen in all_reduce 12 of the group of all ranks, where 3 ranks wait"
    }
    assert list(missing_ranks(FOUR, traces | {1: trace(("0", ALL, 9, False))})) == [1]
    assert not missing_ranks(FOUR, dict.fromkeys(range(4)))


def test_a_rank_whose_buffer_holds_no_collective_of_the_group_is_behind() -> None:
    traces = {0: trace(("tp0", TP, 900, True)), 1: trace(("dp1", DP, 5000, False)), 2: trace(), 3: trace()}
    assert list(missing_ranks(FOUR, traces)) == [1]


def test_a_rank_that_receives_waits_for_the_sender_and_two_that_meet_for_nobody() -> None:
    stages = Layout(pp=3)
    traces: dict[int, Trace | None] = {0: trace(peers=(1,)), 1: trace(peers=(2,)), 2: trace()}
    assert missing_ranks(stages, traces) == {2: "has not met rank 1, which sends to it or receives from it"}
    assert not missing_ranks(stages, traces | {2: trace(peers=(1,)), 0: trace()})


def test_ranks_that_wait_for_each_other_in_a_circle_accuse_nobody() -> None:
    crossed = {
        0: trace(("tp0", TP, 4, True), ("dp0", DP, 1, False)),
        1: trace(("tp0", TP, 3, False), ("dp1", DP, 2, True)),
        2: trace(("tp1", TP, 3, False), ("dp0", DP, 2, True)),
        3: trace(("tp1", TP, 4, True), ("dp1", DP, 1, False)),
    }
    assert not missing_ranks(FOUR, crossed)
    assert not entered_by_all(FOUR, crossed)


@pytest.mark.parametrize("data", [None, [], [[]], [[["a"]], []], [[["a", "tp", "x", 0, ""]], []], [[], ["a"]], [[], 3]])
def test_what_is_not_a_trace_is_refused(data: Any) -> None:  # noqa: ANN401
    with pytest.raises((TypeError, ValueError)):
        Trace.parse(data)
