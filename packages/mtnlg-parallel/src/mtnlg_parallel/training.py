"""The training loop of one rank.

    before a step   batch and learning rate from the samples consumed; random numbers from (seed, samples, place)
    a step          the pipeline engine takes the batch in micro-batches, 1F1B, and updates
    after           metrics; at intervals the validation loss and a checkpoint

The step that takes samples x to x + batch of the stream has the learning rate of x + batch: at 0 it would be 0.
"""

from __future__ import annotations

import hashlib
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mtnlg_model.checkpoint import Progress, latest, publish, retain
from mtnlg_model.files import write_json

from . import engine as engines
from . import sharding
from .folder import CHECKPOINTS, SUMMARY
from .layout import Layout, stages
from .metrics import Recorder, Step, read_steps
from .samples import Data, micro_batches, validation_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from mtnlg_data.stream import TokenStream

    from .recipe import Recipe


class Training:
    """One rank's part of a run: begun, or gone on with from the newest checkpoint in ``out``."""

    def __init__(self, recipe: Recipe, data: Data, out: Path, rank: int, device: torch.device) -> None:
        self.recipe, self.data, self.out, self.rank = recipe, data, out, rank
        self.place = recipe.layout.coordinates(rank)
        self.engine = engines.build(recipe, device)
        found = latest(out / CHECKPOINTS)
        if found:
            saved = sharding.open_checkpoint(found, recipe.model, data.train.fingerprint)
            sharding.restore(self.engine, sharding.Saved(saved))
            self.progress = saved.progress
        else:
            sharding.restore(self.engine, sharding.Beginning(recipe.model, recipe.train.seed))
            self.progress = Progress(
                step=0, samples=0, tokens=0, loss=0.0, stream=data.train.fingerprint, layout=recipe.layout
            )

    @property
    def holds(self) -> tuple[str, ...]:
        """The parts of the decoder on this rank."""
        recipe = self.recipe
        return stages(recipe.model, recipe.layout, recipe.train.recompute)[self.place.pp].parts

    def run(self, observe: Callable[[Step], None]) -> Progress:
        """Train to the recipe's end; rank 0 records, and shows every step to ``observe``."""
        recorder = Recorder.open(self.out, self.progress.step) if self.rank == 0 else None
        every, checkpoint_every = self.recipe.train.validation_every, self.recipe.train.checkpoint_every
        while not self.finished:
            step = self.step()
            if every and (self.finished or self.progress.step % every == 0):
                step["validation_loss"] = self.validate()
            if recorder:
                recorder.add(step)
                observe(step)
            if self.finished or (checkpoint_every and self.progress.step % checkpoint_every == 0):
                if recorder:
                    recorder.sync()
                self.checkpoint()
        if recorder:
            recorder.close()
            write_json(self.out / SUMMARY, self.summary())
        return self.progress

    @property
    def finished(self) -> bool:
        """Whether the recipe's samples have been consumed."""
        return self.progress.samples >= self.recipe.train.samples

    def step(self) -> Step:
        """Consume one batch."""
        recipe, before = self.recipe, self.progress
        batch = recipe.batch_size.at(before.samples)
        samples = before.samples + batch
        lr = recipe.train.learning_rate.at(samples)
        for group in self.engine.optimizer.param_groups:
            group["lr"] = lr
        self.engine.set_train_batch_size(batch)
        torch.manual_seed(self._seed(before.samples))
        began = time.perf_counter()
        loss = float(self.engine.train_batch(self._samples(self.data.train, range(before.samples, samples))))
        seconds = time.perf_counter() - began
        tokens = batch * recipe.model.sequence
        self.progress = before.model_copy(
            update={
                "step": before.step + 1,
                "samples": samples,
                "tokens": before.tokens + tokens,
                "loss": loss,
                "layout": recipe.layout,
            }
        )
        return {
            "step": self.progress.step,
            "samples": samples,
            "tokens": self.progress.tokens,
            "loss": loss,
            "lr": lr,
            "grad_norm": float(self.engine.get_global_grad_norm()),
            "batch_size": batch,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
        }

    def validate(self) -> float:
        """Mean loss over the held-out samples, in nats a token; kept in the progress."""
        stream = self.data.validation
        count = validation_samples(self.recipe, stream)
        rounds = count // self.recipe.batch_size.multiple
        loss = float(self.engine.eval_batch(self._samples(stream, range(count)), num_micro_batches=rounds))
        self.progress = self.progress.model_copy(update={"validation_loss": loss})
        return loss

    def checkpoint(self) -> None:
        """Write this rank's pieces; when all ranks have, the checkpoint appears, and old ones go."""
        directory, step, world = self.out / CHECKPOINTS, self.progress.step, self.recipe.layout.world
        sharding.write(self.engine, directory, step, f"rank-{self.rank}")
        distributed.barrier()
        if self.rank == 0:
            writers = [f"rank-{rank}" for rank in range(world)]
            publish(directory, step, writers, self.recipe.model, self.progress, self.data.tokenizer)
            retain(directory, self.recipe.train.keep)

    def summary(self) -> dict[str, Any]:
        """What summary.json holds."""
        recipe, progress = self.recipe, self.progress
        layout, recompute = recipe.layout, recipe.train.recompute
        seconds = sum(step["seconds"] for step in read_steps(self.out))
        cut = stages(recipe.model, Layout(pp=layout.pp), recompute)
        return {
            "version": 1,
            "layout": layout.model_dump(),
            "ranks": [{"rank": rank, **layout.coordinates(rank)._asdict()} for rank in range(layout.world)],
            "stages": [{"stage": s.number, "layers": list(s.parts), "parameters": s.parameters} for s in cut],
            "parameters": recipe.model.parameters,
            "model": recipe.model.model_dump(),
            "recompute": recompute,
            "sequence_parallel": recipe.train.sequence_parallel and layout.tp > 1,
            "precision": recipe.train.precision,
            "steps": progress.step,
            "samples": progress.samples,
            "tokens": progress.tokens,
            "loss": progress.loss,
            "validation_loss": progress.validation_loss,
            "seconds": seconds,
            "tokens_per_second": progress.tokens / seconds if seconds else 0.0,
            "versions": {name: version(name) for name in ("torch", "deepspeed", "megatron-core")},
            "stream": progress.stream,
        }

    def _samples(self, stream: TokenStream, samples: range) -> Iterator[tuple[Tensor, Tensor]]:
        return micro_batches(stream, samples, self.recipe.train.micro_batch, self.recipe.layout.dp, self.place.dp)

    def _seed(self, samples: int) -> int:
        """Of this step's dropout: the same on ranks that hold copies of the hidden state, another on all others."""
        copies = not self.recipe.train.sequence_parallel
        key = f"{self.recipe.train.seed}/{samples}/{self.place.pp}/{self.place.dp}/{0 if copies else self.place.tp}"
        return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "little")
