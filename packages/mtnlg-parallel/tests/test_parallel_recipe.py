"""Our recipes equal the published runs, and every mistake in a recipe is one line with the way out."""

from pathlib import Path

import pytest

from mtnlg_model.config import PRESETS
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.layout_report import layout_facts, print_layout
from mtnlg_parallel.recipe import Recipe, first_difference, load_recipe

RECIPES = Path(__file__).parents[3] / "recipes"
PUBLISHED = ["mt-nlg-530b", "dense-6.7b", "dense-1.3b", "dense-350m"]
SMALL = """
[model]
preset = "tiny"
[layout]
tp = 2
[train]
samples = 100
batch = 8
lr = 1e-3
decay = 100
checkpoint_every = 0
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "train.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.skipif(not RECIPES.exists(), reason="the package stands alone, without the recipes beside it")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_recipe_holds_the_published_model_and_a_valid_layout(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_recipe(RECIPES / name)
    assert recipe.model == PRESETS[name]
    print_layout(recipe)
    assert f"{recipe.model.parameters:,} parameters over {recipe.layout}" in capsys.readouterr().out
    facts = layout_facts(recipe)
    assert facts["world"] == len(facts["ranks"]) == recipe.layout.world
    assert sum(len(stage["parts"]) for stage in facts["stages"]) == recipe.model.layers + 3


@pytest.mark.skipif(not RECIPES.exists(), reason="the package stands alone, without the recipes beside it")
def test_the_530b_recipe_is_the_paper_in_tokens() -> None:
    recipe = load_recipe(RECIPES / "mt-nlg-530b")
    train, sequence = recipe.train, recipe.model.sequence
    assert recipe.train.ramp is not None
    in_tokens = [n * sequence / 1e9 for n in (train.samples, train.warmup, train.decay, recipe.train.ramp.samples)]
    assert in_tokens == pytest.approx([270, 1, 340, 12], rel=1e-6)
    assert train.batch * sequence == pytest.approx(3.93e6, rel=1e-3)
    assert recipe.layout.world == 2240
    assert recipe.steps == pytest.approx(80_100, rel=1e-3)


@pytest.mark.skipif(not RECIPES.exists(), reason="the package stands alone, without the recipes beside it")
def test_the_quickstart_uses_tp_pp_and_every_training_technique_of_the_paper() -> None:
    recipe = load_recipe(RECIPES / "quickstart")
    train = recipe.train
    assert (recipe.layout.tp, recipe.layout.pp) == (2, 2)
    assert train.ramp is not None
    assert (train.recompute, train.precision, train.betas) == ("full", "fp32", (0.9, 0.95))
    assert 0 < train.warmup < train.decay
    assert recipe.model.sequence >= 256


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("layout.tp=3", "layout.tp = 3 does not divide model.heads = 4; use 1, 2 or 4"),
        ("layout.pp=3", "layout.pp = 3 stages for model.layers = 2; use 1 to 2"),
        ("layout.dp=3", "layout.dp = 3 x train.micro_batch = 1 does not divide train.batch = 8; use batch = 6 or 9"),
        ("train.micro_batch=16", "16 does not divide train.batch = 8; use batch = 16"),
        ("train.lerning_rate=1", "train.lerning_rate = 1: unknown key; valid keys: batch, betas"),
        ('train.lr="fast"', "train.lr = 'fast': Input should be a valid number"),
        ("train.precision=fp16", "train.precision = 'fp16': Input should be 'fp32' or 'bf16'"),
        ("train.warmup=100", "warmup = 100 must end before decay = 100"),
        ("train.min_lr=1.0", "min_lr = 1.0 is above lr = 0.001"),
        ("train.ramp={start=3,increment=2,samples=10}", "never meets batch = 8"),
        ("model.preset=dense-2b", "preset dense-2b: unknown; choose from mt-nlg-530b"),
        ("model.heads=5", "heads = 5 does not divide hidden = 64"),
    ],
)
def test_a_mistake_is_one_line_with_file_key_value_and_choices(small: Path, override: str, words: str) -> None:
    with pytest.raises(UsageFailure) as caught:
        load_recipe(small, [override])
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{small}: ")
    assert words in line


def test_a_missing_recipe_is_a_failure_not_a_usage_failure(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no such recipe") as caught:
        load_recipe(tmp_path)
    assert caught.value.exit_status == 1


def test_a_preset_may_be_overridden_and_the_resolved_recipe_reads_back(small: Path, tmp_path: Path) -> None:
    from mtnlg_model.settings import dump

    recipe = load_recipe(small, ["model.sequence=64"])
    assert recipe.model == PRESETS["tiny"].model_copy(update={"sequence": 64})
    resolved = tmp_path / "recipe.toml"
    resolved.write_text(dump(recipe))
    assert load_recipe(resolved) == recipe


@pytest.mark.parametrize(
    ("override", "difference"),
    [
        ("layout.pp=2", None),
        ("train.micro_batch=4", None),
        ("train.samples=200", None),
        ("train.recompute=none", None),
        ("train.lr=1e-2", "train.lr was 0.001 and is 0.01 now"),
        ("model.layers=3", "model.layers was 2 and is 3 now"),
        ("train.seed=1", "train.seed was 1234 and is 1 now"),
    ],
)
def test_a_run_may_resume_in_another_layout_but_not_with_another_schedule(
    small: Path, override: str, difference: str | None
) -> None:
    before: Recipe = load_recipe(small)
    assert first_difference(before, load_recipe(small, [override])) == difference
