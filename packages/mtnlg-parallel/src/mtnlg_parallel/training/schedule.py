"""Learning rate and batch size as pure functions of the samples consumed: nothing to save, nothing to restore.

With x samples consumed, warm-up w, decay horizon d (counted from 0, warm-up included) and peak p, floor f

    lr(x) = p x / w                                                     x <= w
            f + (p - f) (1 + cos(π (x - w) / (d - w))) / 2              w < x <= d
            f                                                           d < x

and, for a ramp from b₀ by b₁ over r samples to the full batch b, in n = (b - b₀) / b₁ increments of r / n samples each

    batch(x) = b₀ + b₁ floor(x n / r)                                   x < r,  else b

rounded down to a multiple of what all data-parallel ranks take in one micro-batch, and to one such multiple at least.
Conventions as Megatron's (paper.md section 2); tokens are samples times the sequence length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from mtnlg_model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

Samples = Annotated[int, Field(gt=0, lt=1 << 60)]


class Ramp(Settings):
    """How the batch grows at the beginning: from ``start`` by ``increment`` over ``samples``."""

    start: Samples
    increment: Samples
    samples: Samples


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up to ``peak``, then cosine decay to ``floor``; 0 <= warmup < decay, in samples."""

    peak: float
    floor: float
    warmup: int
    decay: int

    def at(self, samples: int) -> float:
        """The learning rate when ``samples`` have been consumed."""
        if samples <= self.warmup:
            return self.peak * samples / self.warmup if self.warmup else self.peak
        if samples > self.decay:
            return self.floor
        fallen = (samples - self.warmup) / (self.decay - self.warmup)
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * fallen)) / 2


@dataclass(frozen=True)
class BatchSize:
    """Samples a step: ``size`` after the ramp. ``multiple``, dp x micro-batch, divides ``size``."""

    size: int
    ramp: Ramp | None
    multiple: int

    def at(self, samples: int) -> int:
        """Samples of the step that begins when ``samples`` have been consumed."""
        ramp = self.ramp
        if ramp is None or samples >= ramp.samples:
            return self.size
        increments = (self.size - ramp.start) // ramp.increment
        wanted = ramp.start + ramp.increment * (samples * increments // ramp.samples)
        return max(wanted // self.multiple, 1) * self.multiple

    @property
    def rounding(self) -> str | None:
        """What a person is told where the ranks do not divide every size of the ramp; None where they do."""
        ramp, multiple = self.ramp, self.multiple
        if ramp is None or (ramp.start % multiple == 0 and ramp.increment % multiple == 0):
            return None
        return (
            f"the ramp from {ramp.start} by {ramp.increment} is rounded down to multiples of layout.dp x "
            f"train.micro_batch = {multiple}: it begins with {self.at(0)}"
        )

    def steps(self, total: int, begin: int = 0) -> Iterator[tuple[int, int]]:
        """(samples consumed before, batch) of every step from ``begin`` until ``total`` are reached.

        The last step is a whole one, so training ends with up to a batch less one more than ``total``.
        """
        while begin < total:
            size = self.at(begin)
            yield begin, size
            begin += size

    def number_of_steps(self, total: int, begin: int = 0) -> int:
        """How many steps ``steps`` yields, without walking those after the ramp."""
        ramped = 0
        end_of_ramp = min(self.ramp.samples if self.ramp else 0, total)
        for before, size in self.steps(end_of_ramp, begin):
            ramped += 1
            begin = before + size
        return ramped + max(0, -(-(total - begin) // self.size))
