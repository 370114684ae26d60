"""Finds which ranks have not entered which collective, from torch's flight recorder.

The recorder keeps each rank's last collectives, NCCL's and gloo's, with the same numbers on all ranks of a process
group. If ranks of a group wait in collective n, those that last entered n - 1 hold them up; a rank that others wait for
and that waits for no one is the origin. NCCL records sends and receives; gloo does not. Groups in shared memory count
their own collectives (`shared_memory`), besides those that gloo runs for them.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_PEER = re.compile(r"nccl:(?:send \d+->|recv \d+<-)(\d+)")
"""torch's name of a send or a receive, with the peer's rank within the group."""


class Trace(NamedTuple):
    """A rank's last collective in each of its process groups, and its peers in sends and receives that have not ended.

    ``groups`` has, by group name: the number of the last collective entered; that of the oldest one that has not ended,
    0 if all have; and the latter's operation.
    """

    groups: dict[str, tuple[int, int, str]]
    peers: list[int]


def local_trace() -> Trace | None:
    """The trace of this rank; None if torch has recorded nothing."""
    from torch._C import _distributed_c10d as c10d  # noqa: PLC0415  (the launcher imports this without torch)
    from torch.distributed import distributed_c10d  # noqa: PLC0415  (as above)

    from mtnlg_parallel.shared_memory import SharedMemoryGroup  # noqa: PLC0415  (as above)

    entries: list[dict[str, Any]] = []
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):  # the first only where torch is built with NCCL
        if dump := getattr(c10d, name, None):
            entries += json.loads(dump(True, False)).get("entries") or ()  # with collectives, also those that ended
    world = distributed_c10d._world  # noqa: SLF001  (nothing public lists the groups)
    names = {group: str(name) for group, name in list(world.pg_names.items())}
    trace = summarize(entries, {name: sorted(world.pg_group_ranks.get(group, ())) for group, name in names.items()})
    trace.groups.update(
        (f"{name} in shared memory", group.last)
        for group, name in names.items()
        if isinstance(group, SharedMemoryGroup)
    )
    return trace if entries else None


def summarize(entries: Iterable[Mapping[str, Any]], groups: Mapping[str, Sequence[int]]) -> Trace:
    """Make a trace of the recorder's ``entries``, oldest first; ``groups`` has each process group's ranks by name."""
    # A group without an entry counts as never entered: older entries have been overwritten.
    last = {name: (0, 0, "") for name, ranks in groups.items() if len(ranks) > 1}
    peers = set()
    for entry in entries:
        name, number = entry["process_group"][0], entry["collective_seq_id"]
        ended = entry["retired"] or entry["state"] == "completed"  # gloo's entries never become "completed"
        if entry["is_p2p"]:
            match = _PEER.match(entry["profiling_name"])
            if match and not ended and int(match[1]) < len(groups.get(name, ())):
                peers.add(groups[name][int(match[1])])
        elif name in last:
            entered, waits, operation = last[name]
            if not ended and not waits:
                waits, operation = number, entry["profiling_name"].rpartition(":")[2]
            last[name] = max(entered, number), waits, operation
    return Trace(last, sorted(peers))


def missing_ranks(traces: Mapping[int, Trace]) -> tuple[dict[int, str], str]:
    """Ranks that others wait for and that wait for no one, each with what it has not done (text to follow its name).

    The second result is a collective that all ranks of its group have entered and that has not ended, or "".
    """
    missed: dict[int, str] = {}
    held, hanging = set(), ""
    groups: dict[str, dict[int, tuple[int, int, str]]] = defaultdict(dict)
    for rank, trace in traces.items():
        for name, last in trace.groups.items():
            groups[name][rank] = last
        for peer in trace.peers:
            if peer in traces and rank not in traces[peer].peers:
                held.add(rank)
                missed.setdefault(peer, f"has not matched a send or receive of rank {rank}")
    for entered in groups.values():
        latest, operation = max((waits, operation) for _, waits, operation in entered.values())
        behind = [rank for rank, (number, _, _) in entered.items() if number < latest]
        hanging = f"{operation} {latest}" if latest and not behind else hanging
        for rank in behind:
            waiting = [peer for peer, (_, waits, _) in entered.items() if waits > entered[rank][0]]
            held.update(waiting)
            ranks = ", ".join(map(str, waiting[:4])) + (f" and {len(waiting) - 4} more" if waiting[4:] else "")
            missed[rank] = f"has not entered {operation} {latest}, which ranks wait for: {ranks}"
    return {rank: text for rank, text in missed.items() if rank not in held}, hanging
