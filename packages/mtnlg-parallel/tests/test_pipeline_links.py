"""Links between pipeline ranks where the first message between two ranks of a group makes both hosts wait, as NCCL's.

Torch's process groups are replaced by ones that do so, and ranks by threads.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock, local
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mtnlg_parallel.engine.process import suppress_output
from mtnlg_parallel.schedules import Order, load_schedule, schedule_of

with suppress_output():  # megatron-core's warnings
    from mtnlg_parallel.engine import pipeline_engine

PATIENCE = 5.0
"""Seconds until hosts that wait for each other count as a deadlock."""


class LazyGroups:
    """Process groups of threads. Messages have no content: what is tried is which call waits for which."""

    def __init__(self) -> None:
        self._here, self._lock = local(), Lock()
        self._pairs: dict[tuple[int, frozenset[int]], Barrier] = {}

    def become(self, rank: int) -> None:
        """Be a rank, in this thread."""
        self._here.rank, self._here.groups, self._here.connected = rank, 0, set()

    def get_rank(self) -> int:
        """As `torch.distributed.get_rank`."""
        return int(self._here.rank)

    def new_group(self, _ranks: list[int], **_options: object) -> int:
        """As `torch.distributed.new_group`: a group's name is how many its ranks have made before."""
        self._here.groups += 1
        return int(self._here.groups)

    def isend(self, _message: torch.Tensor, peer: int, group: int) -> Any:  # noqa: ANN401  (torch's Work)
        """As `torch.distributed.isend` and `irecv`."""
        link = group, frozenset((self.get_rank(), peer))
        if link not in self._here.connected:
            with self._lock:
                pair = self._pairs.setdefault(link, Barrier(2))
            pair.wait(PATIENCE)
            self._here.connected.add(link)
        return SimpleNamespace(wait=lambda: None)

    irecv = isend


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 1), (2, 2), (3, 1), (3, 2), (5, 1), (4, 3)])
@pytest.mark.parametrize("split", [False, True])
def test_no_two_ranks_wait_to_be_connected_over_different_links(
    ranks: int, chunks: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = LazyGroups()
    monkeypatch.setattr(pipeline_engine, "distributed", groups)
    monkeypatch.setattr(pipeline_engine, "new_group", groups.new_group)
    last = ranks * chunks - 1

    def step(rank: int, order: Order) -> None:
        """The messages of a rank's step, as the engine posts and sends them."""
        groups.become(rank)
        links = pipeline_engine.Links(range(ranks), chunks, torch.device("cpu"))
        engine: Any = SimpleNamespace(
            links=links,
            last_stage=last,
            new_message=lambda: torch.empty(1),
            stage_of=lambda chunk: chunk * ranks + rank,
        )
        receives = {
            kind: pipeline_engine._Receives(engine, kind, [action for action in order if action.kind == kind])
            for kind in ("forward", "backward")
        }
        for kind, _, chunk in order:
            if kind != "weights":
                stage, (end, way) = chunk * ranks + rank, (0, 1) if kind == "forward" else (last, -1)
                if stage != end:
                    receives[kind].take()
                if 0 <= stage + way <= last:
                    links.send(kind, torch.empty(1), stage + way)

    name = "zero-bubble" if split else schedule_of(chunks)
    with ThreadPoolExecutor(ranks) as threads:
        list(threads.map(step, range(ranks), load_schedule(name).orders(ranks, chunks, 2 * ranks)))
