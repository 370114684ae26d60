"""Checkpoints written in the background while training goes on.

begin      every rank copies its fragments to host memory; threads write them      (mtnlg_model.checkpoint.writer)
writing    whether this rank's files are still being written; the ranks agree on it at the end of every step
publish    when no rank is writing, a thread of rank 0 renames the checkpoint into place and removes old ones
finish     wait for the current checkpoint: before the next one begins, and when training ends
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import distributed

from mtnlg_model.checkpoint.manifest import latest, retain
from mtnlg_model.checkpoint.writer import publish
from mtnlg_model.console import Failure
from mtnlg_parallel.engine import zero

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mtnlg_model.checkpoint.manifest import Progress
    from mtnlg_model.checkpoint.writer import CheckpointWriter
    from mtnlg_parallel.recipe import Recipe


class BackgroundCheckpoint:
    """One rank's part of the run's checkpoints, of which one at a time is in progress.

    `begin`, `writing` and `finish` raise ``Failure`` where a file cannot be written.
    """

    def __init__(self, recipe: Recipe, directory: Path, tokenizer: Path, rank: int) -> None:
        self._recipe, self._directory, self._tokenizer, self._rank = recipe, directory, tokenizer, rank
        self._writer: CheckpointWriter | None = None
        self._progress: Progress | None = None
        self._optimizer_steps = 0
        self._publisher = ThreadPoolExecutor(1, "publish")
        self._published: Future[None] | None = None

    def begin(self, engine: Any, progress: Progress) -> None:  # noqa: ANN401  (DeepSpeed has no annotations)
        """Copy this rank's state and start writing it. All ranks call this at the same step."""
        self.finish()
        self._progress, self._optimizer_steps = progress, zero.optimizer_steps(engine)
        with self._explaining_errors():
            self._writer = zero.write_fragments(engine, self._directory, progress.step, f"rank-{self._rank}")

    @property
    def in_progress(self) -> bool:
        """Whether a checkpoint was begun and not yet published."""
        return self._progress is not None

    @property
    def writing(self) -> bool:
        """Whether this rank's files are still being written."""
        if self._published and self._published.done():
            self._wait_until_published()
        if self._writer and self._writer.done:
            self._close_writer()
        return self._writer is not None

    def publish(self) -> None:
        """Have rank 0 make the checkpoint visible. All ranks must have written their files."""
        progress, self._progress = self._progress, None
        if self._rank == 0 and progress:
            self._published = self._publisher.submit(self._publish, progress)

    def finish(self) -> None:
        """Wait until the last checkpoint begun is visible to all ranks. All ranks call this at the same step."""
        if self.in_progress:
            self._close_writer()
            distributed.barrier()
            self.publish()
        self._wait_until_published()
        distributed.barrier()

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer:
            with self._explaining_errors():
                writer.close()

    def _publish(self, progress: Progress) -> None:
        recipe = self._recipe
        writers = [f"rank-{rank}" for rank in range(recipe.layout.world)]
        publish(self._directory, progress.step, writers, recipe.model, progress, self._tokenizer, self._optimizer_steps)
        retain(self._directory, recipe.train.keep)

    def _wait_until_published(self) -> None:
        published, self._published = self._published, None
        if published:
            with self._explaining_errors():
                published.result()

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Turn an ``OSError`` into a ``Failure`` that names the file and the newest whole checkpoint."""
        try:
            yield
        except OSError as error:
            newest = latest(self._directory)
            checkpoint = f"the newest whole checkpoint is {newest}" if newest else "there is no checkpoint yet"
            path, reason = error.filename or self._directory, error.strerror or error
            raise Failure(
                f"{path}: {reason}, while writing a checkpoint; {checkpoint}; make room, and the same command resumes"
            ) from error
