"""Learning rate and batch size as pure functions of the samples consumed: no state to save or restore.

With x samples consumed, warm-up w, decay horizon d (counted from 0, so it includes the warm-up), peak p and floor f

    lr(x) = p x / w                                                     x <= w
            f + (p - f) (1 + cos(π (x - w) / (d - w))) / 2              w < x <= d
            f                                                           d < x

and, for a ramp from b₀ by b₁ over r samples to the full batch b, in n = (b - b₀) / b₁ increments of r / n samples each

    batch(x) = b₀ + b₁ floor(x n / r)                                   x < r,  else b

rounded down to a multiple of dp x micro-batch, and at least one such multiple. These are Megatron's conventions
(paper.md section 2). Tokens are samples times the sequence length.

A recipe may word a length in samples as ``"300B tokens"`` or ``"5000 steps"``; `mtnlg_parallel.recipe` counts them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from mtnlg_model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENGTH: Final = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{1,12})?) ?([kMBT]?) (samples|steps|tokens)")
_MAGNITUDES: Final = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class WrittenLength(NamedTuple):
    """A length as a recipe words it."""

    amount: Fraction
    unit: Literal["samples", "steps", "tokens"]


def parse_length(text: str) -> WrittenLength:
    """Parse ``300B tokens``, ``5000 steps`` or ``1.5M samples``. Raises ``ValueError`` where it is none of these."""
    match = _LENGTH.fullmatch(text)
    if not match:
        raise ValueError('write a number of samples, or such as "5000 steps", "300B tokens", "1.5M samples"')
    amount, unit = Fraction(match[1].replace("_", "")) * _MAGNITUDES[match[2]], match[3]
    if unit != "tokens" and amount.denominator > 1:
        raise ValueError(f"not a whole number of {unit}")
    return WrittenLength(amount, unit)  # type: ignore[arg-type]  # (one of the three, by the pattern)


def _refuse_text(value: Any) -> Any:  # noqa: ANN401  (what the recipe holds)
    """Explain a worded length that could not be counted in samples; pass on everything else."""
    if not isinstance(value, str):
        return value
    unit = parse_length(value).unit
    raise ValueError(f"{unit} need a valid {'model.sequence' if unit == 'tokens' else 'train.batch and train.ramp'}")


LIMIT: Final = 1 << 60
Samples = Annotated[int, Field(gt=0, lt=LIMIT)]
IN_SAMPLES: Final = BeforeValidator(_refuse_text)
"""Marks a key in samples that a recipe may word otherwise."""


class Ramp(Settings):
    """Batch size ramp: from ``start`` by ``increment`` to the full batch over the first ``samples``."""

    start: Samples = Field(description="first batch size")
    increment: Samples = Field(description="added at equal intervals")
    samples: Annotated[Samples, IN_SAMPLES] = Field(description="after which the batch is full")

    def meets(self, size: int) -> bool:
        """Whether the increments lead from ``start`` to exactly ``size``."""
        return self.start <= size and (size - self.start) % self.increment == 0


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up to ``peak``, then cosine decay to ``floor``; 0 <= warmup < decay, in samples."""

    peak: float
    floor: float
    warmup: int
    decay: int

    def at(self, samples: int) -> float:
        """The learning rate after ``samples`` consumed samples."""
        if samples <= self.warmup:
            return self.peak * samples / self.warmup if self.warmup else self.peak
        if samples > self.decay:
            return self.floor
        decayed = (samples - self.warmup) / (self.decay - self.warmup)
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * decayed)) / 2


@dataclass(frozen=True)
class BatchSize:
    """Samples per step: ``size`` after the ramp. ``multiple`` is dp x micro-batch and divides ``size``."""

    size: int
    ramp: Ramp | None
    multiple: int

    def at(self, samples: int) -> int:
        """The batch size of the step that begins after ``samples`` consumed samples."""
        ramp = self.ramp
        if ramp is None or samples >= ramp.samples:
            return self.size
        increments = (self.size - ramp.start) // ramp.increment
        ramped = ramp.start + ramp.increment * (samples * increments // ramp.samples)
        return max(ramped // self.multiple, 1) * self.multiple

    def samples_after(self, steps: int) -> int:
        """Number of samples that the first ``steps`` steps consume."""
        ramp, before = self.ramp, 0
        while ramp and steps and before < ramp.samples:
            increments = (self.size - ramp.start) // ramp.increment
            level = before * increments // ramp.samples
            end = -(-(level + 1) * ramp.samples // increments) if increments else ramp.samples  # where the batch grows
            size = self.at(before)
            equal = min(steps, -(-(end - before) // size))
            before, steps = before + equal * size, steps - equal
        return before + steps * self.size

    @property
    def rounding(self) -> str | None:
        """A note for the user where ``multiple`` does not divide every step of the ramp; None where it does."""
        ramp, multiple = self.ramp, self.multiple
        if ramp is None or (ramp.start % multiple == 0 and ramp.increment % multiple == 0):
            return None
        return (
            f"the ramp from {ramp.start} by {ramp.increment} is rounded down to multiples of layout.dp x "
            f"train.micro_batch = {multiple}: it begins with {self.at(0)}"
        )

    def steps(self, total: int, begin: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (samples consumed before, batch size) for every step from ``begin`` until ``total`` is reached.

        The last batch is a full one, so training may end up to a batch minus one beyond ``total``.
        """
        while begin < total:
            size = self.at(begin)
            yield begin, size
            begin += size

    def number_of_steps(self, total: int, begin: int = 0) -> int:
        """Number of steps that `steps` yields, without iterating over those after the ramp."""
        ramped = 0
        end_of_ramp = min(self.ramp.samples if self.ramp else 0, total)
        for before, size in self.steps(end_of_ramp, begin):
            ramped += 1
            begin = before + size
        return ramped + max(0, -(-(total - begin) // self.size))
