"""A schedule of a user's own is one file: it is trained with, proved, planned and drawn by its reference."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mtnlg_model.console import UsageFailure
from mtnlg_model.settings import dump
from mtnlg_parallel.cli import app
from mtnlg_parallel.conformance import Case, run_cases
from mtnlg_parallel.planner.run import train_run
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record.status import status
from mtnlg_parallel.schedules import load_schedule, orders

GPIPE = '''
from mtnlg_parallel.schedules import Action, Schedule

class GPipe(Schedule):
    """All micro-batches forward, then all backward (Huang et al. 2019)."""
    help = "runs every micro-batch forward before the first goes backward."
    most_chunks = 1

    def orders(self, ranks, chunks, micro_batches):
        kinds = ("forward", "backward")
        return (tuple(Action(kind, number, 0) for kind in kinds for number in range(micro_batches)),) * ranks

class Torn(GPipe):
    def orders(self, ranks, chunks, micro_batches):
        return tuple(order[1:] for order in super().orders(ranks, chunks, micro_batches))

class Early(GPipe):
    def orders(self, ranks, chunks, micro_batches):
        return tuple(order[::-1] for order in super().orders(ranks, chunks, micro_batches))

class Stuck(GPipe):
    def orders(self, ranks, chunks, micro_batches):
        order = super().orders(ranks, chunks, micro_batches)[0]
        last_first = tuple(sorted(order, key=lambda action: (action.kind == "backward", -action.micro_batch)))
        return (tuple(sorted(order, key=lambda action: action.micro_batch)), *(last_first,) * (ranks - 1))

GPIPE, TORN, EARLY, STUCK, NONE = GPipe(), Torn(), Early(), Stuck(), 1
'''
MODEL = {"layers": 4, "hidden": 32, "heads": 4, "sequence": 16, "vocabulary": 64, "init_std": 0.1}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(GPIPE)
    return tmp_path / "own.py"


def recipe(schedule: str, **train: object) -> Recipe:
    settings = {"samples": 16, "batch": 8, "lr": 1e-3, "schedule": schedule, **train}
    return Recipe.model_validate({"model": MODEL, "layout": {"pp": 2}, "train": settings}, strict=False)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_trains_as_the_plain_loop_does(file: Path, precision: str) -> None:
    case = Case("gpipe", recipe(f"{file}:GPIPE", precision=precision))
    assert [result.status for result in run_cases("pipeline", [case])] == ["held"]


def test_is_planned_and_drawn(file: Path) -> None:
    words = ["plan", "dense-1.3b", "--layout", "tp=1,pp=4,dp=2", "--batch", "64", "--json"]
    plans = {}
    for name in (f"{file}:GPIPE", "zero-bubble", "1f1b"):
        page = ["--html", str(file.with_suffix(".html"))]
        result = CliRunner().invoke(app, [*words, "--schedule", name, *page], catch_exceptions=False)
        plans[name] = json.loads(result.stdout)
    own, split, plain = plans.values()
    assert (own["schedule"], own["program"]) == (f"{file}:GPIPE", split["program"])
    assert own["step_seconds_by"]["bubble"] == pytest.approx(plain["step_seconds_by"]["bubble"], rel=0.1)
    activations = [each["memory_bytes_by"]["activations"] for each in (own, plain)]
    assert activations[0] == pytest.approx(32 / 4 * activations[1]), "all micro-batches, not as many as stages"
    search = [*words, "--search", "--schedule", f"{file}:GPIPE", "--nodes", "1"]
    best = json.loads(CliRunner().invoke(app, search, catch_exceptions=False).stdout)["best"]
    assert {each["schedule"] for each in best} == {f"{file}:GPIPE"}


@pytest.mark.parametrize(
    ("name", "train", "message"),
    [
        ("NONE", {}, "a int, not a Schedule"),
        ("GONE", {}, "no attribute 'GONE'"),
        ("GPIPE", {"chunks": 2}, 'train.chunks = 2 needs train.schedule = "interleaved" or "zero-bubble", not'),
    ],
)
def test_is_refused_before_any_work(file: Path, name: str, train: dict[str, int], message: str) -> None:
    with pytest.raises(UsageFailure, match=message):
        train_run(recipe(f"{file}:{name}", **train))


def test_reading_a_run_runs_no_code_of_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(dump(recipe(f"{tmp_path / 'evil.py'}:SCHEDULE")), encoding="utf-8")
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    assert status(tmp_path)["state"] in {"starting", "silent"}


def test_orders_that_cannot_run_are_refused(file: Path) -> None:
    with pytest.raises(UsageFailure, match="rank 0 of 2 must have each forward, backward pass once"):
        orders(f"{file}:TORN", 2, 1, 4)
    with pytest.raises(UsageFailure, match="rank 0 of 2 has a backward pass before its input"):
        orders(f"{file}:EARLY", 2, 1, 4)
    words = ["plan", "dense-1.3b", "--layout", "pp=4", "--batch", "64", "--schedule", f"{file}:STUCK"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, UsageFailure)


def test_an_unknown_name_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(UsageFailure, match=r"dualpipe.: unknown; 1f1b, interleaved, zero-bubble, package"):
        load_schedule("dualpipe")
    with pytest.raises(ValueError, match="dualpipe: unknown; 1f1b, interleaved, zero-bubble, package"):
        recipe("dualpipe")
