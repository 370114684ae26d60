"""Recipes of the smallest decoder, and the files that a run leaves, for tests of what reads them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record import history, metrics


def recipe_of(layout: Mapping[str, int] | None = None, **train: object) -> Recipe:
    """Four steps of the preset tiny, with some keys of ``train`` changed."""
    content: dict[str, Any] = {"samples": 32, "batch": 8, "lr": 1e-3, **train}
    sections = {"model": {"preset": "tiny"}, "layout": layout or {}, "train": content}
    return Recipe.model_validate(sections, strict=False)


def event(name: str, time: float, **facts: object) -> dict[str, object]:
    """An event of a run's history."""
    return {"event": name, "time": time, **facts}


def write_steps(out: Path, steps: Iterable[Mapping[str, object]]) -> None:
    """Write the file of a run's steps."""
    (out / metrics.FILE).write_text("".join(json.dumps(step) + "\n" for step in steps))


def write_events(out: Path, events: Iterable[Mapping[str, object]]) -> None:
    """Write a run's history."""
    (out / history.FILE).write_text("".join(json.dumps(each) + "\n" for each in events))
