"""What a person asks of a run beside its recipe, which decides nothing of what is trained."""

from __future__ import annotations

from typing import NamedTuple


class Wishes(NamedTuple):
    """A project of Weights & Biases to show the run in, and steps to profile."""

    wandb: str | None = None
    profiled: range | None = None
