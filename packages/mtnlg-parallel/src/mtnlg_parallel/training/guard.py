"""The guard skips a step whose loss or gradient norm is not finite, or far above those of the steps before it.

With mean m and standard deviation d of the losses (and, separately, of the gradient norms) of the last ``window`` steps
that were not skipped, a step is skipped where

    x is not finite,  or  x > m + deviations · d             once the window is full

The window starts anew at each change of the recipe (``[[train.change]]``): a smaller batch has larger gradient norms,
other data has another loss. A change may also set the guard.

A step in which no target is learned has no loss and a gradient of 0; it is skipped too, but does not count against the
run. The samples of a skipped step are consumed and its gradient is discarded; weights and moments do not change. All
ranks skip together: each judges by the same two all-reduced numbers, and a window of such numbers. OLMo and Levanter
skip in the same way (6 deviations over 128 steps).
"""

from __future__ import annotations

import math
from collections import deque
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Final

from mtnlg_model.console import Failure
from mtnlg_parallel.engine.contract import Skip

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import GuardSettings
    from mtnlg_parallel.record.metrics import Step


NO_TARGETS: Final = Skip("no_targets", "none of its targets is learned")


def history(steps: Sequence[Step], settings: GuardSettings) -> Sequence[Step]:
    """The last of these steps, sufficient for a guard to judge as if it had seen them all.

    They include as many steps that were not skipped as the window holds, however many were skipped in between.
    """
    taken = [number for number, step in enumerate(steps) if "skipped" not in step]
    return steps[taken[-settings.window] :] if len(taken) >= settings.window else steps


def go_back(checkpoint: Path) -> str:
    """How to go on from the newest checkpoint before skipped steps."""
    command = f"mtnlg-parallel rollback {checkpoint.parents[1]} --to {checkpoint.name} --skip last"
    return f"to go on from the newest checkpoint from before, without the samples since: {command}"


class TooManySkips(Failure):
    """Steps ``first`` to ``last`` were all skipped; ``checkpoint`` is the newest from before them, or None."""

    def __init__(self, first: int, last: int, reason: str, checkpoint: Path | None) -> None:
        self.first, self.last, self.checkpoint = first, last, checkpoint
        hint = "no checkpoint is from before them; see that the weights it began with are sound, lower train.lr, and "
        hint += "start over with --no-resume"
        hint = go_back(checkpoint) if checkpoint else hint
        super().__init__(
            f"step {last}: {last - first + 1} steps in a row were skipped, the last because its {reason}; {hint}; "
            "or pass them with a higher guard.most_skips"
        )


class NoStepTaken(Failure):
    """All ``steps`` of a run were skipped, so that its weights are those that it began with."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        hint = "remove the cause, skip_reason in metrics.jsonl, and start over with --no-resume"
        super().__init__(f"all {steps} steps were skipped, so nothing was trained; {hint}")


class Guard:
    """Judges steps by the window of preceding steps; ``steps`` is the `history` of the run so far.

    ``settings`` are those of the next step; ``changes`` has those from each sample on at which the recipe changes.
    """

    def __init__(
        self, settings: GuardSettings, steps: Iterable[Step] = (), changes: Mapping[int, GuardSettings] = {}
    ) -> None:
        self._changes = changes
        self._skipped_in_a_row: list[Step] = []
        self._begin(settings)
        for step in steps:
            self.record(step)

    def _begin(self, settings: GuardSettings) -> None:
        self._settings = settings
        self._window = {name: deque[float](maxlen=settings.window) for name in ("loss", "grad_norm")}

    def judge(self, loss: float, grad_norm: float) -> Skip | None:
        """Why to skip a step with this loss and gradient norm; None to take it."""
        if math.isnan(loss) and not grad_norm:
            return NO_TARGETS
        for name, value in (("loss", loss), ("grad_norm", grad_norm)):
            if not math.isfinite(value):
                return Skip(f"{name}_not_finite", f"{name} is not finite")
            window, allowed = self._window[name], self._settings.deviations
            if not allowed or len(window) < self._settings.window:
                continue
            mean, deviation = fmean(window), pstdev(window)
            if value > mean + allowed * deviation > mean:
                times = (value - mean) / deviation
                above = f"{name} {value:.4g} is {times:.1f} deviations above the last {len(window)} ({mean:.4g})"
                return Skip(f"{name}_spike", above)
        return None

    def record(self, step: Step) -> None:
        """Add a finished step to the window, or to the count of steps skipped in a row."""
        if "skipped" not in step:
            self._skipped_in_a_row.clear()
            for name, value in (("loss", step["loss"]), ("grad_norm", step["grad_norm"])):
                if value is not None:
                    self._window[name].append(value)
        elif step["skipped"] != NO_TARGETS.code:
            self._skipped_in_a_row.append(step)
        for at, settings in self._changes.items():
            if step["samples"] - step["batch_size"] < at <= step["samples"]:
                self._begin(settings)

    @property
    def exhausted(self) -> bool:
        """Whether ``most_skips`` consecutive steps were skipped, so that the run must end."""
        return len(self._skipped_in_a_row) >= self._settings.most_skips

    def failure(self, checkpoints: Sequence[tuple[int, Path]]) -> TooManySkips:
        """The failure that ends an exhausted run; ``checkpoints`` are its (step, folder), oldest first."""
        first, last = self._skipped_in_a_row[0]["step"], self._skipped_in_a_row[-1]
        return TooManySkips(first, last["step"], last["skip_reason"], self._newest(checkpoints))

    def warning(self, step: Step, checkpoints: Sequence[tuple[int, Path]]) -> str:
        """A line that reports a step that was skipped, and how to go back."""
        newest = self._newest(checkpoints)
        hint = f"; {go_back(newest)}" if newest else ""
        return f"WARNING: step {step['step']} was skipped: its {step['skip_reason']}{hint}"

    def _newest(self, checkpoints: Sequence[tuple[int, Path]]) -> Path | None:
        """The newest checkpoint from before the consecutive skipped steps."""
        return next((path for step, path in reversed(checkpoints) if step < self._skipped_in_a_row[0]["step"]), None)
