"""The training loop of one rank.

    before a step   batch and learning rate from the samples consumed; random numbers from (seed, samples, place)
    a step          the pipeline engine takes the batch in micro-batches, 1F1B, and updates unless the guard forbids it
    after           metrics; at intervals the validation loss, and a checkpoint that is written while training goes on
    between steps   the ranks agree whether one of them was asked to stop, and whether all have written

The step that takes samples x to x + batch of the stream has the learning rate of x + batch: at 0 it would be 0.
"""

from __future__ import annotations

import hashlib
import math
import time
from typing import TYPE_CHECKING

import torch
from torch import distributed

from mtnlg_model.checkpoint.manifest import Progress, latest
from mtnlg_model.files import write_json
from mtnlg_parallel import kernels
from mtnlg_parallel.engine import deepspeed_engine as engines
from mtnlg_parallel.engine import zero
from mtnlg_parallel.launch.watchdog import Watchdog
from mtnlg_parallel.layout import stages
from mtnlg_parallel.model.head import EAGER
from mtnlg_parallel.recipe import Wishes

from .checkpointing import Saving
from .guard import Guard, figures
from .metrics import Recorder, Step, last_steps, peak_of, speed
from .profiler import Profile
from .run_dir import CHECKPOINTS, SUMMARY, summary
from .samples import Data, Prefetch, micro_batches, validation_samples
from .trackers import TensorBoard, WeightsAndBiases

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

    from .trackers import Board


class Training:
    """One rank's part of a run: begun, or gone on with from the newest checkpoint in ``out``.

    ``arrived`` is where signals are noted.
    """

    def __init__(  # noqa: PLR0917  (what to train, on what, into what, as whom, where)
        self,
        recipe: Recipe,
        data: Data,
        out: Path,
        rank: int,
        device: torch.device,
        arrived: Sequence[int] = (),
        wishes: Wishes = Wishes(),  # noqa: B008  (a tuple)
    ) -> None:
        self.recipe, self.data, self.out, self.rank, self.device = recipe, data, out, rank, device
        self.arrived, self.wandb = arrived, wishes.wandb
        self.place = recipe.layout.coordinates(rank)
        self.guard = Guard(recipe.guard, last_steps(out, recipe.guard.reach))
        self.forbidden: str | None = None
        self.judged = True
        ops = kernels.best(device) if recipe.train.kernels else EAGER
        self.engine = engines.parallelize(recipe, device, self._permits, ops)
        self.saving = Saving(recipe, out / CHECKPOINTS, data.tokenizer, rank)
        self.profile = Profile(wishes.profiled, out, rank, self.place)
        self.peak = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        found = latest(out / CHECKPOINTS)
        if found:
            saved = zero.open_checkpoint(found, recipe.model, data.train.fingerprint)
            zero.restore(self.engine, zero.Saved(saved))
            self.progress = saved.progress
        else:
            zero.restore(self.engine, zero.Beginning(recipe.model, recipe.train.seed))
            self.progress = Progress(
                step=0, samples=0, tokens=0, loss=0.0, stream=data.train.fingerprint, layout=recipe.layout
            )

    @property
    def holds(self) -> tuple[str, ...]:
        """The parts of the decoder on this rank."""
        recipe = self.recipe
        return stages(recipe.model, recipe.layout, recipe.train.recompute)[self.place.pp].parts

    @property
    def finished(self) -> bool:
        """Whether the recipe's samples have been consumed."""
        return self.progress.samples >= self.recipe.train.samples

    def run(self, observe: Callable[[Step], None]) -> int:
        """Train to the recipe's end; rank 0 records, and shows every step to ``observe``.

        Returns 0, or the signal by which the run was stopped, its checkpoint written.
        """
        recorder = Recorder.open(self.out, self._boards()) if self.rank == 0 else None
        batches = self._prefetch()
        stopped = 0
        try:
            with Watchdog(self.recipe.layout, self.rank, self.recipe.guard.patience) as watchdog:
                while not (self.finished or stopped):
                    step = self._whole_step(batches)
                    stopped = self._agree()
                    self._checkpoint_where_due(step, stopped)
                    if recorder:
                        recorder.add(step)
                        observe(step)
                    self._heed(step)
                    watchdog.beat(self.progress.step)
                self.saving.finish()
        finally:
            if batches:
                batches.close()
        if recorder:
            recorder.close()
            if self.finished:
                write_json(self.out / SUMMARY, summary(self.out, self.recipe, self.progress))
        return stopped

    def _boards(self) -> list[Board]:
        boards: list[Board] = [TensorBoard(self.out, self.progress.step)]
        if self.wandb:
            boards.append(WeightsAndBiases(self.wandb, self.out, self.recipe))
        return boards

    def _prefetch(self) -> Prefetch | None:
        """Only the first stage needs inputs, and the last targets."""
        if self.place.pp not in {0, self.recipe.layout.pp - 1}:
            return None
        return Prefetch(self.data.train, self.recipe, self.progress.samples, self.place.dp)

    def _whole_step(self, batches: Prefetch | None) -> Step:
        """A step, and the validation where it is due."""
        every, number = self.recipe.train.validation_every, self.progress.step + 1
        self.profile.before(number)
        step = self.step(batches)
        if every and (self.finished or number % every == 0):
            held_out = self.validate()
            if math.isfinite(held_out):
                step["validation_loss"] = held_out
        self.profile.after(number)
        return step

    def _checkpoint_where_due(self, step: Step, stopped: int) -> None:
        """Begin one; the recorder has the step on disk before any rank can let it appear."""
        every = self.recipe.train.checkpoint_every
        if self.finished or stopped or (every and self.progress.step % every == 0):
            began = time.perf_counter()
            self.saving.begin(self.engine, self.progress)
            step["checkpoint_seconds"] = time.perf_counter() - began

    def _heed(self, step: Step) -> None:
        """Have the guard remember a step; too many skipped ones in a row end the run on all ranks."""
        self.guard.saw(step)
        if self.guard.exhausted:
            self.saving.finish()
            raise self.guard.failure(step, latest(self.out / CHECKPOINTS))

    def _agree(self) -> int:
        """The signal by which any rank was asked to stop, or 0; a checkpoint that all have written appears."""
        said = torch.tensor([max(self.arrived, default=0), int(self.saving.pending)], device=self.device)
        distributed.all_reduce(said, op=distributed.ReduceOp.MAX)
        stop, writing = said.tolist()
        if self.saving.active and not writing:
            self.saving.publish()
        return int(stop)

    def step(self, batches: Prefetch | None) -> Step:
        """Consume one batch."""
        recipe, before = self.recipe, self.progress
        batch = recipe.batch_size.at(before.samples)
        samples = before.samples + batch
        lr = recipe.train.learning_rate.at(samples)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        self.engine.set_train_batch_size(batch)
        torch.manual_seed(self._seed(before.samples))
        self.forbidden, self.judged = None, False
        waited = batches.waited if batches else 0.0
        began = time.perf_counter()
        loss = float(self.engine.train_batch(batches))
        seconds = time.perf_counter() - began
        norm = float(self.engine.get_global_grad_norm())
        skipped = self.forbidden
        if not self.judged:  # DeepSpeed found something not finite itself, and asked nobody
            skipped = self.guard.reason(loss, norm) or "grad_norm is not finite"
        self.progress = before.model_copy(
            update={
                "step": before.step + 1,
                "samples": samples,
                "tokens": before.tokens + batch * recipe.model.sequence,
                "loss": before.loss if skipped else loss,
                "layout": recipe.layout,
            }
        )
        step: Step = {
            "step": self.progress.step,
            "samples": samples,
            "tokens": self.progress.tokens,
            "loss": loss if math.isfinite(loss) else None,
            "lr": lr,
            "grad_norm": norm if math.isfinite(norm) else None,
            "batch_size": batch,
            **speed(recipe, batch, seconds, self.peak),
            "data_seconds": (batches.waited if batches else 0.0) - waited,
        }
        return step if skipped is None else {**step, "skipped": skipped}

    def validate(self) -> float:
        """Mean loss over the held-out samples, in nats a token; kept in the progress where it is a number."""
        recipe, stream = self.recipe, self.data.validation
        count = validation_samples(recipe, stream)
        rounds = count // recipe.batch_size.multiple
        samples = micro_batches(stream, range(count), recipe.train.micro_batch, recipe.layout.dp, self.place.dp)
        loss = float(self.engine.eval_batch(samples, num_micro_batches=rounds))
        if math.isfinite(loss):
            self.progress = self.progress.model_copy(update={"validation_loss": loss})
        return loss

    def _permits(self) -> bool:
        """The guard's word on the step whose gradients are there; the optimizer asks once a group of parameters."""
        if not self.judged:
            self.judged = True
            self.forbidden = self.guard.reason(*figures(self.engine, self.device))
        return self.forbidden is None

    def _seed(self, samples: int) -> int:
        """Of this step's dropout: the same on ranks that hold copies of the hidden state, another on all others."""
        copies = not self.recipe.train.sequence_parallel
        key = f"{self.recipe.train.seed}/{samples}/{self.place.pp}/{self.place.dp}/{0 if copies else self.place.tp}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little")
