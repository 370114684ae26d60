from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.settings import Settings, read_toml, validate

if TYPE_CHECKING:
    from pathlib import Path


class Source(Settings):
    name: str
    weight: float


class Train(Settings):
    lr: float
    precision: Literal["fp32", "bf16"] = "fp32"
    betas: tuple[float, float] = (0.9, 0.95)


class Recipe(Settings):
    train: Train
    sources: tuple[Source, ...] = ()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "train.toml"
    path.write_text('[train]\nlr = 1\n[[sources]]\nname = "code"\nweight = 0.5\n', encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"train": {"lr": 1.0, "lrr": 2}}, "t: train.lrr = 2: unknown key; did you mean lr? valid keys: betas, lr"),
        ({"train": {"lr": "fast"}}, "t: train.lr = 'fast': Input should be a valid number"),
        ({"train": {"lr": float("nan")}}, "t: train.lr = nan: Input should be a finite number"),
        ({"train": {}}, "t: train.lr: required key is missing"),
        ({"train": {"lr": 1.0, "precision": "fp8"}}, "t: train.precision = 'fp8': Input should be 'fp32' or 'bf16'"),
        ({"train": {"lr": 1.0}, "sources": [{"name": "a", "weigth": 1}]}, "t: sources.0.weigth = 1: unknown key;"),
    ],
)
def test_a_mistake_names_file_key_value_and_what_is_valid(content: dict[str, object], line: str) -> None:
    with pytest.raises(UsageFailure) as caught:
        validate(content, Recipe, "t")
    assert line in str(caught.value)


def test_missing_recipe_and_invalid_toml_differ(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no such recipe") as missing:
        read_toml(tmp_path, "train.toml")
    assert missing.value.exit_status == 1
    (tmp_path / "train.toml").write_text("train = {", encoding="utf-8")
    with pytest.raises(UsageFailure, match="not TOML"):
        read_toml(tmp_path, "train.toml")


@pytest.mark.parametrize("override", ["train.lr", "=1", "train..lr=1", "train.lr.x=1"])
def test_an_override_that_cannot_be_set_is_refused(recipe: Path, override: str) -> None:
    with pytest.raises(UsageFailure, match="--set"):
        read_toml(recipe, "train.toml", [override])
