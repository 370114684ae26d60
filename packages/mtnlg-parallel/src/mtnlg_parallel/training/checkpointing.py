"""Writes checkpoints in the background while training continues.

begin      a thread copies this rank's fragments to host memory while the next forward and backward passes run, which
           only read them; the optimizer's update waits for the copy. Another thread writes the copy to files
writing    whether this rank's files are still being written; the ranks agree on it at the end of every step
publish    when no rank is writing, a thread of rank 0 renames the checkpoint into place and removes old ones
finish     when training ends, wait until the last checkpoint is visible
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from mtnlg_model.checkpoint.chat_files import read_chat_files
from mtnlg_model.checkpoint.manifest import latest, resolve_checkpoint
from mtnlg_model.checkpoint.writer import CheckpointWriter, publish, retain
from mtnlg_model.console import IoFailure
from mtnlg_model.files import open_regular
from mtnlg_model.tokenizer import carried_chat_files
from mtnlg_parallel.engine import zero
from mtnlg_parallel.record import metrics
from mtnlg_parallel.record.run_dir import CHECKPOINTS

from .collectives import wait_for_all
from .copies import Copies

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor

    from mtnlg_model.checkpoint.manifest import Progress
    from mtnlg_parallel.engine.contract import Engine
    from mtnlg_parallel.recipe import Recipe

    from .watchdog import Phase

    During = Callable[[Phase, float], AbstractContextManager[None]]
    """`Watchdog.during`: names a phase of this rank and gives it a patience of its own."""


class HostCopy(NamedTuple):
    """The state at ``progress`` in host memory, complete once ``pieces`` is done, and the optimizer's update count."""

    progress: Progress
    optimizer_steps: int
    pieces: Future[list[zero.PieceToWrite]]


class StateCopier:
    """Copies a rank's state to host memory in a thread. The update that would change the state waits for the thread.

    On CUDA the copies run in a separate stream, into pinned memory.
    """

    def __init__(self, engine: Engine, device: torch.device) -> None:
        self._engine, self.device = engine, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        # A new thread starts on GPU 0; leaving the stream there would create another CUDA context of this process.
        on_its_gpu = partial(torch.cuda.set_device, device) if self._stream else None
        self._thread = ThreadPoolExecutor(1, "copy", on_its_gpu)
        self._copy: Future[list[zero.PieceToWrite]] | None = None
        self._buffers: list[Tensor] = []
        self._waited = 0.0
        engine.before_update = self._wait_before_update

    def start(self, progress: Progress) -> HostCopy:
        """Start to copy the current state into buffers, which the first call allocates and later calls overwrite."""
        self._wait()
        updated = torch.cuda.current_stream(self.device).record_event() if self._stream else None
        # Listed in this thread: DeepSpeed hides parameter groups from the optimizer while it updates one.
        self._copy = self._thread.submit(self._run, list(zero.fragment_pieces(self._engine)), updated)
        return HostCopy(progress, self._engine.optimizer_steps, self._copy)

    def waited_seconds(self) -> float:
        """Seconds that updates have waited since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def _wait_before_update(self) -> None:
        if self._copy:
            began = time.perf_counter()
            self._wait()
            self._waited += time.perf_counter() - began

    def _wait(self) -> None:
        copy, self._copy = self._copy, None
        if copy:
            copy.result()

    def _run(self, pieces: list[zero.PieceToWrite], updated: torch.cuda.Event | None) -> list[zero.PieceToWrite]:
        buffers = self._buffers
        with torch.cuda.stream(self._stream):  # no change where that is None
            if not buffers:
                pinned = self._stream is not None
                buffers += [torch.empty(p.tensor.shape, dtype=p.tensor.dtype, pin_memory=pinned) for p in pieces]
            if self._stream and updated:
                self._stream.wait_event(updated)
            for piece, buffer in zip(pieces, buffers, strict=True):
                buffer.copy_(piece.tensor, non_blocking=True)
            if self._stream:
                self._stream.synchronize()
        return [piece._replace(tensor=buffer) for piece, buffer in zip(pieces, buffers, strict=True)]


def write_files(directory: Path, rank: int, copy: HostCopy) -> None:
    """Write a rank's copy to a checkpoint in ``directory``, once the copy is complete."""
    files = CheckpointWriter(directory, copy.progress.step, f"rank-{rank}", copy=False)
    for piece in copy.pieces.result():
        files.add(*piece)
    files.close()


class BackgroundCheckpoint:
    """Writes one rank's part of the run's checkpoints to disk, one checkpoint at a time.

    All ranks call `begin`, `publish` and `finish` at the same steps. All methods raise ``IoFailure`` if a file could
    not be written.
    """

    def __init__(  # noqa: PLR0917  (of what, where, by whom)
        self, recipe: Recipe, out: Path, tokenizer: Path, copier: StateCopier, rank: int, during: During
    ) -> None:
        self._recipe, self._out, self._tokenizer, self._rank = recipe, out, tokenizer, rank
        self._directory, self._copier = out / CHECKPOINTS, copier
        initial = recipe.train.initial
        before = latest(self._directory) or (resolve_checkpoint(Path(initial)) if initial else None)
        self._chat_files: dict[str, bytes] = {}
        if rank == 0:  # beside the data's tokenizer is what names its end token, where that has no usual name
            carried = carried_chat_files(before, tokenizer).files if before else {}
            self._chat_files = read_chat_files(tokenizer.parent) | carried
        self._copies = Copies(self._directory, recipe.train.copy_to) if rank == 0 and recipe.train.copy_to else None
        self._during = during
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._copy: HostCopy | None = None
        self._skipped = False
        self._jobs: dict[Literal["write", "publish"], Future[None]] = {}

    def begin(self, progress: Progress, skipped: bool = False) -> None:
        """Begin a checkpoint of the current state; ``skipped``: whether its step was skipped.

        A skipped step's checkpoint removes no older ones, which include the newest from before consecutive skips.
        """
        if self.in_progress:
            with self._during("saving a checkpoint", self._recipe.guard.disk_patience):
                self._publish_once_written()
        self._copy, self._skipped = self._copier.start(progress), skipped
        self._jobs["write"] = self._thread.submit(write_files, self._directory, self._rank, self._copy)

    def amend(self, progress: Progress) -> None:
        """Replace the progress of a checkpoint begun at this step, with figures known since."""
        if self._copy and self._copy.progress.step == progress.step:
            self._copy = self._copy._replace(progress=progress)

    @property
    def in_progress(self) -> bool:
        """Whether a checkpoint has begun that some rank may still be writing."""
        return self._copy is not None

    @property
    def writing(self) -> bool:
        """Whether this rank's files are still being written."""
        for name, job in list(self._jobs.items()):
            if job.done():
                self._wait_for(name)
        return "write" in self._jobs

    def publish(self) -> None:
        """Let rank 0 make the checkpoint visible. All ranks must have written their files."""
        copy, self._copy = self._copy, None
        self._wait_for("publish")  # of the checkpoint before: the same thread has written these files since
        if copy and self._rank == 0:
            self._jobs["publish"] = self._thread.submit(self._publish, copy, retains=not self._skipped)

    def finish(self) -> None:
        """Wait until the last checkpoint begun is visible to all ranks."""
        with self._during("publishing a checkpoint", self._recipe.guard.disk_patience):
            if self.in_progress:
                self._publish_once_written()
            self._wait_for("publish")
            wait_for_all(self._copier.device)

    def finish_copies(self, seconds: float) -> None:
        """On rank 0: wait, for at most ``seconds``, until all checkpoints are copied to ``train.copy_to``."""
        if self._copies:
            self._copies.close(seconds)

    def _publish_once_written(self) -> None:
        self._wait_for("write")
        wait_for_all(self._copier.device)
        self.publish()

    def _publish(self, copy: HostCopy, retains: bool) -> None:
        recipe, progress = self._recipe, copy.progress
        writers = [f"rank-{rank}" for rank in range(recipe.layout.world)]
        # Sync metrics.jsonl first, so that a checkpoint's steps are on disk before it can be resumed.
        with open_regular(self._out / metrics.FILE) as file:
            os.fsync(file.fileno())
        steps, chat_files = copy.optimizer_steps, self._chat_files
        folder = publish(
            self._directory, progress.step, writers, recipe.model, progress, self._tokenizer, steps, chat_files
        )
        if self._copies:
            self._copies.add(folder)
        if retains:
            retain(self._directory, recipe.train.keep, recipe.train.keep_every)

    def _wait_for(self, name: Literal["write", "publish"]) -> None:
        """Wait for a job. Its ``OSError`` becomes an ``IoFailure`` that names file and newest complete checkpoint."""
        try:
            if job := self._jobs.pop(name, None):
                job.result()
        except OSError as error:
            newest = latest(self._directory)
            checkpoint = f"the newest whole checkpoint is {newest}" if newest else "there is no checkpoint yet"
            path, reason = error.filename or self._directory, error.strerror or error
            raise IoFailure(
                f"{path}: {reason}, while writing a checkpoint; {checkpoint}; make room, and the same command resumes"
            ) from error
