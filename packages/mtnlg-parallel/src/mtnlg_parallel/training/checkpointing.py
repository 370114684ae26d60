"""A checkpoint on its way to disk while training goes on.

begin      every rank copies its pieces to host memory, and threads write them       (mtnlg_model.checkpoint.writer)
pending    whether this rank's files are still being written; the ranks agree on it at the end of every step
publish    when nobody's are, rank 0 makes the checkpoint appear, in a thread too; older ones go
finish     at the next one, and at the end: wait for it
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from torch import distributed

from mtnlg_model.checkpoint.manifest import latest, retain
from mtnlg_model.checkpoint.writer import publish
from mtnlg_model.console import Failure
from mtnlg_parallel.engine import zero

if TYPE_CHECKING:
    from pathlib import Path

    from mtnlg_model.checkpoint.manifest import Progress
    from mtnlg_model.checkpoint.writer import CheckpointWriter
    from mtnlg_parallel.recipe import Recipe


class Saving:
    """One rank's part of the checkpoints of a run, one at a time."""

    def __init__(self, recipe: Recipe, directory: Path, tokenizer: Path, rank: int) -> None:
        self._recipe, self._directory, self._tokenizer, self._rank = recipe, directory, tokenizer, rank
        self._writer: CheckpointWriter | None = None
        self._progress: Progress | None = None
        self._optimizer_steps = 0
        self._thread = ThreadPoolExecutor(1, "publish")
        self._published: Future[None] | None = None

    def begin(self, engine: Any, progress: Progress) -> None:  # noqa: ANN401  (DeepSpeed has no annotations)
        """Take this rank's pieces as they are now. All ranks call this at the same step."""
        self.finish()
        self._progress, self._optimizer_steps = progress, zero.optimizer_steps(engine)
        try:
            self._writer = zero.write(engine, self._directory, progress.step, f"rank-{self._rank}")
        except OSError as error:
            raise self._failure(error) from error

    @property
    def active(self) -> bool:
        """Whether a checkpoint was begun and is not yet on its way to appear."""
        return self._progress is not None

    @property
    def pending(self) -> bool:
        """Whether this rank's files are still being written. Raises ``Failure`` where they cannot be."""
        if self._published and self._published.done():
            self._wait_for_publishing()
        if self._writer and self._writer.done:
            self._close()
        return self._writer is not None

    def publish(self) -> None:
        """All ranks' files are written: the checkpoint may appear."""
        progress, self._progress = self._progress, None
        if self._rank == 0 and progress:
            self._published = self._thread.submit(self._appear, progress)

    def finish(self) -> None:
        """Wait until the checkpoint that was begun last is there for all. All ranks call this at the same step."""
        if self.active:
            self._close()
            distributed.barrier()
            self.publish()
        self._wait_for_publishing()
        distributed.barrier()

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        try:
            if writer:
                writer.close()
        except OSError as error:
            raise self._failure(error) from error

    def _appear(self, progress: Progress) -> None:
        recipe = self._recipe
        writers = [f"rank-{rank}" for rank in range(recipe.layout.world)]
        publish(self._directory, progress.step, writers, recipe.model, progress, self._tokenizer, self._optimizer_steps)
        retain(self._directory, recipe.train.keep)

    def _wait_for_publishing(self) -> None:
        published, self._published = self._published, None
        try:
            if published:
                published.result()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> Failure:
        newest = latest(self._directory)
        going_on = f"the newest whole checkpoint is {newest}" if newest else "there is no checkpoint yet"
        place, why = error.filename or self._directory, error.strerror or error
        return Failure(
            f"{place}: {why}, while writing a checkpoint; {going_on}; make room, and the same command goes on"
        )
