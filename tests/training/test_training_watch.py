"""What a run measures beside its loss: figures that equal a plain loop's in every layout, and ranks at fault."""

import json
import math
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mtnlg_data.stream import open_stream
from mtnlg_parallel import waiting
from mtnlg_parallel.conformance.reference import PlainLoop
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record.metrics import read_steps
from mtnlg_parallel.record.status import status
from mtnlg_parallel.training.samples import RunStream, open_data
from mtnlg_parallel.waiting import Stopwatch, wait_for
from training.conftest import make_data
from training.reference_loop import FP32, Json, RunRanks, recipe_of

EVERY, SKIPPED = 3, 5
FIGURES = ("parameter_norm", "update_ratio")


def watched(layout: tuple[int, int, int], every: int = EVERY, **train: object) -> Recipe:
    recipe = recipe_of(layout, None, None, **{"validation_every": 0, **train})
    return recipe.model_copy(update={"watch": recipe.watch.model_copy(update={"every": every})})


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> list[Json]:
    """Another folder from sample 30 on, and the first again from 60 on."""
    folder = tmp_path_factory.mktemp("folder") / "anneal"
    folder.mkdir()
    make_data(folder, seed=2)
    return [{"at": 30, "data": str(folder), "skip": [[3, 5]], "weight_decay": 0.3}, {"at": 60, "data": ""}]


def counted(stream: RunStream, samples: int) -> Counter[str]:
    return Counter(stream.source(sample) for sample in range(samples))


LAYOUTS: list[tuple[tuple[int, int, int], Json]] = [
    ((1, 1, 1), {}),
    ((2, 1, 2), {}),
    ((1, 2, 1), {"schedule": "zero-bubble"}),
    ((1, 2, 1), {"micro_batch": 1}),
    ((2, 2, 1), {"sequence_parallel": False, "recompute": "full"}),
    ((1, 1, 2), {"engine": "deepspeed"}),
    ((1, 2, 1), {"engine": "deepspeed"}),
]


@pytest.fixture(scope="module")
def expected(data: Path, changes: list[Json]) -> dict[int, Json]:
    """The figures of every third step by the plain loop."""
    recipe = watched((1, 1, 1), change=changes)
    stream = open_data(data, recipe).train
    folders = {"": data, "anneal/": Path(changes[0]["data"])}
    windows = {
        f"{prefix}{source.name}": source.windows
        for prefix, folder in folders.items()
        for source in open_stream(folder / "tokens", 8, "train").sources
    }
    loop, losses, found = PlainLoop(recipe, "fp32", stream=stream), dict[str, list[float]](), dict[int, Json]()
    outputs = dict[int, torch.Tensor]()
    for n, decoder_layer in enumerate(loop._decoder.layers):
        decoder_layer.register_forward_hook(lambda _layer, _inputs, y, n=n: outputs.__setitem__(n, y))
    for number, (before, batch) in enumerate(recipe.batch_size.steps(recipe.train.samples), 1):
        with torch.no_grad():
            for sample in range(before, before + batch if number != SKIPPED else before):
                loss = float(loop.loss(range(sample, sample + 1)))
                losses.setdefault(stream.source(sample), []).append(loss)
        outputs.clear()
        with torch.no_grad():
            loop.loss(range(before, before + batch))
        largest, layer = max((float(output.abs().max()), f"layers.{n}") for n, output in outputs.items())
        weights = loop.state().arrays
        loop.step(before, batch, number != SKIPPED)
        after = loop.state().arrays
        if number % EVERY:
            continue
        norms = [
            math.sqrt(sum(float(np.square(array).sum()) for array in arrays))
            for arrays in (
                [slots["master"] for slots in after.values()],
                [after[name]["master"] - slots["master"] for name, slots in weights.items()],
            )
        ]
        found[number] = {
            "tokens": {name: 8 * count for name, count in counted(stream, before + batch).items()},
            "passes": {name: count / windows[name] for name, count in counted(stream, before + batch).items()},
            "activation_max": largest,
            "activation_layer": layer,
            "loss": {source: np.mean(values) for source, values in losses.items() if values},
            "parameter_norm": norms[0],
            "update_ratio": norms[1] / norms[0],
        }
        losses.clear()
    return found


@pytest.mark.parametrize(("layout", "train"), LAYOUTS)
def test_figures_equal_the_plain_loops(  # noqa: PLR0917  (fixtures)
    layout: tuple[int, int, int],
    train: Json,
    changes: list[Json],
    expected: dict[int, Json],
    run_ranks: RunRanks,
    data: Path,
    tmp_path: Path,
) -> None:
    """Also over a change of the folder, and a step that is skipped."""
    recipe = watched(layout, change=changes, **train)
    run_ranks("train", [recipe], data=data, outs=[tmp_path], faults={"nan": [SKIPPED]})
    steps = {step["step"]: step for step in map(dict[str, Any], read_steps(tmp_path))}
    assert "skipped" in steps[SKIPPED]
    assert [number for number, step in steps.items() if "sources" in step] == [*expected]
    for number, wanted in expected.items():
        step = steps[number]
        sources = {name: each for name, each in step["sources"].items() if each["tokens"]}
        assert {name: each["tokens"] for name, each in sources.items()} == wanted["tokens"]
        assert {name: each["passes"] for name, each in sources.items()} == pytest.approx(wanted["passes"])
        losses = {name: each["loss"] for name, each in sources.items() if "loss" in each}
        assert losses == pytest.approx(wanted["loss"], rel=FP32)
        assert [step[key] for key in FIGURES] == pytest.approx([wanted[key] for key in FIGURES], rel=1e-4)
        assert step["activation_max"] == pytest.approx(wanted["activation_max"], rel=FP32)
        assert step["activation_layer"] == wanted["activation_layer"]
        assert "memory_peak" not in step  # on a CPU


def test_frozen_parameters_have_no_update(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    """Of all, the norm is 0 and the weights stay; of the matrices, less moves than where all are trained."""
    norms: dict[str, Any] = {}
    for frozen in ("*", "*.weight", "embedding.position.*"):
        recipe = watched((1, 1, 1), samples=32, frozen=[frozen])
        run_ranks("train", [recipe], data=data, outs=[tmp_path / str(len(norms))])
        steps = [step for step in read_steps(tmp_path / str(len(norms))) if "update_ratio" in step]
        norms[frozen] = [(step["grad_norm"], step["update_ratio"]) for step in steps]
    assert {*norms["*"]} == {(0.0, 0.0)}
    assert all(0 < few[1] < most[1] for few, most in zip(*[*norms.values()][1:], strict=True))


@pytest.mark.parametrize(
    ("layout", "precision", "shard", "rank", "named"),
    [
        ((1, 1, 3), "fp32", "state", 1, [1]),
        ((1, 2, 2), "bf16", "state", 3, [3]),
        ((1, 1, 2), "fp32", "state", 1, [0, 1]),
        ((1, 1, 3), "bf16", "parameters", 2, [2]),
    ],
)
def test_flipped_weight_ends_the_run_and_names_the_rank(  # noqa: PLR0917  (fixtures)
    layout: tuple[int, int, int],
    precision: str,
    shard: str,
    rank: int,
    named: list[int],
    run_ranks: RunRanks,
    data: Path,
    tmp_path: Path,
) -> None:
    """By the majority; of two by their master weights, which fp32 has no copies of."""
    recipe = watched(layout, every=1, precision=precision, shard=shard, batch=12, validation_samples=12, ramp=None)
    errors = run_ranks("train", [recipe], fails=True, data=data, outs=[tmp_path], faults={"flip": [2, rank]})
    assert len(errors) == recipe.layout.world
    for error in errors:
        assert [int(number) for number in re.findall(r"rank (\d+) \(", error.splitlines()[-1])] == named
    assert [step["step"] for step in read_steps(tmp_path)] == [1]


def test_slow_rank_is_named_when_it_stays_the_slowest(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    """Rank 1's clock runs ahead by ten seconds at each layer of its work."""
    recipe = watched((1, 1, 2))
    run_ranks("train", [recipe], data=data, outs=[tmp_path], faults={"slow": 1})
    figures = [step for step in read_steps(tmp_path) if "slowest_rank" in step]
    assert [step["slowest_rank"] for step in figures] == [1] * len(figures)
    assert all(step["slowest_by"] > 5 for step in figures)
    assert ["slow_rank" in step for step in figures] == [False] + [True] * (len(figures) - 1)
    assert figures[1]["slow_rank"].startswith("rank 1 (")
    assert status(tmp_path)["slow_rank"] == figures[-1]["slow_rank"]


def test_time_within_waits_is_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    work: Any = SimpleNamespace(wait=lambda: clock.__setitem__(0, clock[0] + 100))
    stopwatch = Stopwatch(torch.device("cpu"))
    for _ in range(3):
        clock[0] += 1
        wait_for(work)
    wait_for(None)
    clock[0] += 0.5
    assert stopwatch.stop() == 3.5
    wait_for(work)
    assert clock[0] == 403.5


def test_openmetrics_file_has_the_newest_figures(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "textfile" / "run.prom", tmp_path / 'a "run"'
    recipe = watched((1, 1, 1))
    recipe = recipe.model_copy(update={"watch": recipe.watch.model_copy(update={"openmetrics": str(path)})})
    run_ranks("train", [recipe], data=data, outs=[out])
    lines = path.read_text().splitlines()
    assert lines[-1] == "# EOF"
    last = [*read_steps(out)][-1]
    assert f'mtnlg_loss{{run="a \\"run\\""}} {json.dumps(last["loss"])}' in lines
    assert lines.count("# TYPE mtnlg_source_loss gauge") == 1
    assert sum(line.startswith("mtnlg_source_loss{") for line in lines) == 2
    assert [*path.parent.iterdir()] == [path]
    assert path.stat().st_mode & 0o044 == 0o044
