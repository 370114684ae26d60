"""The training loop of one rank.

    before a step   batch size and learning rate from the samples consumed; dropout seed from (seed, samples, rank)
    a step          the engine runs the batch in micro-batches and updates, unless the guard forbids it
    between steps   the ranks agree whether one of them got a stop signal, and whether all have written a checkpoint
    after           at intervals a checkpoint, written while training continues, and validation; metrics

The step from sample x to x + batch uses the learning rate at x + batch, since at x = 0 it would be 0.
"""

from __future__ import annotations

import hashlib
import math
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import distributed

from mtnlg_data.console import Failure
from mtnlg_model.checkpoint.manifest import list_checkpoints
from mtnlg_model.console import error_line, say
from mtnlg_parallel import kernels
from mtnlg_parallel.engine.build import build_engine
from mtnlg_parallel.engine.contract import StepSettings
from mtnlg_parallel.layout import stages
from mtnlg_parallel.model.head import EAGER
from mtnlg_parallel.planner.run import document_length
from mtnlg_parallel.recipe import RunOptions
from mtnlg_parallel.record.metrics import Step, peak_flops, throughput
from mtnlg_parallel.record.profiler import StepProfiler
from mtnlg_parallel.record.recorder import Recorder
from mtnlg_parallel.record.run_dir import CHECKPOINTS
from mtnlg_parallel.record.trackers import open_trackers

from .checkpointing import BackgroundCheckpoint, StateCopier
from .collectives import all_gather_json, broadcast_from_rank0
from .guard import NO_TARGETS, Guard, NoStepTaken
from .resume import resume
from .samples import Prefetch, RunData, is_masked, micro_batches, validation_samples
from .watch import Watch
from .watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mtnlg_parallel.engine.contract import MicroBatch
    from mtnlg_parallel.recipe import Recipe


STOP_SECONDS = 60.0
"""Seconds that a run waits for copies of its checkpoints after a stop signal: schedulers kill a slower process."""


class Training:
    """One rank of a run, resumed from the newest checkpoint in ``out`` or started from initial weights.

    ``signals`` is the list that `record_signals` fills, if the caller sets it.
    """

    def __init__(  # noqa: PLR0917  (what to train, on what, into what, as which rank, where)
        self,
        recipe: Recipe,
        data: RunData,
        out: Path,
        rank: int,
        device: torch.device,
        options: RunOptions = RunOptions(),  # noqa: B008  (a tuple)
    ) -> None:
        self.recipe, self.data, self.out, self.rank, self.device = recipe, data, out, rank, device
        self.options, self.validation_error = options, ""
        self.signals: Sequence[int] = ()
        self.coordinates = recipe.layout.coordinates(rank)
        self.watchdog = Watchdog(recipe.layout, rank, out, recipe.guard.patience, recipe.guard.disk_patience)
        self.watchdog.start()
        with ExitStack() as failing:
            if recipe.layout.world == 1:  # its process may go on; other ranks are to notice that this one falls silent
                failing.callback(self.watchdog.close)
            ops = kernels.best_ops(device) if recipe.train.kernels else EAGER
            self.engine = build_engine(recipe, device, ops)
            self.copier = StateCopier(self.engine, device)
            self.checkpoint = BackgroundCheckpoint(recipe, out, data.tokenizer, self.copier, rank, self.watchdog.during)
            self.profiler = StepProfiler(options.profile, out, rank, self.coordinates)
            self.peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
            resumed = resume(self.engine, recipe, data, out, device, self.watchdog.during)
            self.progress = resumed.progress
            changes = {change.at: recipe.guard_at(change.at) for change in recipe.train.change}
            self.guard = Guard(recipe.guard_at(self.progress.samples), resumed.history, changes)
            measure = partial(document_length, data.train.sample, len(data.train), recipe.model.sequence)
            self.document = broadcast_from_rank0(measure, device) if recipe.data.isolated else None
            self.watch = Watch(recipe, data.train, self.engine, rank, device)
            failing.pop_all()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the decoder on this rank."""
        recipe = self.recipe
        return stages(recipe.model, recipe.layout, recipe.train.recompute)[self.coordinates.pp].parts

    @property
    def finished(self) -> bool:
        """Whether the recipe's samples have been consumed."""
        return self.progress.samples >= self.recipe.train.samples

    def run(self, observe: Callable[[Step], None]) -> int:
        """Train to the recipe's end; rank 0 records every step and passes it to ``observe``.

        Returns the signal that stopped the run after a last checkpoint; 0 at its end, or if a callback stopped it.
        """
        recorder = None
        if self.rank == 0:
            options, first = self.options, self.progress.step
            trackers = open_trackers(self.out, self.recipe, first, options.wandb, options.trackers)
            recorder = Recorder(self.out, self.recipe, trackers)
        batches = self._prefetch()
        stop_signal = 0
        try:
            began = time.perf_counter()
            while not (self.finished or stop_signal):
                step = self.step(batches)
                stop_signal = self._agree()
                self._checkpoint_and_validate(step, stop_signal)
                ended = time.perf_counter()
                step.update(throughput(self.recipe, step["batch_size"], ended - began, self.peak, self.document))
                began = ended
                if recorder:
                    recorder.record(step)
                    observe(step)
                self._end_if_exhausted(step)
                self.watchdog.beat(self.progress.step)
                if self._stopped_by_callback(step) and not (self.finished or stop_signal):
                    if not self._checkpoint_is_due:
                        self.checkpoint.begin(self.progress, "skipped" in step)
                    break
            self.checkpoint.finish()
            if self.finished and not self.engine.optimizer_steps:
                raise NoStepTaken(self.progress.step)
        finally:
            self.watchdog.close()
            if batches:
                batches.close()
        if recorder:
            self.checkpoint.finish_copies(STOP_SECONDS if stop_signal else self.recipe.guard.disk_patience)
            recorder.close(self.progress, stop_signal)
        return stop_signal

    def _prefetch(self) -> Prefetch | None:
        if not self.recipe.reads_samples(self.coordinates.pp):
            return None
        return Prefetch(
            self.data.train, self.recipe, self.progress.samples, self.coordinates.dp, pinned=self.device.type == "cuda"
        )

    def step(self, batches: Prefetch | None) -> Step:
        """Consume one batch, and update the weights unless the guard forbids it. The result has no ``seconds`` yet."""
        recipe, before = self.recipe, self.progress
        self.profiler.before_step(before.step + 1)
        batch = recipe.batch_size.at(before.samples)
        samples = before.samples + batch
        now = recipe.train.at(before.samples)
        settings = StepSettings(now.learning_rate.at(samples), now.weight_decay, now.clip, now.frozen)
        torch.manual_seed(self._dropout_seed(before.samples))
        waited, counted = (batches.waited, batches.counted) if batches else (0.0, 0)
        micro_batches = batch // recipe.batch_size.multiple
        self.watch.begin(before.step + 1)
        judge = self.watch.judging(self.guard.judge)
        loss, norm, skip = self.engine.train_batch(batches, micro_batches, settings, judge)
        self.progress = before.model_copy(
            update={
                "step": before.step + 1,
                "samples": samples,
                "tokens": before.tokens + batch * recipe.model.sequence,
                "loss": before.loss if skip else loss,
                "layout": recipe.layout,
                "stream": self.data.train.fingerprint_at(samples),
            }
        )
        step: Step = {
            "step": self.progress.step,
            "samples": samples,
            "tokens": self.progress.tokens,
            "loss": loss if math.isfinite(loss) else None,
            "lr": settings.lr,
            "grad_norm": norm if math.isfinite(norm) else None,
            "batch_size": batch,
            "data_seconds": (batches.waited if batches else 0.0) - waited,
        }
        if skip is not None:
            step["skipped"], step["skip_reason"] = skip
        if is_masked(self.data.train):
            is_first = not any(self.coordinates._replace(dp=0))  # of the ranks that read the same
            own = batches.counted - counted if batches and is_first else 0
            step["learned_tokens"] = sum(all_gather_json(own, self.device))
        self.watch.end(step, settings)
        return step

    def _dropout_seed(self, samples: int) -> int:
        """The seed of this step: equal on ranks that hold copies of the same hidden state, different on all others."""
        copies = not self.recipe.train.sequence_parallel
        place, replica = self.coordinates, self.recipe.layout.copy_number(self.rank)
        key = f"{self.recipe.train.seed}/{samples}/{place.pp}/{replica}/{0 if copies else place.tp}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little")

    def validate(self, step: Step) -> None:
        """Add the mean loss over held-out samples, in nats per token, to a step and to ``progress``, if finite.

        If a rank cannot read the samples, record and print the error instead: monitoring must not end the training.
        """
        recipe = self.recipe
        count = validation_samples(recipe, self.data.validation)
        with self.watchdog.during("validation", recipe.guard.patience * max(1, count // recipe.train.batch)):
            batches, error = self._held_out(count if recipe.reads_samples(self.coordinates.pp) else 0)
            if error := next(filter(None, all_gather_json(error, self.device)), ""):
                self._say_validation_error(step, error)
                return
            loss = self.engine.evaluate(iter(batches), count // recipe.batch_size.multiple)
        if not math.isfinite(loss):
            hint = "raise train.validation_samples if they have no learned target"
            self._say_validation_error(step, f"the loss of the held-out samples is not finite; {hint}")
            return
        step["validation_loss"] = loss
        self.progress = self.progress.model_copy(update={"validation_loss": loss})
        self.checkpoint.amend(self.progress)

    def _say_validation_error(self, step: Step, error: str) -> None:
        step["validation_error"] = error
        if self.rank == 0 and error != self.validation_error:
            say(f"WARNING: step {step['step']} on: no validation: {error}")
        self.validation_error = error

    def _held_out(self, count: int) -> tuple[list[MicroBatch], str]:
        """Read the rank's share of ``count`` held-out samples; returns micro-batches and "", or none and the error."""
        stream, size, dp = self.data.validation, self.recipe.train.micro_batch, self.recipe.layout.dp
        assert stream is not None  # noqa: S101  (`open_data` has seen to it)
        try:
            dp_rank, isolated = self.coordinates.dp, self.recipe.data.isolated
            return list(micro_batches(stream, range(count), size, dp, dp_rank, isolated)), ""
        except (Failure, OSError) as error:  # of a store that is damaged or out of reach
            return [], error_line(error)

    def _agree(self) -> int:
        """Return the stop signal that any rank received, or 0. Publishes a checkpoint that all ranks have written."""
        state = torch.tensor([max(self.signals, default=0), int(self.checkpoint.writing)], device=self.device)
        distributed.all_reduce(state, op=distributed.ReduceOp.MAX)
        stop_signal, some_rank_writes = state.tolist()
        if self.checkpoint.in_progress and not some_rank_writes:
            self.checkpoint.publish()
        return int(stop_signal)

    def _checkpoint_and_validate(self, step: Step, stop_signal: int) -> None:
        """Begin a checkpoint, then validate, if due. In this order, a failing validation does not cost the checkpoint.

        `Recorder` records the step before any rank can publish its checkpoint, so that includes the validation loss.
        """
        train, number = self.recipe.train, self.progress.step
        if waited := self.copier.waited_seconds():
            step["checkpoint_seconds"] = waited
        if self.finished or stop_signal or self._checkpoint_is_due:
            with _timed(step, "checkpoint_seconds"):
                self.checkpoint.begin(self.progress, "skipped" in step)
        if train.validation_every and (self.finished or number % train.validation_every == 0):
            with _timed(step, "validation_seconds"):
                self.validate(step)
        self.profiler.after_step(number)

    @property
    def _checkpoint_is_due(self) -> bool:
        every = self.recipe.train.checkpoint_every
        return bool(every) and self.progress.step % every == 0

    def _stopped_by_callback(self, step: Step) -> bool:
        """Call the callbacks on rank 0; returns, on every rank, whether one of them stops the run."""
        callbacks = self.options.callbacks
        return bool(callbacks) and bool(
            broadcast_from_rank0(lambda: True in [callback(step) for callback in callbacks], self.device)
        )

    def _end_if_exhausted(self, step: Step) -> None:
        """Record the step with the guard, and report a skipped one; raises `TooManySkips` after too many in a row."""
        self.guard.record(step)
        if self.guard.exhausted:
            self.checkpoint.finish()
            raise self.guard.failure(list_checkpoints(self.out / CHECKPOINTS))
        if self.rank == 0 and step.get("skipped", NO_TARGETS.code) != NO_TARGETS.code:
            say(self.guard.warning(step, list_checkpoints(self.out / CHECKPOINTS)))


@contextmanager
def _timed(step: Step, key: Literal["checkpoint_seconds", "validation_seconds"]) -> Iterator[None]:
    """Add the seconds that the block takes to a step's ``key``."""
    began = time.perf_counter()
    yield
    step[key] = step.get(key, 0.0) + time.perf_counter() - began
