"""How a rank starts: the groups it makes and their timeouts, its device, and the health check before training."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mtnlg_parallel.environment import Environment
from training.reference_loop import RunRanks, recipe_of


def test_every_process_group_waits_longer_than_the_watchdog(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    recipe = recipe_of((2, 2, 1), guard={"patience": 700.0, "disk_patience": 50.0}, samples=8)
    for timeouts in run_ranks("group_timeouts", [recipe], data=data, outs=[tmp_path]):
        assert len(timeouts) >= 6
        assert set(timeouts) == {760.0}


def test_every_rank_joins_equally_many_groups(run_ranks: RunRanks, data: Path, tmp_path: Path) -> None:
    """torch names a group that is made by its own ranks alone by how many each of them has: else they wait for ever.

    Of three stages only the outer two share the token table, and have a group for it.
    """
    recipe = recipe_of((1, 3, 1), {"layers": 3}, samples=8)
    assert len({len(timeouts) for timeouts in run_ranks("group_timeouts", [recipe], data=data, outs=[tmp_path])}) == 1


def test_a_rank_of_2240_makes_only_groups_that_are_used(run_ranks: RunRanks) -> None:
    """Together with all ranks the world's and DeepSpeed's twin of it; every other one alone with its own ranks."""
    layout, model = (8, 35, 8), {"layers": 35, "heads": 8, "hidden": 64}
    for engine, together, joined in (("deepspeed", 2, 8), ("pipeline", 1, 6)):
        recipe = recipe_of(layout, model, engine=engine, batch=8, micro_batch=1, ramp=None, validation_samples=8)
        for rank in (0, 1117):
            (made,) = run_ranks("groups_made", [recipe], rank=rank, world=1)
            assert made == {"together": together, "joined": joined}, "as many on every rank"


def test_default_engine_leaves_torch_compile_on() -> None:
    """On a cluster each rank's imports are files read from a shared disk."""
    statements = """if True:
        import mtnlg_parallel.launch.worker, mtnlg_parallel.engine.pipeline_engine, os, sys
        sys.exit("deepspeed" in sys.modules or "megatron" in sys.modules or "TORCHDYNAMO_DISABLE" in os.environ)
    """
    subprocess.run([sys.executable, "-c", statements], check=True)


@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        ("product", 72, r"rank 1 \(.*dp 1\) on node-1: CPU computes wrong products; leave that node out"),
        ("full", 74, r"rank 1 \(.*dp 1\) on node-1: /.*: No space left on device; make room or make it writable"),
        ("unshared", 74, r"rank 1 \(.*dp 1\) on node-1: /.*: rank 0's file is not there after .* that all nodes share"),
    ],
    ids=["product", "full", "unshared"],
)
def test_a_node_at_fault_is_named_before_training(
    run_ranks: RunRanks, tmp_path: Path, fault: str, status: int, line: str
) -> None:
    recipe = recipe_of((1, 1, 2))
    peer, culprit = run_ranks("checked_health", [recipe], out=tmp_path, fault=fault)
    assert culprit["status"] == status
    assert re.search(line, culprit["line"])
    assert peer["status"] == 70
    assert peer["line"].startswith("rank 0 stops: rank 1 (tp 0, pp 0, dp 1) on node-1: ")
    assert not list(tmp_path.iterdir())


def test_healthy_nodes_are_described_in_one_line(run_ranks: RunRanks, tmp_path: Path) -> None:
    ranks = run_ranks("checked_health", [recipe_of((1, 1, 2))], out=tmp_path, fault="")
    assert [len(rank["lines"]) for rank in ranks] == [1, 0]
    described = r"checked 2 ranks, [\d.,e+]+ GB free"
    assert re.fullmatch(described, ranks[0]["lines"][0])
    assert not list(tmp_path.iterdir())


def test_cuda_finds_its_settings_when_the_forecast_starts_it() -> None:
    """On rank 0 the forecast asks the GPU for its name before the process group is there."""
    code = """
import os
from mtnlg_parallel.launch.worker import run_rank
from mtnlg_parallel.recipe import RunOptions
from mtnlg_parallel.recipe_file import load_recipe
from pathlib import Path
import torch
def prepare():
    print(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"], torch.cuda.is_initialized())
    raise SystemExit
run_rank(load_recipe(Path("recipes/quickstart")), Path(), Path(), RunOptions(), prepare)
"""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
    environment |= Environment(world=4, local_world=4, address="127.0.0.1", port=29400).variables()
    root = Path(__file__).parents[2]
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "False"], done.stderr
