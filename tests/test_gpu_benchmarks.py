"""The GPU benchmark runs end to end at a tiny size on machines without a GPU."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SIDES = (
    ("waiting", "probe", "checks", "kernels", "evaluation"),
    ("engine", "rank", "training"),
)
Rows = dict[tuple[str, str], dict[str, Any]]


def command(out: Path, parts: Sequence[str]) -> list[str]:
    words = ["--out", str(out), "--only", ",".join(parts), "--tiny", "--minutes", "60"]
    return [sys.executable, str(BENCHMARK), *words]


def in_folder(work: Path) -> dict[str, str]:
    return ENVIRONMENT | {"MTNLG_GPU_WORK": str(work)}


def read(out: Path) -> Rows:
    path = out / "results.jsonl"
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines() if path.exists() else [])
    return {(row["part"], row["key"]): row for row in rows}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Where the parts have run, in two calls beside each other."""
    pytest.importorskip("triton")
    outs = [tmp_path_factory.mktemp("gpu") for _ in SIDES]
    running = [
        subprocess.Popen(
            command(out, parts),
            env=in_folder(tmp_path_factory.mktemp("work")),
            stdout=subprocess.DEVNULL,
        )
        for out, parts in zip(outs, SIDES, strict=True)
    ]
    statuses = [process.wait() for process in running]  # of all, before one ends the test
    for status, out in zip(statuses, outs, strict=True):
        assert status == 0, (out / "log.txt").read_text(encoding="utf-8")
    return outs


@pytest.fixture(scope="module")
def rows(folders: list[Path]) -> Rows:
    return {key: row for out in folders for key, row in read(out).items()}


def test_every_part_ends_and_leaves_two_files(rows: Rows, folders: list[Path]) -> None:
    assert {part for part, key in rows if key == "ended"} == {part for parts in SIDES for part in parts}
    assert all({path.name for path in out.iterdir()} == {"results.jsonl", "log.txt"} for out in folders)


def test_every_kernel_is_checked_then_timed(rows: Rows) -> None:
    checks = [row for (part, _), row in rows.items() if part == "checks" and "passed" in row]
    assert all(row["passed"] for row in checks)
    checked = " ".join(row["key"] for row in checks)
    for what in ("dropout's mask", "bias_dropout_add_norm 0.1, ragged", "head's gradient", "head and loss"):
        assert what in checked
    times = {key: row for (part, key), row in rows.items() if part == "kernels" and "ratios" in row}
    for operation in ("bias_dropout_add_norm 0.1", "bias_gelu", "bias_dropout_add 0.1", "swiglu", "rotary"):
        key = f"{operation}, 530B, one rank of tp 8, forward + backward"
        assert set(times[key]["ratios"]) >= {"torch.compile / kernel", "eager / kernel"}
    assert "eager / kernel" in times["layer_norm, 530B, sequence parallel over 8, forward + backward"]["ratios"]
    assert "torch.compile / kernel" in times["rounded to 8 bits, 530B, one rank of tp 8"]["ratios"]
    assert not any(row["left_out"] for row in times.values())


def test_the_probe_tells_what_attention_drops(rows: Rows) -> None:
    for head in (64, 128, 160):
        row = rows["probe", f"heads of {head}"]
        assert row["dropped"]["MATH"] == pytest.approx(0.1, abs=0.01)
        assert row["default"] in row["dropped"]


def test_every_way_of_a_gpu_is_compared_with_plain_numbers(rows: Rows) -> None:
    """What a GPU runs by another path: attention, and a step in each precision and of isolated documents."""
    for head in (64, 128, 160):
        row = rows["probe", f"attention, heads of {head}"]
        assert "error" not in row
        assert len(row["seconds"]) >= 2
    for case in ("bf16", "bf16 sums", "fp8", "documents"):
        row = rows["engine", case]
        assert row["passed"]
        assert 0 < row["errors"]["exp_avg"] < row["allowed"]["exp_avg"] / 2


@pytest.mark.parametrize("case", ["full", "selective"])
def test_rank_runs_the_counted_products(rows: Rows, case: str) -> None:
    """96 or 72 B s l h² (1 + s / 6h) / 8 and recomputed attention, of products that PyTorch counted."""
    flops = {key: row["flops"] for (part, key), row in rows.items() if part == "rank" and key.startswith(case)}
    assert flops.pop(f"{case}, torch.compile")
    # With our kernels nothing behind a layer's last product needs it, so recomputation leaves it out. Attention is
    # recomputed up to what backward needs: not its last product.
    least = 0.9 if case == "full" else 0.99
    assert all(least < counts["products run"] / counts["hardware"] <= 1.0 for counts in flops.values())
    assert len(flops) == 3


def test_training_is_measured(rows: Rows) -> None:
    assert len(rows["training", "350m"]["losses"]) == 14
    assert rows["training", "350m"]["predicted_bytes"] > 0


@pytest.fixture
def torn(tmp_path: Path, rows: Rows) -> Iterator[Path]:
    """A folder whose last call was killed while it wrote a row."""
    kept = rows["probe", "copy"]
    (tmp_path / "results.jsonl").write_text(json.dumps(kept) + '\n{"part": "probe", "key": "he', encoding="utf-8")
    yield tmp_path
    assert read(tmp_path)["probe", "copy"] == kept, "what is in the file is not measured again"


def test_a_part_that_was_cut_off_goes_on(torn: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    work = tmp_path_factory.mktemp("work")
    subprocess.run(command(torn, ["probe"]), env=in_folder(work), stdout=subprocess.DEVNULL, check=True)
    assert {key for part, key in read(torn) if part == "probe"} >= {"copy", "heads of 64", "ended"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:  # noqa: ANN401  (a module)
    """The script as a module, whose parts are the test's own in ``tmp_path/gpu_parts``, and which works there."""
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    (tmp_path / "gpu_parts").mkdir()
    (tmp_path / "gpu_parts" / "__init__.py").touch()
    module = importlib.import_module("gpu")
    monkeypatch.setattr(importlib.import_module("gpu_parts.results"), "WORK", tmp_path)
    return module


def test_the_plan_fits_into_the_time_that_a_gpu_is_lent(gpu: Any) -> None:  # noqa: ANN401  (a module)
    for call, seconds in ((1, 8 * 60), (2, 3 * 60)):
        assert sum(part.seconds for part in gpu.PARTS.values() if part.call == call) <= seconds
    parts = ["waiting", "probe", "checks", "engine", "rank"]
    assert gpu.processes(parts) == [parts[:1], parts[1:4], parts[4:]]


def test_a_part_keeps_what_python_and_triton_compile(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401  (a module)
    """Else each part compiles all that it imports and launches, of few minutes in all."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = gpu.part_environment(Namespace(packed=None, tiny=False))
    subprocess.run([sys.executable, "-c", "import sys; sys.exit(sys.dont_write_bytecode)"], env=environment, check=True)
    assert environment["TRITON_CACHE_DIR"] == str(gpu.CACHE)
    assert environment["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"


def run_parts(gpu: Any, folder: Path, code: str, *parts: str, seconds: float = 600.0) -> None:  # noqa: ANN401  (a module)
    """Run a process of these parts with code of the test's own."""
    (folder / "gpu_parts" / "__main__.py").write_text(
        f"import os, sys, json\nfrom pathlib import Path\nout = Path({str(folder)!r})\n{code}"
    )
    gpu.run(
        list(parts),
        Namespace(out=folder, tiny=True),
        ENVIRONMENT | {"PYTHONPATH": str(folder)},
        time.monotonic() + seconds,
    )


def test_dying_process_is_rerun_then_reported(
    gpu: Any,  # noqa: ANN401  (a module)
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dies_twice = """
file = out / "results.jsonl"
rows = file.read_text().count("rank") if file.exists() else 0
file.open("a").write(json.dumps({"part": "rank", "key": str(rows) if rows < 2 else "ended", "line": ""}) + "\\n")
raise SystemExit(f"died, as a GPU was lost, with {rows} rows" if rows < 2 else 0)
"""
    run_parts(gpu, tmp_path, dies_twice, "rank")
    assert {key for part, key in read(tmp_path) if part == "rank"} == {"0", "1", "ended"}
    run_parts(gpu, tmp_path, 'print("before")\nraise SystemExit("no more")', "kernels")
    shown = capsys.readouterr().out
    assert "kernels: FAILED with status 1:" in shown
    assert "no more" in shown
    assert "error" in read(tmp_path)["kernels", "died"]


def test_what_is_cut_off_has_not_failed(gpu: Any, tmp_path: Path) -> None:  # noqa: ANN401  (a module)
    """A case takes its time: the same command goes on."""
    run_parts(gpu, tmp_path, "import threading\nthreading.Event().wait()", "rank", seconds=0.5)
    assert not read(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    words = [word for word in command(tmp_path, ["probe"]) if word != "--tiny"]
    ended = subprocess.run(words, env=in_folder(tmp_path), capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "no GPU here" in ended.stdout
