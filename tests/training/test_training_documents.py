"""Runs on isolated documents and masks of a data folder; `test_conformance` compares both engines with a plain loop."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mtnlg_data.stream import open_stream
from mtnlg_data.tokens.store import TokenStore, writing_store
from mtnlg_model.settings import dump
from mtnlg_parallel.recipe import DataSettings, Recipe
from mtnlg_parallel.recipe_file import load_recipe
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.training.guard import NO_TARGETS
from mtnlg_parallel.training.samples import open_data
from training.reference_loop import FP32, RunRanks, recipe_of
from training.test_training_layouts import trained


@pytest.fixture(scope="module")
def masked(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data, of whose code every third token is learned, on average."""
    return with_masks(data, tmp_path_factory.mktemp("data") / "masked", {"code": 1 / 3})


def with_masks(data: Path, out: Path, shares: dict[str, float]) -> Path:
    """A copy of the data, of whose sources such shares of the tokens are learned."""
    tokens, draw = shutil.copytree(data, out) / "tokens", np.random.default_rng(3)
    blend = json.loads((tokens / "blend.json").read_text())
    for source in blend["sources"]:
        if source["name"] in shares:
            store, prefix = TokenStore(tokens / source["prefix"]), tokens / f"{source['prefix']}.mask"
            with writing_store(prefix, 2, np.dtype(np.uint8)) as mask:
                for number in range(len(store)):
                    mask.add((draw.random(len(store[number])) < shares[source["name"]]).astype(np.uint8))
            source["mask"] = TokenStore(prefix).checksum()
    (tokens / "blend.json").write_text(json.dumps(blend))
    return out


def isolated(layout: tuple[int, ...], documents: str, **train: object) -> Recipe:
    data = DataSettings.model_validate({"documents": documents})
    return recipe_of(layout, {"layers": 4}, None, **train).model_copy(update={"data": data})


@pytest.mark.parametrize("layout", [(1, 2, 2), (1, 1, 2, 2)])
def test_losses_of_sources_are_means_over_learned_tokens(
    layout: tuple[int, ...], run_ranks: RunRanks, masked: Path, tmp_path: Path
) -> None:
    recipe = isolated(layout, "joined", samples=8, ramp=None, validation_every=0)
    recipe = recipe.model_copy(update={"watch": recipe.watch.model_copy(update={"every": 1})})
    (step,) = trained(run_ranks, recipe, masked, tmp_path)[0]["steps"]
    stream = open_data(masked, recipe).train
    learned = {"prose": 0, "code": 0}
    for number in range(8):
        counts = stream.sample(number).counts
        learned[stream.source(number)] += 8 if counts is None else int(counts[1:].sum())
    losses = {name: source["loss"] for name, source in step["sources"].items()}
    mean = sum(losses[name] * learned[name] for name in learned) / sum(learned.values())
    assert step["loss"] == pytest.approx(mean, rel=FP32)
    assert step["learned_tokens"] == sum(learned.values())


def test_epochs_are_passes_over_the_data(data: Path, tmp_path: Path) -> None:
    recipe = recipe_of()
    (tmp_path / "train.toml").write_text(dump(recipe))
    loaded = load_recipe(tmp_path, ["train.samples=1.5 epochs", "train.decay=2 epochs"], data)
    corpus = open_data(data, recipe).corpus
    assert (loaded.train.samples, loaded.train.decay) == (round(1.5 * corpus), 2 * corpus)


def test_tokens_in_no_sample_are_counted(data: Path) -> None:
    recipe = recipe_of(validation_every=0)
    assert not open_data(data, recipe).left_out
    largest = max(open_stream(data / "tokens", 8).sources, key=lambda source: source.tokens)
    sequence = largest.tokens * 2 // 3
    longer = recipe.model_copy(update={"model": recipe.model.model_copy(update={"sequence": sequence})})
    unread = f"{largest.tokens - 1 - sequence} of {largest.tokens} tokens are in no sample"
    assert any(f"{largest.name}: {unread}: the rest of a source" in line for line in open_data(data, longer).left_out)


@pytest.mark.parametrize("engine", ["pipeline", "deepspeed"])
def test_steps_of_which_nothing_is_learned_are_skipped(
    engine: str, run_ranks: RunRanks, data: Path, tmp_path: Path
) -> None:
    """They have no loss and end no run early, but one of only such steps fails; nor has a validation of them a loss."""
    unlearned = with_masks(data, tmp_path / "data", {"prose": 0.0, "code": 0.0})
    recipe = isolated((1, 1, 2), "joined", samples=24, ramp=None, validation_every=3, engine=engine)
    recipe = recipe.model_copy(update={"guard": recipe.guard.model_copy(update={"most_skips": 2})})
    errors = run_ranks("train", [recipe], data=unlearned, outs=[tmp_path / "out"], fails=True)
    assert all("guard.NoStepTaken: all 3 steps were skipped" in error for error in errors)
    steps = [*read_steps(tmp_path / "out")]
    found = {(step["loss"], step["grad_norm"], step["skipped"]) for step in steps}
    assert found == {(None, 0.0, NO_TARGETS.code)}
    assert "not finite" in steps[2]["validation_error"]
