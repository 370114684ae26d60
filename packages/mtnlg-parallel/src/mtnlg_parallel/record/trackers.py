"""Experiment trackers: TensorBoard event files, and Weights & Biases on request."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from mtnlg_model.console import UsageFailure
from mtnlg_model.files import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

TENSORBOARD = "tensorboard"
WANDB, WANDB_ID = "wandb", "wandb.id"


class Tracker(Protocol):
    """Plots metrics by step."""

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step."""

    def close(self) -> None:
        """Flush what was logged."""


class TensorBoard:
    """Event files in ``out``/tensorboard; events after ``step`` are purged."""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (slow to import, and one rank needs it)

        self._writer = SummaryWriter(str(out / TENSORBOARD), purge_step=step + 1)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add each metric as a scalar under train/."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"train/{name}", value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of a W&B project; a resumed training run with the same ``out`` continues the same W&B run."""

    def __init__(self, project: str, out: Path, recipe: Recipe) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415  (an extra)

        if not (out / WANDB_ID).exists():
            write_text(out / WANDB_ID, uuid4().hex)
        identity = {"id": (out / WANDB_ID).read_text(encoding="utf-8"), "resume": "allow"}
        config = recipe.model_dump(mode="json")
        self._run = wandb.init(project=project, **identity, name=out.resolve().name, dir=str(out), config=config)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics under train/."""
        self._run.log({f"train/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Upload the rest and finish the W&B run."""
        self._run.finish()


def check_wandb() -> None:
    """Raise ``UsageFailure`` where the package wandb is not installed."""
    if find_spec("wandb") is None:
        raise UsageFailure("--wandb needs the package wandb; pip install 'mtnlg-parallel[wandb]'")
