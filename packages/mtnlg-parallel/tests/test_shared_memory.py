"""Collectives of ranks that share memory, against gloo's; ranks that end, hang or cannot map the memory."""

import multiprocessing
import os
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from mtnlg_parallel import shared_memory
from mtnlg_parallel.engine.process import suppress_output
from mtnlg_parallel.launch.worker import _PEER_GONE
from mtnlg_parallel.training.flight_recorder import local_trace

with suppress_output():  # megatron-core's warnings
    from mtnlg_parallel.model import slicing

Work = Callable[[int, Any], Any]
SLOT = shared_memory.SLOT_BYTES // 4
SIZES = (0, 1, 2, 7, 1023, SLOT, SLOT + 3, 1_500_001)
SUM, MAX = distributed.ReduceOp.SUM, distributed.ReduceOp.MAX


def run(ranks: int, work: Work, folder: Path) -> list[Any]:
    """What ``work`` of rank and group returns on each rank, or its error; None where the rank was killed."""
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe(duplex=False) for _ in range(ranks)]
    processes = [
        context.Process(target=_rank, args=(rank, ranks, work, folder, end)) for rank, (_, end) in enumerate(ends)
    ]
    for process, (_, end) in zip(processes, ends, strict=True):
        process.start()
        end.close()
    results = []
    for result, _ in ends:
        try:
            results.append(result.recv())
        except EOFError:
            results.append(None)
    for process in processes:
        process.join()
    return results


def _rank(rank: int, ranks: int, work: Work, folder: Path, end: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # of names as before torch 2.13
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    store = distributed.FileStore(str(folder / "store"), ranks)  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    try:
        end.send(work(rank, slicing.new_group(range(ranks))))
    except distributed.DistBackendError as error:
        end.send(str(error))
    except Exception:  # noqa: BLE001  (shown by the assertion)
        end.send(traceback.format_exc())
    os._exit(0)


def differences(rank: int, group: Any) -> list[object]:  # noqa: ANN401  (a ProcessGroup)
    """The collectives whose bits are not gloo's, each begun before the one before it is waited for."""
    assert isinstance(group, shared_memory.SharedMemoryGroup)
    ranks, different, works = group.size(), list[object](), list[tuple[Any, ...]]()
    generator = torch.Generator().manual_seed(rank)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64):
        for size in SIZES:
            part = (torch.randn(size, generator=generator) * 100).to(dtype)
            whole = (torch.randn(size * ranks, generator=generator) * 100).to(dtype)
            for operation in (SUM, MAX):
                mine, gloos = part.clone(), part.clone()
                distributed.all_reduce(gloos, operation)
                works.append((distributed.all_reduce(mine, operation, group, async_op=True), mine, gloos, "all-reduce"))
                mine, gloos = torch.empty_like(part), torch.empty_like(part)
                distributed.reduce_scatter_tensor(gloos, whole, operation)
                work = distributed.reduce_scatter_tensor(mine, whole, operation, group, async_op=True)
                works.append((work, mine, gloos, "reduce-scatter"))
            mine, gloos = torch.empty_like(whole), torch.empty_like(whole)
            own = mine[rank * size : (rank + 1) * size].copy_(part)  # in place, as the optimizer gathers
            distributed.all_gather_into_tensor(gloos, part)
            works.append((distributed.all_gather_into_tensor(mine, own, group, async_op=True), mine, gloos, "gather"))
            for work, mine, gloos, name in works:
                work.wait()
                if not torch.equal(mine.view(torch.uint8), gloos.view(torch.uint8)):
                    different.append((name, dtype, size))
            works.clear()
    distributed.broadcast(part, 0, group)
    distributed.barrier(group)
    return different


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_collectives_have_gloos_bits(ranks: int, tmp_path: Path) -> None:
    assert run(ranks, differences, tmp_path) == [[]] * ranks


def test_a_killed_rank_ends_the_others_wait_and_leaves_no_memory(tmp_path: Path) -> None:
    def shared() -> set[str]:
        return {line for line in Path("/proc/self/maps").read_text().splitlines() if "rw-s" in line}

    before = shared()  # such as semaphores of earlier tests, which ranks inherit

    def work(rank: int, group: Any) -> None:  # noqa: ANN401  (as above)
        (segment,) = shared() - before
        assert "/memfd:" in segment
        distributed.all_reduce(torch.ones(8), group=group)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(torch.ones(SLOT + 1), group=group)

    first, killed, last = run(3, work, tmp_path)
    assert killed is None
    assert "peer 1 " in first
    assert all(map(_PEER_GONE.search, (first, last)))


def test_a_rank_that_hangs_outlasts_the_groups_timeout_and_the_trace_tells(tmp_path: Path) -> None:
    def work(rank: int, group: Any) -> object:  # noqa: ANN401  (as above)
        distributed.all_reduce(torch.ones(1), group=group)
        slicing.set_timeouts(timedelta(seconds=0.5))
        store = distributed.distributed_c10d._get_default_store()
        name = f"{group.group_name} in shared memory"
        if rank == 1:
            store.wait(["gave up"])
            return group.last
        entered = distributed.all_reduce(torch.ones(1), group=group, async_op=True)
        trace = local_trace()
        assert trace is None or trace.groups[name] == (2, 2, "all_reduce")
        try:
            return entered.wait()
        finally:
            store.set("gave up", "")

    first, hanging = run(2, work, tmp_path)
    assert "timed out" in first
    assert hanging == (1, 0, "all_reduce")


def test_ranks_that_cannot_share_memory_have_gloo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "readlink", lambda path: path / str(os.getpid()))  # a process's own names

    def work(_rank: int, group: Any) -> tuple[bool, float]:  # noqa: ANN401  (as above)
        total = torch.ones(3)
        distributed.all_reduce(total, group=group)
        return isinstance(group, shared_memory.SharedMemoryGroup), float(total.sum())

    assert run(3, work, tmp_path) == [(False, 9.0)] * 3


def test_group_closes_its_pipes_and_ends_in_silence() -> None:
    """Deleted, alive at the end of the process, and unfinished."""
    code = """
import mmap, os
from torch import distributed
from mtnlg_parallel.shared_memory import SharedMemoryGroup as Group
gloo = distributed.ProcessGroupGloo(distributed.HashStore(), 0, 1)
pipe = os.pipe()
group, other = (Group(gloo, mmap.mmap(-1, 1 << 21), {1: files}) for files in (os.pipe(), pipe))
del other
try:
    os.fstat(pipe[0])
except OSError:
    Group.__new__(Group)
    print("closed")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert (ended.stdout, ended.stderr) == ("closed\n", "")
