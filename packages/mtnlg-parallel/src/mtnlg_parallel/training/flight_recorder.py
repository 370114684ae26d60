"""Which ranks have not entered which collective, from torch's flight recorder.

The recorder keeps each rank's last 2,000 collectives, NCCL's and gloo's, numbered within their process group. All ranks
number them alike, so that of a group whose ranks wait in collective n, those that last entered n - 1 are missing:

    rank 0   data parallel group: entered 12, waits in 12     tensor parallel group: entered 7
    rank 1   data parallel group: entered 11                  tensor parallel group: entered 7, waits in 7
    rank 3                                                    tensor parallel group: entered 6

Rank 1 is missing in the data parallel group only because rank 3 is missing in the tensor parallel one. A rank that
others wait for and that waits for nobody is the origin. gloo records no sends and receives; NCCL does.
"""

from __future__ import annotations

import json
import re
from itertools import chain, combinations, product
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mtnlg_parallel.layout import Layout

AXES: Final = {"tp": "tensor", "dp": "data", "pp": "pipeline"}
MAX_GROUPS: Final = 32
MAX_MEMBERS: Final = 64
"""Ranks of a group that is not a product of axes; larger ones are left out, so that a trace stays small."""

_GROUP: Final = (
    r"(?:group of all ranks|(?:tensor|data|pipeline)(?: and (?:tensor|data|pipeline))* parallel group of rank \d+|"
    r"group of ranks \d+(?:, \d+)*)"
)
COLLECTIVE: Final = rf"\w{{0,64}} \d+ of the {_GROUP}"
MISSED: Final = (
    rf"(?:has not entered|was not seen in) {COLLECTIVE}, where \d+ ranks? waits?|"
    r"has not met rank \d+, which sends to it or receives from it"
)
"""Patterns of what `entered_by_all` and `missing_ranks` say."""

_PEER = re.compile(r"nccl:(?:send \d+->|recv \d+<-)(\d+)")


class GroupTrace(NamedTuple):
    """What a rank did in one process group. ``waits`` is the oldest collective that has not ended, 0 if all have.

    ``name`` is the same on all ranks of the group; ``members`` are axes such as "tp+dp", or the ranks.
    """

    name: str
    members: str | tuple[int, ...]
    entered: int
    waits: int
    operation: str


class Trace(NamedTuple):
    """What a rank did in its process groups, and the ranks that it sends to or receives from without an end yet."""

    groups: tuple[GroupTrace, ...]
    peers: tuple[int, ...]

    @classmethod
    def parse(cls, data: Any) -> Self:  # noqa: ANN401  (JSON that another rank wrote)
        """The trace that was written as JSON. Raises ``ValueError`` or ``TypeError`` where it is not one."""
        groups, peers = data
        parsed = []
        for name, members, entered, waits, operation in groups:
            known = set(members.split("+")) <= AXES.keys() if isinstance(members, str) else True
            if not (known and isinstance(name, str) and re.fullmatch(r"\w{0,64}", operation, re.ASCII)):
                raise ValueError(operation)
            ranks = members if isinstance(members, str) else tuple(map(int, members))
            parsed.append(GroupTrace(str(name), ranks, int(entered), int(waits), str(operation)))
        return cls(tuple(parsed), tuple(map(int, peers)))


def local_trace(layout: Layout, rank: int) -> Trace | None:
    """The trace of this rank; None where torch has recorded nothing."""
    from torch._C import _distributed_c10d as c10d  # noqa: PLC0415  (the launcher imports this without torch)

    entries: list[dict[str, Any]] = []
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):  # the first only where torch is built with NCCL
        if dump := getattr(c10d, name, None):
            entries += json.loads(dump(True, False)).get("entries") or ()  # with collectives, also those that ended
    return summarize(entries, _process_groups(), layout, rank) if entries else None


def _process_groups() -> dict[str, list[int]]:
    """The ranks of each of this process' groups, by name."""
    from torch.distributed import distributed_c10d  # noqa: PLC0415  (as above)

    world = distributed_c10d._world  # noqa: SLF001  (nothing public lists the groups)
    return {name: sorted(world.pg_group_ranks.get(group, ())) for group, name in list(world.pg_names.items())}


def summarize(
    entries: Iterable[Mapping[str, Any]], groups: Mapping[str, Sequence[int]], layout: Layout, rank: int
) -> Trace:
    """The trace of the recorder's ``entries``, oldest first; ``groups`` are the ranks of each process group by name."""
    traces: dict[str, GroupTrace] = {}
    peers = set()
    for entry in entries:
        backend, _, operation = entry["profiling_name"].partition(":")
        operation = re.sub(r"\W", "_", operation, flags=re.ASCII)[:64]
        ranks = groups.get(entry["process_group"][0], ())
        # gloo's entries never become "completed"
        ended = entry["retired"] or entry["state"] == "completed"
        if entry["is_p2p"]:
            match = _PEER.match(entry["profiling_name"])
            if match and not ended and int(match[1]) < len(ranks):
                peers.add(ranks[int(match[1])])
            continue
        key, number = f"{backend}/{entry['process_group'][0]}", entry["collective_seq_id"]
        before = traces.get(key)
        if before is None:
            members = _members(layout, rank, ranks)
            if members is None or len(traces) == MAX_GROUPS:
                continue
            before = GroupTrace(key, members, 0, 0, "")
        if not ended and not before.waits:
            before = before._replace(waits=number, operation=operation)
        traces[key] = before._replace(entered=max(before.entered, number))
    return Trace(tuple(traces.values()), tuple(sorted(peers)))


def _members(layout: Layout, rank: int, ranks: Sequence[int]) -> str | tuple[int, ...] | None:
    """These ranks as axes on which ``rank``'s coordinates vary, all of them first; else listed; None if too many."""
    if len(ranks) < 2:  # a rank alone waits for nobody
        return None
    for axes in chain([tuple(AXES)], combinations(AXES, 1), combinations(AXES, 2)):
        if ranks == _ranks_along(layout, rank, axes):
            return "+".join(axes)
    return tuple(ranks) if len(ranks) <= MAX_MEMBERS else None


def _ranks_along(layout: Layout, rank: int, axes: Iterable[str]) -> list[int]:
    """The ranks whose coordinates equal ``rank``'s but on these axes, ascending."""
    here = layout.coordinates(rank)
    tp, dp, pp = (range(getattr(layout, axis)) if axis in axes else [getattr(here, axis)] for axis in AXES)
    return sorted(layout.rank(tp=t, pp=p, dp=d) for t, d, p in product(tp, dp, pp))


class _Group(NamedTuple):
    """One process group as all its ranks that left a trace describe it."""

    label: str
    ranks: list[int]
    entered: dict[int, int]
    waits: dict[int, int]
    operation: str

    @property
    def untraced(self) -> list[int]:
        """Ranks that left no trace."""
        return [rank for rank in self.ranks if rank not in self.entered]

    def behind(self) -> dict[int, int]:
        """Ranks that have not entered what others wait in, with the number of those."""
        latest = max(self.waits.values(), default=0)
        late = {rank: entered for rank, entered in self.entered.items() if entered < latest}
        return {rank: sum(number > entered for number in self.waits.values()) for rank, entered in late.items()}

    def held(self) -> list[int]:
        """Ranks that wait for one that is behind."""
        least = min(self.entered.values(), default=0)
        return [rank for rank, number in self.waits.items() if number > least]

    @property
    def collective(self) -> str:
        """Such as "all_reduce 12 of the data parallel group"."""
        return f"{self.operation} {max(self.waits.values(), default=0)} of the {self.label}"


def _groups(layout: Layout, traces: Mapping[int, Trace | None]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for rank, trace in traces.items():
        for name, members, entered, waits, operation in trace.groups if trace else ():
            group = groups.get(name)
            if group is None:
                axes = members.split("+") if isinstance(members, str) else []
                ranks = list(members) if isinstance(members, tuple) else _ranks_along(layout, rank, axes)
                # Of a group without an entry the rank entered nothing lately, whatever it did long ago.
                traced = {rank: 0 for rank in ranks if traces.get(rank)}
                group = groups[name] = _Group(_label(axes, ranks), ranks, traced, {}, operation)
            if rank in group.entered:
                group.entered[rank] = entered
            if waits:
                group.waits[rank] = waits
                groups[name] = group._replace(operation=operation)
    return list(groups.values())


def _label(axes: Sequence[str], ranks: Sequence[int]) -> str:
    if len(axes) == len(AXES):
        return "group of all ranks"
    if axes:
        return f"{' and '.join(AXES.get(axis, axis) for axis in axes)} parallel group of rank {ranks[0]}"
    return f"group of ranks {', '.join(map(str, ranks))}"


def missing_ranks(layout: Layout, traces: Mapping[int, Trace | None]) -> dict[int, str]:
    """The ranks that the others wait for and that wait for nobody, each with what it has not done, after its name.

    Where no rank is known to be behind, those that left no trace are. Empty where all have entered everything, or wait
    in a circle.
    """
    groups = _groups(layout, traces)
    missed: dict[int, str] = {}
    held = set(chain.from_iterable(group.held() for group in groups))
    for group in groups:
        for rank, waiting in group.behind().items():
            missed.setdefault(rank, f"has not entered {group.collective}, where {_waiting(waiting)}")
    waits_for = {rank: set(trace.peers) for rank, trace in traces.items() if trace}
    for rank, peers in waits_for.items():
        for peer in peers:
            if rank not in waits_for.get(peer, ()):
                held.add(rank)
                missed.setdefault(peer, f"has not met rank {rank}, which sends to it or receives from it")
    certain = {rank: text for rank, text in missed.items() if rank not in held and traces.get(rank)}
    if certain:
        return certain
    return {
        rank: f"was not seen in {group.collective}, where {_waiting(len(group.waits))}"
        for group in groups
        for rank in (group.untraced if group.waits else ())
    }


def _waiting(ranks: int) -> str:
    return f"{ranks} ranks wait" if ranks > 1 else "1 rank waits"


def entered_by_all(layout: Layout, traces: Mapping[int, Trace | None]) -> str:
    """A collective that all ranks of its group have entered and that has not ended; "" if there is none."""
    for group in _groups(layout, traces):
        if group.waits and not group.untraced and not group.behind():
            return group.collective
    return ""
