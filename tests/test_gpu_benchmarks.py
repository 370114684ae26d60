"""The GPU benchmarks run end to end at a tiny size on machines without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = ("gpu_kernels.py", "gpu_rank_of_530b.py")


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the output of each script; both run at once, and neither may write a result."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("results")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    running = [
        subprocess.Popen(
            [sys.executable, str(BENCHMARKS / script), "--tiny", "--out", str(folder / script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for script in SCRIPTS
    ]
    ended = [process.communicate() for process in running]
    for process, (_, errors) in zip(running, ended, strict=True):
        assert process.returncode == 0, errors
    assert not list(folder.iterdir())
    return {script: output for script, (output, _) in zip(SCRIPTS, ended, strict=True)}


def test_every_kernel_is_checked_and_then_timed_against_other_implementations(tried: dict[str, str]) -> None:
    output = tried["gpu_kernels.py"]
    for operation in ("layer_norm", "bias_dropout_add_norm 0.1", "bias_gelu", "bias_dropout_add 0", "head and loss"):
        assert f"{operation}, forward + backward" in output
    for what in (
        "dropout's mask",
        "bias_dropout_add_norm 0.1, ragged",
        "head's gradient",
        "norm, clip, AdamW",
        "torch.compile",
        "SDPA",
    ):
        assert what in output
    assert "WRONG" not in output
    assert "left out" not in output
    assert "nothing is kept" in output


def test_a_rank_runs_exactly_the_products_that_the_formula_counts(tried: dict[str, str]) -> None:
    output = tried["gpu_rank_of_530b.py"]
    full = output.partition("full recomputation\n")[2].partition("\n\n")[0]
    place = full.index("run / hardware") + len("run / hardware")
    run = {line.split("  ")[0]: line[:place].split()[-1] for line in full.splitlines()[1:]}
    assert run["eager"] == "1.000"  # 96 B s l h² (1 + s / 6h) / 8, of products that PyTorch counted
    # Backward does not need the last product's result if dropout keeps no mask: recomputation stops before it.
    assert run["kernels"] == run["kernels, gradients added"] == "0.920"
    assert "torch.compile" in run
    assert "selective, sequence parallel, kernels: where a step goes" in output
    assert "ours: BiasGelu, backward" in output
    assert "left out" not in output
    assert "nothing is kept" in output


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_nothing_is_measured() -> None:
    ended = subprocess.run([sys.executable, str(BENCHMARKS / SCRIPTS[0])], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("no GPU here")
