"""Which steps are not taken: those whose loss or gradient is not finite, or leaps out of what was seen before.

With the mean m and the standard deviation d of the losses (and, apart from them, of the gradient norms) of the last
``window`` steps that were taken, a step is skipped where

    x is not finite,  or  x > m + deviations · d             once the window is full

Its samples are consumed, its gradient is thrown away, weights and moments stay; all ranks do so together, because
the figures that they judge by were summed over all of them. OLMo and Levanter skip alike (6 deviations of 128 steps).
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from mtnlg_parallel.recipe import GuardSettings

    from .metrics import Step


class Guard:
    """Judges steps, and remembers those that were taken; begins from the last ones that metrics.jsonl holds."""

    def __init__(self, settings: GuardSettings, before: Iterable[Step] = ()) -> None:
        self._settings = settings
        self._seen = {name: deque[float](maxlen=settings.window) for name in ("loss", "grad_norm")}
        self._skipped: list[str] = []
        for step in before:
            self.saw(step)

    def reason(self, loss: float, grad_norm: float) -> str | None:
        """Why a step with these figures must not be taken; None where it may."""
        for name, value in (("loss", loss), ("grad_norm", grad_norm)):
            if not math.isfinite(value):
                return f"{name} is not finite"
            seen, allowed = self._seen[name], self._settings.deviations
            if not allowed or len(seen) < self._settings.window:
                continue
            mean, deviation = fmean(seen), pstdev(seen)
            if value > mean + allowed * deviation > mean:
                times = (value - mean) / deviation
                return f"{name} {value:.4g} is {times:.1f} deviations above the last {len(seen)} ({mean:.4g})"
        return None

    def saw(self, step: Step) -> None:
        """Remember a step."""
        if "skipped" in step:
            self._skipped.append(step["skipped"])
            return
        self._skipped.clear()
        for name, value in (("loss", step["loss"]), ("grad_norm", step["grad_norm"])):
            if value is not None:
                self._seen[name].append(value)

    @property
    def exhausted(self) -> bool:
        """Whether so many steps in a row were skipped that going on is no use."""
        return len(self._skipped) >= self._settings.most_skips

    def failure(self, step: Step, newest: Path | None) -> Failure:
        """What ends the run then, naming the newest checkpoint."""
        going_on = f"the last good checkpoint is {newest}" if newest else "there is no checkpoint yet"
        return Failure(
            f"step {step['step']}: {len(self._skipped)} steps in a row were skipped, the last because its "
            f"{self._skipped[-1]}; {going_on}; lower train.lr, or raise guard.most_skips"
        )


class AdamW(torch.optim.AdamW):
    """Updates only where ``permits`` says so, which is asked on all ranks when gradients have been reduced."""

    permits: Callable[[], bool] = staticmethod(lambda: True)

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401  (torch's signature)
        """Update, or leave weights and moments as they are."""
        return super().step(closure) if self.permits() else None


def figures(engine: Any, device: torch.device) -> tuple[float, float]:  # noqa: ANN401  (DeepSpeed has no annotations)
    """Loss and gradient norm of the batch whose gradients ``engine`` has just reduced, the same on every rank.

    The last stage knows the loss of each replica; one sum over all ranks makes it everyone's.
    """
    grid, sums = engine.grid, torch.zeros(2, dtype=torch.float64, device=device)
    if engine.is_last_stage():
        replicas = grid.data_parallel_size * grid.model_parallel_size
        sums[0] = engine.total_loss.double() / (engine.micro_batches * replicas)
    if distributed.get_rank() == 0:
        sums[1] = float(engine.optimizer._global_grad_norm)  # noqa: SLF001  (the engine tells it only after the step)
    distributed.all_reduce(sums)
    loss, grad_norm = sums.tolist()
    return loss, grad_norm
