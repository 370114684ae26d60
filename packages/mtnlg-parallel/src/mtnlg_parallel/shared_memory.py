"""Process groups that run collectives on CPU tensors through shared memory of one machine, instead of gloo's sockets.

    publish    copy a piece of this rank's tensor to its slot; write a byte to each peer's pipe
    wait       for a byte from each peer
    read       sum or copy the slots of all ranks into the result

A rank has two slots, used in turn, and reads a piece before it publishes the next. So once all ranks have published a
piece, all have read the previous one, and its slots are free. A collective publishes its first piece when it begins,
and does the rest when it is waited for, or when the group's next collective begins. Operations other than sums and
gathers go to gloo.

Sums are bit-identical to gloo's ring (gloo/allreduce.cc), which adds chunk c in the order of ranks c - 1, c - 2, …, c;
torch's reduce-scatter over gloo is a part of that all-reduce.

A pipe's lock in the kernel orders the writer's memory accesses before the reader's on every processor, a waiting rank
takes no processor time, and the pipe closes when its writer ends. Memory and pipes have no names that another user
could open or a killed rank could leave behind: only the same user can open their paths in /proc, which the group's
store holds.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import select
import weakref
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor
from torch.distributed import Backend, DistBackendError, ProcessGroup, ProcessGroupGloo, ReduceOp, Work

from .waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    Read = Callable[[list[Tensor], int], None]  # of each rank's elements, and the number of the first

BACKEND: Final = "shared_memory"
SUMMED: Final = (torch.float32, torch.float64, torch.bfloat16)
SLOT_BYTES: Final = 1 << 20
RING_BYTES: Final = 1 << 20
"""Most bytes per segment of gloo's ring; each rank's chunk has at least two segments."""


class SharedMemoryGroup(ProcessGroup):
    """A process group whose ranks have all mapped ``memory``, two slots per rank. Only written pages take memory.

    ``pipes`` has, by peer, the pipe that the peer writes and the pipe that it reads.
    """

    def __init__(self, gloo: ProcessGroupGloo, memory: mmap.mmap, pipes: dict[int, tuple[int, int]]) -> None:
        super().__init__(gloo.rank(), gloo.size())  # type: ignore[call-arg] # what Python's subclasses have
        self._set_default_backend(ProcessGroup.BackendType.GLOO)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.GLOO, gloo)
        self._gloo: Any = gloo  # whose collectives have no types
        self._pipes, self._bytes = pipes, torch.frombuffer(memory, dtype=torch.uint8)
        self._pieces, self._pending = 0, Collective(iter(()))
        self._entered, self._operation = 0, ""
        weakref.finalize(self, _close, pipes).atexit = False  # a process that ends has its files closed

    @property
    def last(self) -> tuple[int, int, str]:
        """As in a flight recorder's `Trace`: collectives entered, number of the unfinished one or 0, and its name."""
        return self._entered, 0 if self._pending.is_completed() else self._entered, self._operation

    def allreduce(self, tensors: list[Tensor], options: Any) -> Any:  # type: ignore[override] # noqa: ANN401  (torch's)
        """Sum over the ranks, in place."""
        (tensor,) = tensors
        if not _can_sum(options, tensor, tensor):
            return self._gloo.allreduce(tensors, options)
        return self._reduce("all_reduce", tensor, tensor, 0)

    def reduce_scatter_single(self, output: Tensor, source: Tensor, options: Any) -> Any:  # noqa: ANN401  (as above)
        """Sum over the ranks; ``output`` is this rank's part."""
        if not _can_sum(options, source, output, self.size()):
            return self._gloo._reduce_scatter_base(output, source, options)  # noqa: SLF001  (in all versions)
        return self._reduce("reduce_scatter", source, output, self.rank() * output.numel())

    def all_gather_single(self, output: Tensor, source: Tensor, options: Any) -> Any:  # type: ignore[override] # noqa: ANN401  (as above)
        """Every rank's ``source``, in rank order."""
        if not _can_share(output, source, self.size()):
            return self._gloo._allgather_base(output, source, options)  # noqa: SLF001  (as above)
        rows = output.data.view(self.size(), -1)

        def read(slots: list[Tensor], start: int) -> None:
            for row, slot in zip(rows, slots, strict=True):
                row[start : start + len(slot)] = slot

        return self._begin("all_gather", source.data.view(-1), read)

    _reduce_scatter_base, _allgather_base = reduce_scatter_single, all_gather_single  # type: ignore[assignment] # torch 2.12

    def _reduce(self, operation: str, source: Tensor, output: Tensor, first: int) -> Work:
        whole, part = source.data.view(-1), output.data.view(-1)
        return self._begin(operation, whole, lambda slots, start: _sum(slots, start, part, first, len(whole)))

    def _begin(self, operation: str, source: Tensor, read: Read) -> Work:
        wait_for(self._pending)
        self._entered, self._operation = self._entered + 1, operation
        self._pending = Collective(self._exchange(source, read))
        return self._pending

    def _exchange(self, source: Tensor, read: Read) -> Iterator[None]:
        """Exchange all pieces; yields once, after publishing the first."""
        for start in range(0, len(source), width := SLOT_BYTES // source.element_size()):
            piece = source[start : start + width]
            self._pieces += 1
            places = (SLOT_BYTES * (2 * rank + self._pieces % 2) for rank in range(self.size()))
            slots = [self._bytes[place : place + piece.nbytes].view(piece.dtype) for place in places]
            slots[self.rank()].copy_(piece)
            for _, theirs in self._pipes.values():
                os.write(theirs, b".")
            if start == 0:
                yield
            for peer in self._pipes:
                self._wait(peer)
            read(slots, start)

    def _wait(self, peer: int) -> None:
        """Wait until the peer has published a piece. Raises ``DistBackendError`` if it has ended, or on a timeout."""
        ours, poll = self._pipes[peer][0], select.poll()
        poll.register(ours, select.POLLIN)
        timeout = self._gloo.options._timeout.total_seconds()  # noqa: SLF001  (torch shows it nowhere else)
        if not poll.poll(1000 * timeout):
            raise DistBackendError(f"timed out after {timeout} s waiting for peer {peer} in {self._operation}")
        if not os.read(ours, 1):
            raise DistBackendError(f"peer {peer} terminated before it entered {self._operation}")


class Collective(Work):
    """A collective in flight."""

    def __init__(self, steps: Iterator[None]) -> None:
        super().__init__()
        self._steps, self._is_completed = steps, False
        self.wait()

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002  (the group's counts, as gloo's does)
        """Return when the result is complete."""
        with torch.no_grad():
            self._is_completed = next(self._steps, self) is self
        return True

    def is_completed(self) -> bool:
        """Whether the result is complete."""
        return self._is_completed


def register() -> None:
    """Register `BACKEND` with torch."""
    if BACKEND not in Backend.backend_list:
        Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: object) -> ProcessGroup | ProcessGroupGloo:  # noqa: ANN401  (torch's options)
    """Create the group: in shared memory if its ranks can share it, else with gloo."""
    store, rank, ranks = options.store, options.group_rank, options.group_size
    gloo = ProcessGroupGloo(store, rank, ranks, timeout=options.timeout)
    gloo.options.global_ranks_in_group, gloo.options.group_name = options.global_ranks_in_group, options.group_id
    gloo._set_sequence_number_for_group()  # noqa: SLF001  (as torch does)

    def exchange(value: object) -> list[Any]:
        key = f"{type(value).__name__} of"
        store.set(f"{key} {rank}", json.dumps(value))
        return [json.loads(store.get(f"{key} {each}")) for each in range(ranks)]

    files, paths, pipes, memory = [], [], {}, None
    try:
        for peer in range(ranks):  # what each opens: a pipe to this rank, and of rank 0 the memory
            ours, theirs = (-1, os.memfd_create(secrets.token_hex(16))) if peer == rank else os.pipe()
            files.append((ours, theirs))
            paths.append((path := f"/proc/{os.getpid()}/fd/{theirs}", str(Path(path).readlink())))
        os.ftruncate(files[rank][1], ranks * 2 * SLOT_BYTES)
    except (OSError, AttributeError):  # not Linux, or too many files
        paths = []
    everyone = exchange(paths)
    try:
        memory = mmap.mmap(_open(*everyone[0][0]), 0)
        pipes = {peer: (files[peer][0], _open(*everyone[peer][rank])) for peer in range(ranks) if peer != rank}
    except (OSError, IndexError):  # another machine or user
        memory = None
    shares = all(exchange(memory is not None))
    for _, theirs in files:
        os.close(theirs)
    return SharedMemoryGroup(gloo, memory, pipes) if memory and shares and ranks > 1 else gloo


def _open(path: str, name: str) -> int:
    """Open the file at a path in /proc. Raises ``OSError`` unless it has this name."""
    if str(Path(path).readlink()) != name:
        raise OSError(path)
    return os.open(path, os.O_RDWR)


def _close(pipes: dict[int, tuple[int, int]]) -> None:
    for files in pipes.values():
        list(map(os.close, files))


def _can_share(whole: Tensor, part: Tensor, ranks: int = 1) -> bool:
    fits = whole.numel() == ranks * part.numel() > 0 and whole.dtype == part.dtype
    return fits and all(tensor.is_cpu and tensor.is_contiguous() for tensor in (whole, part))


def _can_sum(options: Any, whole: Tensor, part: Tensor, ranks: int = 1) -> bool:  # noqa: ANN401  (torch's options)
    return options.reduceOp == ReduceOp.SUM and whole.dtype in SUMMED and _can_share(whole, part, ranks)


def _sum(slots: list[Tensor], start: int, out: Tensor, first: int, total: int) -> None:
    """Sum the slots, which hold elements [start, …) of ``total``, into ``out``, which holds elements [first, …)."""
    ranks, size = len(slots), out.element_size()
    segments = ceil(max(ceil(total * size / RING_BYTES), 2 * ranks) / ranks)
    width = segments * ceil(ceil(total * size / (segments * ranks)) / size)  # of gloo's chunks
    low, last = max(start, first), min(start + len(slots[0]), first + len(out))
    while low < last:
        chunk, high = low // width, min(last, (low // width + 1) * width)
        one, other, *more = (slots[(chunk - step) % ranks][low - start : high - start] for step in range(1, ranks + 1))
        result = torch.add(one, other, out=out[low - first : high - first])
        for term in more:
            result += term
        low = high
