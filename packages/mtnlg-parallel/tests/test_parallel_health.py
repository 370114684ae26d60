"""The health check's judgement on synthetic findings, its product, and which device a rank takes."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mtnlg_model.console import Failure, IoFailure
from mtnlg_parallel.engine.process import UnfitNode, rank_device
from mtnlg_parallel.launch import health
from mtnlg_parallel.launch.health import slow_devices
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.recipe_file import load_recipe

LAYOUT = Layout(tp=4, pp=2, dp=2)


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    path = Path(__file__).parents[3] / "recipes" / "quickstart"
    return load_recipe(path, ["layout.tp=4", "layout.pp=2", "layout.dp=2", "train.batch=16", "train.micro_batch=2"])


@pytest.mark.parametrize(("precision", "bytes_per_parameter"), [("bf16", 14), ("fp32", 12)])
def test_folder_too_small_for_a_checkpoint_is_refused(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, bytes_per_parameter: int
) -> None:
    train = recipe.train.model_copy(update={"precision": precision})
    needed = recipe.model.parameters * bytes_per_parameter
    chosen = recipe.model_copy(update={"train": train})
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=needed))
    assert (tmp_path / f"{health.PROBE}{health._begin_probe(chosen, tmp_path)}").exists()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    sizes = f"{needed / 1e9:.3g} GB are free and a checkpoint takes {needed / 1e9:.3g} GB"
    with pytest.raises(IoFailure, match=rf"{sizes}; make room, or use another --out"):
        health._begin_probe(chosen, tmp_path)


def test_a_gpu_below_half_the_median_is_slow() -> None:
    rates = {f"rank {rank}": 240.0 - rank for rank in range(16)} | {"rank 3": 160.0}
    assert not slow_devices(rates)
    assert slow_devices(rates | {"rank 2": 90.0}) == ["rank 2: 90 of 230 TFLOP/s"]


CLUSTERS: list[dict[str, Any]] = [{"SLURM_JOB_ID": "7", "local_world": 16}, {"local_world": 4}]


RANK_13: dict[str, Any] = {"rank": 13, "world": 16, "local_rank": 1, "SLURMD_NODENAME": "n3"}


def set_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=["slurm", "several nodes"])
def test_rank_without_gpu_on_a_cluster_fails(
    cluster: dict[str, Any], monkeypatch: pytest.MonkeyPatch, be_rank: Callable[..., None]
) -> None:
    set_gpus(monkeypatch, 0)
    be_rank(**RANK_13, local_world=16)
    assert rank_device(LAYOUT, "auto").type == "cpu", "a single machine"
    be_rank(**RANK_13, **cluster)
    assert rank_device(LAYOUT, "cpu").type == "cpu"
    with pytest.raises(UnfitNode, match=r"^rank 13 \(tp 1, pp 1, dp 1\) on n3: torch sees no GPU; .* --device cpu$"):
        rank_device(LAYOUT, "auto")


def test_a_rank_takes_its_own_gpu_or_fails_where_there_are_fewer(
    monkeypatch: pytest.MonkeyPatch, be_rank: Callable[..., None]
) -> None:
    set_gpus(monkeypatch, 2)
    be_rank(**RANK_13, local_world=16)
    assert rank_device(LAYOUT, "auto") == torch.device("cuda", 1)
    assert rank_device(LAYOUT, "cpu").type == "cpu"
    set_gpus(monkeypatch, 1)
    with pytest.raises(Failure, match="on n3: it needs GPU 1 and torch sees 1; "):
        rank_device(LAYOUT, "auto")
