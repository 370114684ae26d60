"""Process groups whose CPU tensors meet in memory that the ranks of one machine share: gloo's sums without its sockets.

    publish    copy a piece of this rank's tensor to its slot; post a semaphore for each peer
    wait       for the semaphore of each peer
    read       sum or copy the slots of all ranks into the result

A rank has two slots, used in turn, and reads a piece before it publishes the next. So once all have published a piece,
all have read the one before, and its slots are free. A collective publishes its first piece when it begins, and does
the rest when it is waited for, or when the next of its group begins. What is neither a sum nor a gather goes to gloo.

Sums have the bits of gloo's ring (gloo/allreduce.cc), which adds chunk c in the order of ranks c - 1, c - 2, …, c;
torch's reduce-scatter over gloo is a part of that all-reduce.

POSIX semaphores order memory on every processor (POSIX.1-2017, 4.12) and call the kernel only where a rank sleeps. The
memory is a memfd, which has no name that another user could open or a killed rank leave behind: its path in /proc opens
for processes of the same user alone, and the group's store holds it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import select
import time
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor
from torch.distributed import Backend, DistBackendError, ProcessGroup, ProcessGroupGloo, ReduceOp, Work

from .environment import this_rank
from .waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from torch.distributed import Store  # type: ignore[attr-defined]

    Read = Callable[[list[Tensor], int], None]  # of each rank's elements, and the number of the first

BACKEND: Final = "shared_memory"
SUMMED: Final = (torch.float32, torch.float64, torch.bfloat16)
SLOT_BYTES: Final = 1 << 20
RING_BYTES: Final = 1 << 20
"""Bytes of the longest segment of gloo's ring, in which a rank's chunk has two at least."""

SPINS: Final = 100
"""Looks at a semaphore, some 30 µs in all, before a rank sleeps; none where ranks outnumber cores."""

SLEEP_SECONDS: Final = 0.25
"""How long a rank sleeps before it looks whether its peers live."""

SEMAPHORE_BYTES: Final = 64
"""A cache line; a semaphore has 32 at most."""

_libc, _spinning = ctypes.CDLL(None), ctypes.PyDLL(None)  # the second keeps the interpreter's lock


class SharedMemoryGroup(ProcessGroup):
    """A process group whose ranks have all mapped ``memory``; ``pids`` are theirs.

    The memory has a semaphore for each pair of ranks, then two slots for each rank. Only what is written takes memory.
    """

    def __init__(self, gloo: ProcessGroupGloo, memory: mmap.mmap, pids: list[int]) -> None:
        rank, ranks = gloo.rank(), gloo.size()
        super().__init__(rank, ranks)  # type: ignore[call-arg] # what Python's subclasses have
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        self._gloo: Any = gloo  # whose collectives have no types
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self._peers = {
            peer: (_semaphore(self._bytes, rank, peer, ranks), _semaphore(self._bytes, peer, rank, ranks))
            for peer in range(ranks)
            if peer != rank
        }
        self._exits = {peer: os.pidfd_open(pids[peer]) for peer in self._peers}
        self._spins = SPINS if this_rank().local_world <= len(os.sched_getaffinity(0)) else 0
        self._pieces, self._pending = 0, Collective(iter(()))
        self._entered, self._operation = 0, ""

    def __del__(self) -> None:
        """Close what tells of peers' ends."""
        for file in self._exits.values():
            os.close(file)

    @property
    def last(self) -> tuple[int, int, str]:
        """As a flight recorder's `Trace` has it: collectives entered, the one that has not ended or 0, and its name."""
        return self._entered, 0 if self._pending.is_completed() else self._entered, self._operation

    def allreduce(self, tensors: list[Tensor], options: Any) -> Work:  # type: ignore[override] # noqa: ANN401  (torch's options)
        """Sum over the ranks, in place."""
        (tensor,) = tensors
        if not _sums(options, tensor):
            return cast("Work", self._gloo.allreduce(tensors, options))
        flat = tensor.data.view(-1)
        return self._begin("all_reduce", flat, lambda slots, start: _sum(slots, start, flat, 0, len(flat)))

    def reduce_scatter_single(self, output: Tensor, source: Tensor, options: Any) -> Work:  # noqa: ANN401  (as above)
        """Sum over the ranks; ``output`` is this rank's part."""
        if not _sums(options, output, source) or len(self._exits) + 1 != source.numel() / output.numel():
            return cast("Work", self._gloo._reduce_scatter_base(output, source, options))  # noqa: SLF001  (both versions' name)
        flat, total = output.data.view(-1), source.data.view(-1)
        first = self.rank() * len(flat)
        return self._begin("reduce_scatter", total, lambda slots, start: _sum(slots, start, flat, first, len(total)))

    def all_gather_single(self, output: Tensor, source: Tensor, options: Any) -> Work:  # type: ignore[override] # noqa: ANN401  (as above)
        """Every rank's ``source``, in rank order."""
        if not _is_shareable(output, source) or output.numel() != self.size() * source.numel():
            return cast("Work", self._gloo._allgather_base(output, source, options))  # noqa: SLF001  (as above)
        rows = output.data.view(self.size(), -1)

        def read(slots: list[Tensor], start: int) -> None:
            for row, slot in zip(rows, slots, strict=True):
                row[start : start + len(slot)] = slot

        return self._begin("all_gather", source.data.view(-1), read)

    _reduce_scatter_base, _allgather_base = reduce_scatter_single, all_gather_single  # type: ignore[assignment] # before torch 2.13

    def _begin(self, operation: str, source: Tensor, read: Read) -> Work:
        wait_for(self._pending)
        self._entered, self._operation = self._entered + 1, operation
        self._pending = Collective(self._exchange(source, read))
        return self._pending

    def _exchange(self, source: Tensor, read: Read) -> Iterator[None]:
        """Yields once it has published the first piece."""
        for start in range(0, len(source), width := SLOT_BYTES // source.element_size()):
            piece = source[start : start + width]
            slots = self._slots(piece)
            slots[self.rank()].copy_(piece)
            for post, _ in self._peers.values():
                _libc.sem_post(post)
            if start == 0:
                yield
            for peer in self._peers:
                self._wait(peer)
            read(slots, start)

    def _slots(self, piece: Tensor) -> list[Tensor]:
        """The next slot of each rank, as long as the piece."""
        self._pieces += 1
        header, ranks = SEMAPHORE_BYTES * self.size() ** 2, range(self.size())
        starts = (header + SLOT_BYTES * (2 * rank + self._pieces % 2) for rank in ranks)
        return [self._bytes[start : start + piece.nbytes].view(piece.dtype) for start in starts]

    def _wait(self, peer: int) -> None:
        """Return when the peer has published as many pieces. Raises ``DistBackendError`` if it ends, or too late."""
        semaphore, exit_ = self._peers[peer][1], select.poll()
        if any(_spinning.sem_trywait(semaphore) == 0 for _ in range(self._spins)):
            return
        deadline = time.monotonic() + self._gloo.options._timeout.total_seconds()  # noqa: SLF001  (torch has no other)
        exit_.register(self._exits[peer], select.POLLIN)
        has_ended: object = False
        while _libc.sem_clockwait(semaphore, time.CLOCK_MONOTONIC, ctypes.byref(_until(SLEEP_SECONDS))):
            if has_ended or time.monotonic() > deadline:
                what = "terminated" if has_ended else "did not come before the timeout"
                raise DistBackendError(f"peer {peer} of process group {self.group_name} {what}")
            has_ended = exit_.poll(0)


class Collective(Work):
    """A collective that has begun."""

    def __init__(self, steps: Iterator[None]) -> None:
        super().__init__()
        self._steps: Iterator[None] | None = steps
        self._advance()

    def _advance(self) -> None:
        with torch.no_grad():
            if next(self._steps or iter(()), self) is self:
                self._steps = None

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002  (the group's counts, as gloo's does)
        """Return when the result is there."""
        self._advance()
        return True

    def is_completed(self) -> bool:
        """Whether the result is there."""
        return self._steps is None


def register() -> None:
    """Make `BACKEND` known to torch."""
    if BACKEND not in Backend.backend_list:
        Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: object) -> ProcessGroup | ProcessGroupGloo:  # noqa: ANN401  (torch's options)
    """The group in shared memory where its ranks can share some; else gloo."""
    store, rank, ranks = options.store, options.group_rank, options.group_size
    gloo = ProcessGroupGloo(store, rank, ranks, timeout=options.timeout)
    gloo.options.global_ranks_in_group, gloo.options.group_name = options.global_ranks_in_group, options.group_id
    gloo._set_sequence_number_for_group()  # noqa: SLF001  (as torch does)
    if ranks == 1:
        return gloo
    file = memory = None
    try:
        file = _open(store, rank, ranks)
        os.close(os.pidfd_open(os.getpid()))
        memory = mmap.mmap(file, 0)
    except (OSError, AttributeError):  # another machine, user or system
        pass
    store.set(f"rank {rank}", str(os.getpid() if memory else 0))
    pids = [int(store.get(f"rank {each}")) for each in range(ranks)]
    if file is not None:
        os.close(file)
    return SharedMemoryGroup(gloo, memory, pids) if memory and all(pids) else gloo


def _open(store: Store, rank: int, ranks: int) -> int:
    """The file of the group's memory, which rank 0 makes."""
    if rank:
        path, name = store.get("memory").decode().split()
        if str(Path(path).readlink()) != f"/memfd:{name} (deleted)":
            raise OSError(path)
        return os.open(path, os.O_RDWR)
    name, file = secrets.token_hex(16), -1
    try:
        _libc.sem_clockwait  # noqa: B018
        file = os.memfd_create(name)
        os.ftruncate(file, SEMAPHORE_BYTES * ranks**2 + 2 * SLOT_BYTES * ranks)
        semaphores = torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
        for sender in range(ranks):
            for receiver in range(ranks):
                _libc.sem_init(_semaphore(semaphores, sender, receiver, ranks), 1, 0)
    finally:
        store.set("memory", f"/proc/{os.getpid()}/fd/{file} {name}")
    return file


def _semaphore(memory: Tensor, sender: int, receiver: int, ranks: int) -> ctypes.c_void_p:
    """What a sender posts and a receiver waits for."""
    return ctypes.c_void_p(memory.data_ptr() + SEMAPHORE_BYTES * (sender * ranks + receiver))


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _until(seconds: float) -> _Timespec:
    whole, nanoseconds = divmod(time.monotonic_ns() + int(seconds * 1e9), 10**9)
    return _Timespec(whole, nanoseconds)


def _is_shareable(*tensors: Tensor) -> bool:
    return len({tensor.dtype for tensor in tensors}) == 1 and all(
        tensor.is_cpu and tensor.is_contiguous() and tensor.numel() for tensor in tensors
    )


def _sums(options: Any, *tensors: Tensor) -> bool:  # noqa: ANN401  (torch's options)
    return options.reduceOp == ReduceOp.SUM and tensors[0].dtype in SUMMED and _is_shareable(*tensors)


def _sum(slots: list[Tensor], start: int, out: Tensor, first: int, total: int) -> None:
    """Sum the slots, elements [start, ...) of ``total``, into ``out``, which has elements [first, ...)."""
    ranks, width = len(slots), _ring_chunk(total, out.element_size(), len(slots))
    low, last = max(start, first), min(start + len(slots[0]), first + len(out))
    while low < last:
        chunk, high = low // width, min(last, (low // width + 1) * width)
        one, other, *more = (slots[(chunk - step) % ranks][low - start : high - start] for step in range(1, ranks + 1))
        result = torch.add(one, other, out=out[low - first : high - first])
        for term in more:
            result += term
        low = high


def _ring_chunk(elements: int, size: int, ranks: int) -> int:
    """Elements that gloo's ring sums in one order; ``size`` is an element's."""
    per_rank = ceil(max(ceil(elements * size / RING_BYTES), 2 * ranks) / ranks)
    return per_rank * ceil(ceil(elements * size / (per_rank * ranks)) / size)
