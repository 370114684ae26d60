"""Both engines train as a plain PyTorch loop does; a broken one is found, and the parameter that suffers is named."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtnlg_model.config import GPT_FIELDS, LayerConfig, ModelConfig
from mtnlg_model.console import UsageFailure
from mtnlg_parallel.cli import app
from mtnlg_parallel.conformance import Case, check, draw, drawn_cases, fixed_cases, matrix, run_cases
from mtnlg_parallel.conformance.cases import listed
from mtnlg_parallel.engine.build import engine_class
from mtnlg_parallel.layout import Layout

SEED, DRAWN = 279, 12
ENGINES = ("deepspeed", "pipeline")
BROKEN = f"{Path(__file__).with_name('broken_engines.py')}:"


def assert_all_held(engine: str, cases: list[Case]) -> None:
    results = list(run_cases(engine, cases, jobs=2))
    assert len(results) == len(cases)
    assert not [f"{result.case.name}: {result}" for result in results if result.status != "held"]


@pytest.mark.parametrize("engine", ENGINES)
def test_fixed_matrix(engine: str) -> None:
    assert_all_held(engine, fixed_cases(engine))


@pytest.mark.parametrize("engine", [*ENGINES, f"{BROKEN}DeepSpeedBuckets", f"{BROKEN}PipelineBuckets"])
def test_drawn_cases(engine: str) -> None:
    assert_all_held(engine, list(islice(drawn_cases(engine, SEED), DRAWN)))


def cell(**values: object) -> Case:
    """The first cell of the matrix with these values."""
    wanted = {f"{key}={value}" for key, value in values.items()}
    return next(case for case in matrix() if wanted <= set(case.name.split()))


def test_forward_products_in_pieces() -> None:
    """Of four tensor-parallel ranks."""
    cells = [
        cell(tp=2, pp=1, dp=1, sequence_parallel=True, family=family, precision=precision)
        for family in ("gpt", "llama")
        for precision in ("fp32", "bf16")
    ]
    cut = [each._replace(recipe=each.recipe.model_copy(update={"layout": Layout(tp=4)})) for each in cells]
    assert_all_held(f"{BROKEN}PipelinePieces", cut)


TIED = {"head": "tied", "schedule": "1f1b", "pp": 2}
PARTS = {"tp": 2, "sequence_parallel": True, "head": "untied", "schedule": "1f1b", "pp": 1}
UNTIED = {"head": "untied", "schedule": "1f1b"}
DECAY = {"precision": "fp32", "schedule": "1f1b"}
ONE_DIMENSIONAL = r"norm\.|bias"
BREAKS = [
    ("Unsummed", [cell(**TIED, precision=precision) for precision in ("fp32", "bf16")], r"embedding\.token\.weight"),
    ("Unsummed", [cell(**PARTS, precision=precision) for precision in ("fp32", "bf16")], ONE_DIMENSIONAL),
    ("Head", [cell(**UNTIED, precision="bf16", pp=pp) for pp in (1, 2)], r"head\.weight"),
    ("Head", [cell(**TIED, precision="bf16")], r"embedding\.token\.weight"),
    ("Sum", [next(listed())], ""),
    ("Decay", [cell(**DECAY, family=family) for family in ("gpt", "llama")], ONE_DIMENSIONAL),
]


@pytest.mark.parametrize("engine", ["DeepSpeed", "Pipeline"])
@pytest.mark.parametrize(
    ("broken", "cases", "name"), BREAKS, ids=["tied", "parts", "head", "tied-head", "sum", "decay"]
)
def test_names_the_parameter_that_suffers(engine: str, broken: str, cases: list[Case], name: str) -> None:
    for result in run_cases(f"{BROKEN}{engine}{broken}", cases, jobs=2):
        assert result.difference, result
        assert re.search(name, result.difference.name), result


def test_rounding_that_is_small_by_chance_is_no_bound() -> None:
    """Seed 279 once drew a norm of 8 weights that the plain loop in bf16 had 0.5 % off, and other roundings 10 %."""
    case = cell(precision="bf16", tp=1, pp=1, dp=1)
    figures = [figure for figure in check(case, "pipeline").figures if figure.what == "exp_avg_sq" and figure.step == 2]
    roundings = sorted(figure.rounding for figure in figures)
    assert roundings[0] == roundings[len(roundings) // 2 - 1] < roundings[-1]


def test_draws_cover_every_setting_that_decoders_differ_in() -> None:
    """A setting added later is missing here until it is drawn."""
    models = [draw(SEED, number).recipe.model for number in range(100)]
    found = {name for model in models for name in model.beyond_gpt}
    layers = [layer.model_dump(mode="json") for model in models for layer in model.by_layer]
    assert found >= ModelConfig.model_fields.keys() - set(GPT_FIELDS)
    assert {name for layer in layers for name in layer} == LayerConfig.model_fields.keys()


def test_draws_differ_and_repeat() -> None:
    recipes = [draw(SEED, number).recipe for number in range(40)]
    assert recipes == [draw(SEED, number).recipe for number in range(40)]
    assert len({recipe.model_dump_json() for recipe in recipes}) == len(recipes)


def test_command_says_how_far_the_engine_was_off() -> None:
    held = CliRunner().invoke(app, ["conform", "--engine", "pipeline", "--cases", "2"])
    assert held.exit_code == 0
    assert re.search(r"all of 2 cases .*, to 0\.\d\d of the allowed errors", held.stderr)
    with pytest.raises(UsageFailure, match="deepspeed, pipeline"):
        engine_class("megatron")


def test_a_rank_that_fails_is_an_error(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter.py"
    adapter.write_text(
        "def Failing(*_):\n    raise RuntimeError('no such device')\nFailing.unsupported = lambda _: None"
    )
    result = check(draw(SEED, 0), f"{adapter}:Failing")
    assert (result.status, "no such device" in result.error) == ("failed", True)
