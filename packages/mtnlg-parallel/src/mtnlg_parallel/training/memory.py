"""Copies of a run's state in memory: after a lost process or node it goes on from seconds ago, without the disk.

Every ``train.memory_checkpoint_every`` steps each rank writes its files of a checkpoint into its node's tmpfs
(`MemoryStore`) and sends them to the rank of the same local number on the next node of a circle of two or three. A copy
is complete when all ranks have written and sent, on which they agree as for a checkpoint on disk.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from datetime import timedelta
from itertools import zip_longest
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import distributed

from mtnlg_model.checkpoint.manifest import CheckpointError, PartialManifest, parse_json
from mtnlg_model.console import say
from mtnlg_parallel.record import metrics

from .checkpointing import HostCopy, StateCopier, sync, write_files
from .collectives import wait_for_all
from .memory_store import Copied, MemoryStore, chunks, parse_copied, read_chunk, write_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from mtnlg_model.checkpoint.manifest import Progress
    from mtnlg_parallel.recipe import Recipe

MAX_LIST_BYTES: Final = 16 << 20


class MemoryCheckpoint:
    """One rank's part of the copies in memory, of which one at a time is written and sent.

    All ranks call every method but `writing` at the same steps. A rank that fails to copy, as in a full tmpfs, says so
    and counts as writing ever after: then there are no more copies, and training goes on.
    """

    def __init__(self, recipe: Recipe, out: Path, copier: StateCopier, rank: int) -> None:
        self._out, self._rank, self._copier, self._patience = out, rank, copier, recipe.guard.patience
        self.store = MemoryStore(out, rank, recipe.layout.world, copier.device)
        per_node = self.store.ranks_per_node
        nodes = circle_of(self.store.node, recipe.layout.world // per_node)
        circle = [node * per_node + self.store.local_rank for node in nodes]
        place = circle.index(rank)
        self._next, self._previous = circle[(place + 1) % len(circle)], circle[place - 1]
        self._group: Any = None
        if len(circle) > 1:  # a group of these ranks alone, since a thread uses it while the main thread uses others
            patience = timedelta(seconds=recipe.guard.disk_patience)
            self._group = distributed.new_group(circle, patience, "gloo", use_local_synchronization=True)
        self._buffers: list[Tensor] = []
        self._copy: HostCopy | None = None
        self._job: Future[None] | None = None

    def begin(self, progress: Progress) -> None:
        """Begin a copy of the state as it is now, unless the last one is not complete: training never waits for it."""
        if not self.in_progress:
            self._copy = self._copier.start(progress, self._buffers)
            self._job = _in_background(self._write_and_send, self._copy)

    @property
    def in_progress(self) -> bool:
        """Whether a copy was begun that some rank may still be writing or sending."""
        return self._copy is not None

    @property
    def writing(self) -> bool:
        """Whether this rank is still writing or sending, or has failed to."""
        return self._job is not None and not (self._job.done() and self._job.exception() is None)

    def publish(self) -> None:
        """Remove older copies. All ranks must have written and sent theirs."""
        copy, self._copy, self._job = self._copy, None, None
        if copy and self.store.local_rank == 0:
            _in_background(self._remove_older, copy.progress.step)

    def finish(self) -> None:
        """Remove all copies, since the run ends cleanly."""
        wait([self._job] if self._job else [], timeout=self._patience / 2)
        wait_for_all(self._copier.device)
        if self.store.local_rank == 0:
            self.store.remove()

    def _remove_older(self, step: int) -> None:
        if self._rank == 0:
            sync(self._out / metrics.FILE)  # a copy's steps are on disk before it is all that is left
        self.store.remove_older(step)

    def _write_and_send(self, copy: HostCopy) -> None:
        folder, own = self.store.folder(copy.progress.step), None
        try:
            try:
                part = write_files(folder.parent, self._rank, copy, leave_part=False)
                own = Copied(
                    progress=copy.progress,
                    optimizer_steps=copy.optimizer_steps,
                    part=parse_json(part, PartialManifest, folder),
                )
                self.store.complete(folder, self._rank, own)
            finally:
                if self._group:  # after an error too, since another rank waits
                    self._exchange(folder, own)
        except Exception as error:
            say(f"rank {self._rank}: no more copies in memory, training goes on without: {error}")
            raise

    def _exchange(self, folder: Path, own: Copied | None) -> None:
        """Send this rank's files to the next node of the circle while receiving those of the one before."""
        theirs = self._exchange_lists(own)
        failure: OSError | None = None
        for mine, kept in zip_longest(_pieces(folder, own), _pieces(folder, theirs)):
            received = torch.empty(kept[2], dtype=torch.uint8) if kept else None
            self._swap(read_chunk(*mine) if mine else None, received)
            try:
                if kept and received is not None and not failure:
                    write_chunk(kept[0], kept[1], received)
            except OSError as error:  # what still comes must be received, since the sender waits for that
                failure = error
        if failure:
            raise failure
        if theirs:
            self.store.complete(folder, self._previous, theirs)

    def _exchange_lists(self, own: Copied | None) -> Copied | None:
        text = own.model_dump_json().encode() if own else b"null"
        size = torch.zeros(1, dtype=torch.int64)
        self._swap(torch.tensor([len(text)]), size)
        if not 0 < int(size) <= MAX_LIST_BYTES:
            raise CheckpointError(f"rank {self._previous} sends a list of {int(size)} bytes")
        received = torch.empty(int(size), dtype=torch.uint8)
        self._swap(torch.frombuffer(bytearray(text), dtype=torch.uint8), received)
        raw = received.numpy().tobytes()
        return None if raw == b"null" else parse_copied(raw, self._previous, f"rank {self._previous}")

    def _swap(self, outgoing: Tensor | None, incoming: Tensor | None) -> None:
        sent = None if outgoing is None else distributed.isend(outgoing, self._next, self._group)
        if incoming is not None:
            distributed.recv(incoming, self._previous, self._group)
        if sent:
            sent.wait()


def circle_of(node: int, nodes: int) -> list[int]:
    """The nodes among which this one copies, each to the next: two, or three at the end of an odd number."""
    first = min(node - node % 2, max(nodes - 2 - nodes % 2, 0))
    return list(range(first, nodes if first + 3 >= nodes else first + 2))


def _pieces(folder: Path, copied: Copied | None) -> Iterator[tuple[Path, int, int]]:
    """Path, start and length of all that is sent of a rank's files."""
    for name, file in copied.part.files.items() if copied else ():
        for start, length in chunks(file.bytes):
            yield folder / name, start, length


def _in_background(work: Callable[..., None], *arguments: Any) -> Future[None]:  # noqa: ANN401  (as ``work``)
    """Run ``work`` in a thread that does not keep a failing process from ending, as one that waits for a peer would."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work(*arguments)
            future.set_result(None)
        except BaseException as error:  # noqa: BLE001  (the future's owner gets it)
            future.set_exception(error)

    Thread(target=run, name="memory", daemon=True).start()
    return future
