"""Learning rate and batch size as pure functions of the samples consumed: no state to save or restore.

With x samples consumed, warm-up w, hold h >= w, decay horizon d (all counted from 0, so each includes those before),
peak p and floor f

    lr(x) = p x / w                                                     x <= w
            p                                                           w < x <= h
            f + (p - f) (1 + cos(π (x - h) / (d - h))) / 2              h < x <= d, "cosine"
            f + (p - f) (d - x) / (d - h)                               h < x <= d, "linear"
            p                                                           w < x, "constant"
            f                                                           d < x

MT-NLG uses cosine with h = w; a hold with a linear decay is warmup-stable-decay. A warm-up that a change begins at s
is p (x - s) / w up to s + w, which stands for w in the other lines.

For a ramp from b₀ by b₁ over r samples to the full batch b, in n = (b - b₀) / b₁ increments of r / n samples each

    batch(x) = b₀ + b₁ floor(x n / r)                                   x < r,  else b

rounded down to a multiple of dp x micro-batch, and at least one such multiple. These are Megatron's conventions
(paper.md section 2). A change of the batch at a sample takes effect at the first step that begins there or later.
Tokens are samples times the sequence length.

A recipe may write a length in samples as ``"300B tokens"`` or ``"5000 steps"``, which `recipe_file` converts.
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

_LENGTH: Final = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{1,12})?) ?([kMBT]?) (samples|steps|tokens|epochs)")
_MAGNITUDES: Final = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


class WrittenLength(NamedTuple):
    """A length as written in a recipe: amount and unit."""

    amount: Fraction
    unit: Literal["samples", "steps", "tokens", "epochs"]


def parse_length(text: str) -> WrittenLength:
    """Parse ``300B tokens``, ``5000 steps``, ``1.5M samples`` or ``3 epochs``. Raises ``ValueError`` for others."""
    match = _LENGTH.fullmatch(text)
    if not match:
        raise ValueError('write a number of samples, or for example "5000 steps", "300B tokens", "1.5M samples"')
    amount, unit = Fraction(match[1].replace("_", "")) * _MAGNITUDES[match[2]], match[3]
    if unit in {"samples", "steps"} and amount.denominator > 1:
        raise ValueError(f"not a whole number of {unit}")
    return WrittenLength(amount, unit)  # type: ignore[arg-type]  # (one of the four, by the pattern)


def _refuse_text(value: Any) -> Any:  # noqa: ANN401  (what the recipe holds)
    """Raise ``ValueError`` for a length in words that could not be converted to samples; return any other value."""
    if not isinstance(value, str):
        return value
    unit = parse_length(value).unit
    needed = {
        "tokens": "model.sequence",
        "epochs": "model.sequence, and --data; without data write samples",
        "steps": "train.batch and train.ramp; write the ramp's own length in samples or tokens",
    }
    raise ValueError(f"{unit} need a valid {needed[unit]}")


LIMIT: Final = 1 << 60
Shape = Literal["cosine", "linear", "constant"]
"""Shape of the learning rate's decay."""

Samples = Annotated[int, Field(gt=0, lt=LIMIT)]
IN_SAMPLES: Final = BeforeValidator(_refuse_text)
"""Marks a key in samples that a recipe may write in words."""


class Ramp(Settings):
    """Batch size ramp: from ``start`` by ``increment`` to the full batch over the first ``samples``."""

    start: Samples = Field(description="first batch size")
    increment: Samples = Field(description="added to the batch at equal intervals")
    samples: Annotated[Samples, IN_SAMPLES] = Field(description="samples after which the batch is full")

    def meets(self, size: int) -> bool:
        """Whether the increments lead from ``start`` to exactly ``size``."""
        return self.start <= size and (size - self.start) % self.increment == 0


@dataclass(frozen=True)
class LearningRate:
    """Linear warm-up from ``start`` to ``peak``, a hold, then decay to ``floor``; in samples.

    ``warmup`` is a length; ``hold`` and ``decay``, which is later than `peak_end`, count from 0.
    """

    peak: float
    floor: float
    warmup: int
    decay: int
    hold: int = 0
    shape: Shape = "cosine"
    start: int = 0

    @property
    def risen(self) -> int:
        """Samples at the end of the warm-up."""
        return self.start + self.warmup

    @property
    def peak_end(self) -> int:
        """Samples at which the decay begins."""
        return max(self.hold, self.risen)

    def at(self, samples: int) -> float:
        """The learning rate after ``samples`` consumed samples."""
        if samples <= self.risen:
            return self.peak * (samples - self.start) / self.warmup if self.warmup else self.peak
        if self.shape == "constant":
            return self.peak
        if samples > self.decay:
            return self.floor
        if samples <= self.peak_end:
            return self.peak
        decayed = (samples - self.peak_end) / (self.decay - self.peak_end)
        remaining = (1 + math.cos(math.pi * decayed)) / 2 if self.shape == "cosine" else 1 - decayed
        return self.floor + (self.peak - self.floor) * remaining


@dataclass(frozen=True)
class BatchSize:
    """Samples per step: ``size`` after the ramp, then the sizes in ``changes``, (samples consumed, size), in order.

    ``multiple`` is dp x micro-batch and divides each size.
    """

    size: int
    ramp: Ramp | None
    multiple: int
    changes: tuple[tuple[int, int], ...] = ()

    def at(self, samples: int) -> int:
        """The batch size of the step that begins after ``samples`` consumed samples."""
        return self._size_and_end(samples)[0]

    def _size_and_end(self, samples: int) -> tuple[int, int]:
        """The batch size at ``samples`` consumed samples, and the number of samples at which it may change next."""
        ramp, end = self.ramp, next((at for at, _ in self.changes if at > samples), LIMIT)
        changed = [size for at, size in self.changes if at <= samples]
        if changed or ramp is None or samples >= ramp.samples:
            return changed[-1] if changed else self.size, end
        increments = (self.size - ramp.start) // ramp.increment
        level = samples * increments // ramp.samples
        if increments:
            end = min(end, -(-(level + 1) * ramp.samples // increments))
        return max((ramp.start + ramp.increment * level) // self.multiple, 1) * self.multiple, min(end, ramp.samples)

    def samples_after(self, steps: int, begin: int = 0) -> int:
        """Number of samples that ``steps`` steps consume, the first of which begins after ``begin``."""
        before = begin
        while steps:
            size, end = self._size_and_end(before)
            equal = steps if end == LIMIT else min(steps, -(-(end - before) // size))
            before, steps = before + equal * size, steps - equal
        return before - begin

    @property
    def rounding(self) -> str | None:
        """A note for the user if ``multiple`` does not divide every batch size of the ramp; None if it does."""
        ramp, multiple = self.ramp, self.multiple
        if ramp is None or (ramp.start % multiple == 0 and ramp.increment % multiple == 0):
            return None
        return (
            f"the ramp from {ramp.start} by {ramp.increment} is rounded down to multiples of layout.dp x "
            f"train.micro_batch = {multiple}: it begins with {self.at(0)}"
        )

    def steps(self, total: int, begin: int = 0) -> Iterator[tuple[int, int]]:
        """Yield (samples consumed before, batch size) for every step from ``begin`` until ``total`` is reached.

        The last batch is a full one, so training may end up to (batch - 1) samples beyond ``total``.
        """
        while begin < total:
            size = self.at(begin)
            yield begin, size
            begin += size

    def number_of_steps(self, total: int, begin: int = 0) -> int:
        """Number of steps that `steps` yields, computed without iterating over steps of equal size."""
        count = 0
        while begin < total:
            size, end = self._size_and_end(begin)
            equal = -(-(min(end, total) - begin) // size)
            begin, count = begin + equal * size, count + equal
        return count
