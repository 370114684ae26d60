"""Where a person watches a run: TensorBoard's event files, and Weights & Biases where it is asked for."""

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


class Board(Protocol):
    """Shows figures by step."""

    def show(self, step: int, figures: Mapping[str, Any]) -> None:
        """Show a step's."""

    def close(self) -> None:
        """Have all of them shown."""


class TensorBoard:
    """Event files in ``out``/tensorboard, cut back to ``step``."""

    def __init__(self, out: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (slow to import, and one rank needs it)

        self._writer = SummaryWriter(str(out / TENSORBOARD), purge_step=step + 1)

    def show(self, step: int, figures: Mapping[str, Any]) -> None:
        """Add each as a scalar under train/."""
        for name, value in figures.items():
            self._writer.add_scalar(f"train/{name}", value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """A run of a project there; the same ``out`` goes on with the same run."""

    def __init__(self, project: str, out: Path, recipe: Recipe) -> None:
        import wandb  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415  (an extra)

        if not (out / WANDB_ID).exists():
            write_text(out / WANDB_ID, uuid4().hex)
        known = {"id": (out / WANDB_ID).read_text(encoding="utf-8"), "resume": "allow"}
        config = recipe.model_dump(mode="json")
        self._run = wandb.init(project=project, **known, name=out.resolve().name, dir=str(out), config=config)

    def show(self, step: int, figures: Mapping[str, Any]) -> None:
        """Log them under train/."""
        self._run.log({f"train/{name}": value for name, value in figures.items()}, step=step)

    def close(self) -> None:
        """Upload what is left."""
        self._run.finish()


def check_wandb() -> None:
    """Raise ``UsageFailure`` where Weights & Biases is not installed."""
    if find_spec("wandb") is None:
        raise UsageFailure("--wandb needs the package wandb; pip install 'mtnlg-parallel[wandb]'")
