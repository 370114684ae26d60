"""The health check's judgement on synthetic findings, its product, and which device a rank takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mtnlg_model.console import Failure
from mtnlg_parallel.engine.process import UnfitNode, rank_device
from mtnlg_parallel.launch import health
from mtnlg_parallel.launch.health import Finding, find_failures, rings, slow_devices, slow_links
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe, load_recipe

LAYOUT = Layout(tp=4, pp=2, dp=2)
RANKS_PER_NODE = 4
OUT = Path("/shared/out")


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    path = Path(__file__).parents[3] / "recipes" / "quickstart"
    return load_recipe(path, ["layout.tp=4", "layout.pp=2", "layout.dp=2", "train.batch=16", "train.micro_batch=2"])


def findings(**changes: dict[int, Any]) -> list[Finding]:
    """Healthy findings of 16 ranks on four nodes, which differ by some percent; ``changes`` by field and rank."""
    healthy = [
        Finding(
            node=f"n{rank // RANKS_PER_NODE}",
            device=f"A100 GPU-{rank}",
            flops=2.4e14 * (1 - rank / 100),
            inside=2e11 * (1 - rank / 50),
            between=2e10 * (1 - rank / 50),
            free=10**13 if rank == 0 else -1,
        )
        for rank in range(LAYOUT.world)
    ]
    for field, values in changes.items():
        for rank, value in values.items():
            healthy[rank] = healthy[rank]._replace(**{field: value})
    return healthy


def test_healthy_ranks_that_differ_by_a_third_pass(recipe: Recipe) -> None:
    found = findings(flops={3: 1.6e14}, between={5: 1.4e10, 9: 1.4e10})
    assert not find_failures(found, recipe, OUT)
    assert not slow_devices(found, LAYOUT)
    assert not slow_links(found, LAYOUT, RANKS_PER_NODE)


def test_a_wrong_product_accuses_rank_node_and_gpu_and_no_other(recipe: Recipe) -> None:
    failures = find_failures(findings(product_is_right={6: False}), recipe, OUT)
    assert {rank: (str(failure), failure.exit_status) for rank, failure in failures.items()} == {
        6: ("rank 6 (tp 2, pp 0, dp 1) on n1: A100 GPU-6 computes wrong products; leave that node out", 72)
    }


def test_each_node_whose_folder_fails_is_named(recipe: Recipe) -> None:
    failures = find_failures(findings(folder={4: "Read-only file system; mend it"}), recipe, OUT)
    assert {rank: (str(failure), failure.exit_status) for rank, failure in failures.items()} == {
        4: ("rank 4 (tp 0, pp 0, dp 1) on n1: /shared/out: Read-only file system; mend it", 74)
    }


@pytest.mark.parametrize(("precision", "bytes_a_parameter"), [("bf16", 14), ("fp32", 12)])
def test_a_folder_too_small_for_a_checkpoint_is_refused_with_both_sizes(
    recipe: Recipe, precision: str, bytes_a_parameter: int
) -> None:
    train = recipe.train.model_copy(update={"precision": precision})
    needed = recipe.model.parameters * bytes_a_parameter
    chosen = recipe.model_copy(update={"train": train})
    assert not find_failures(findings(free={0: needed}), chosen, OUT)
    (failure,) = find_failures(findings(free={0: needed - 1}), chosen, OUT).values()
    sizes = f"{needed / 1e9:.3g} GB are free and a checkpoint takes {needed / 1e9:.3g} GB"
    assert str(failure) == f"/shared/out: {sizes}; make room, or use another --out"


def test_a_gpu_below_half_the_median_is_slow() -> None:
    assert slow_devices(findings(flops={2: 0.9e14}), LAYOUT) == [
        "rank 2 (tp 2, pp 0, dp 0) on n0, A100 GPU-2, 90 of 220 TFLOP/s"
    ]


def test_a_slow_link_slows_both_ends_and_is_named_alone() -> None:
    """Ranks 1 and 5 have the same place on nodes 0 and 1."""
    (line,) = slow_links(findings(between={1: 5e9, 5: 6e9}), LAYOUT, RANKS_PER_NODE)
    assert line.startswith("rank 1 (tp 1, pp 0, dp 0) on n0 to rank 5 (tp 1, pp 0, dp 1) on n1, 6 of ")


def test_a_slow_network_card_is_at_the_end_of_both_its_links() -> None:
    slow = slow_links(findings(between={1: 5e9, 5: 5e9, 9: 5e9}), LAYOUT, RANKS_PER_NODE)
    assert ["on n1" in line for line in slow] == [True, True]


def test_links_within_a_node_are_judged_apart_from_those_between() -> None:
    (line,) = slow_links(findings(inside={4: 5e10, 5: 5e10}), LAYOUT, RANKS_PER_NODE)
    assert "on n1 to rank 5" in line


@pytest.mark.parametrize("ranks_per_node", [1, 2, 3, 4, 8])
def test_what_a_rank_sends_its_neighbour_expects(ranks_per_node: int) -> None:
    inside, between = rings(8, ranks_per_node)
    for ring in (inside, between):
        assert all(ring[following][0] == rank for rank, (_, following) in enumerate(ring))
    assert all(following // ranks_per_node == rank // ranks_per_node for rank, (_, following) in enumerate(inside))
    assert len(between) == (8 if ranks_per_node < 8 else 0)


def test_one_wrong_element_of_a_product_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert health._multiply(torch.device("cpu")) == (True, 0.0)
    multiply = torch.mm

    def flip(*factors: torch.Tensor) -> torch.Tensor:
        product = multiply(*factors)
        product[17, 42] += 1
        return product

    monkeypatch.setattr(torch, "mm", flip)
    assert health._multiply(torch.device("cpu")) == (False, 0.0)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError("full")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="full"):
        health._write_probe(tmp_path / "probe")
    assert not list(tmp_path.iterdir())


CLUSTERS: list[dict[str, Any]] = [{"SLURM_JOB_ID": "7", "local_world": 16}, {"local_world": 4}]


RANK_13: dict[str, Any] = {"rank": 13, "world": 16, "local_rank": 1, "SLURMD_NODENAME": "n3"}


def set_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: count > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=["slurm", "several nodes"])
def test_a_rank_without_gpu_on_a_cluster_fails_unless_the_cpu_is_asked_for(
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
