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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from training import stub_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
SIDES = (("waiting", "checks", "kernels", "evaluation"), ("rates", "rank", "training", "sanitizer"))
REAL = ("rates", "waiting", "checks", "rank", "kernels", "training")
"""Parts that run on a GPU that is not there."""

Rows = dict[tuple[str, str], dict[str, Any]]


def command(out: Path, parts: Sequence[str], *words: str) -> list[str]:
    return [sys.executable, str(BENCHMARK), "--out", str(out), "--only", ",".join(parts), *words]


def read(out: Path) -> Rows:
    rows = map(json.loads, (out / "results.jsonl").read_text(encoding="utf-8").splitlines())
    return {(row["part"], row["key"]): row for row in rows}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Where the parts have run, in two calls beside each other."""
    pytest.importorskip("triton")
    outs = [tmp_path_factory.mktemp("gpu") for _ in SIDES]
    running = [
        subprocess.Popen(command(out, parts, "--tiny"), env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        for out, parts in zip(outs, SIDES, strict=True)
    ]
    statuses = [process.wait() for process in running]  # of all, before one ends the test
    for status, out in zip(statuses, outs, strict=True):
        assert status == 0, (out / "log.txt").read_text(encoding="utf-8")
    return outs


@pytest.fixture(scope="module")
def rows(folders: list[Path]) -> Rows:
    return {key: row for out in folders for key, row in read(out).items()}


def test_every_part_ends(rows: Rows) -> None:
    assert {part for part, key in rows if key == "ended"} == {part for parts in SIDES for part in parts}


def test_every_kernel_is_checked_and_then_timed_against_other_implementations(rows: Rows) -> None:
    checks = [row for (part, _), row in rows.items() if part == "checks" and "passed" in row]
    assert all(row["passed"] for row in checks)
    checked = " ".join(row["key"] for row in checks)
    for what in ("dropout's mask", "bias_dropout_add_norm 0.1, ragged", "head's gradient", "attention's softmax"):
        assert what in checked
    times = {key: row for (part, key), row in rows.items() if part == "kernels" and "ratios" in row}
    operations = ("layer_norm", "bias_dropout_add_norm 0.1", "bias_gelu", "bias_dropout_add 0", "swiglu", "rotary 1/4")
    for operation in (*operations, "head and loss"):
        assert "torch.compile / kernel" in times[f"{operation}, tiny, forward + backward"]["ratios"]
    assert "fused, clip within / fused" in times["norm, clip, AdamW, tiny"]["ratios"]
    assert not any(row["left_out"] for row in times.values())


@pytest.mark.parametrize("case", ["full recomputation", "selective, sequence parallel"])
def test_a_rank_runs_exactly_the_products_that_the_formula_counts(rows: Rows, case: str) -> None:
    """96 or 72 B s l h² (1 + s / 6h) / 8 and recomputed attention, of products that PyTorch counted."""
    row = rows["rank", case]
    assert set(row["sides"]) == {"kernels", "kernels, 8 bits", "kernels, added after", "eager", "torch.compile"}
    run = {side: figures["products run"] for side, figures in row["sides"].items()}
    # With our kernels nothing behind a layer's last product needs it, so recomputation leaves it out.
    share = 0.92 if case == "full recomputation" else 1.0
    assert run["kernels"] == run["kernels, 8 bits"] == run["kernels, added after"] == share * row["formula"]["hardware"]
    # Eager attention recomputes up to what backward needs: not its last product.
    assert 0.99 < run["eager"] / row["formula"]["hardware"] <= 1.0
    assert "ours: attention" in row["sides"]["kernels"]["where"]


def test_training_begins_as_on_a_cpu(rows: Rows) -> None:
    assert rows["training", "first steps"]["relative_difference"] <= 1e-4
    assert len(rows["training", "350m"]["losses"]) == 14
    assert rows["training", "350m"]["predicted_step_seconds"] > 0


def test_a_second_call_measures_nothing_again(folders: list[Path]) -> None:
    before = read(folders[0])
    ended = subprocess.run(command(folders[0], SIDES[0], "--tiny"), env=ENVIRONMENT, capture_output=True, check=True)
    assert ended.stdout.count(b": has ended before") == len(SIDES[0])
    assert set(read(folders[0])) - set(before) == {("call", "1")}


@pytest.fixture
def torn(tmp_path: Path, rows: Rows) -> Iterator[Path]:
    """A folder whose last call was killed while it wrote a row."""
    kept = rows["rates", "launch"]
    (tmp_path / "results.jsonl").write_text(json.dumps(kept) + '\n{"part": "rates", "key": "co', encoding="utf-8")
    yield tmp_path
    assert read(tmp_path)["rates", "launch"] == kept, "what is in the file is not measured again"


def test_a_part_that_was_cut_off_goes_on(torn: Path) -> None:
    subprocess.run(command(torn, ["rates"], "--tiny"), env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
    assert {key for part, key in read(torn) if part == "rates"} >= {"launch", "copy", "load", "ended"}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:  # noqa: ANN401  (a module)
    """The script as a module, with parts of the test's own in ``tmp_path/gpu_parts``."""
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    (tmp_path / "gpu_parts").mkdir()
    (tmp_path / "gpu_parts" / "__init__.py").touch()
    return importlib.import_module("gpu")


def test_a_part_keeps_what_python_compiles(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401  (a module)
    """Else each part compiles all of the packed wheels that it imports, of few minutes in all."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment = gpu.part_environment(Namespace(packed=None, tiny=False))
    subprocess.run([sys.executable, "-c", "import sys; sys.exit(sys.dont_write_bytecode)"], env=environment, check=True)


def run_part(gpu: Any, folder: Path, name: str, code: str, limit: float) -> bool:  # noqa: ANN401  (a module)
    (folder / "gpu_parts" / f"{name}.py").write_text(f"from pathlib import Path\nout = Path({str(folder)!r})\n{code}")
    return bool(gpu.run_part(name, Namespace(out=folder, tiny=False), ENVIRONMENT | {"PYTHONPATH": str(folder)}, limit))


def test_a_part_that_dies_behind_new_figures_runs_again_and_then_its_end_is_shown(
    gpu: Any,  # noqa: ANN401  (a module)
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = '{"part": "frail", "key": "KEY", "line": "", "error": "invalid access"}\n'
    dies_twice = f"""
rows = (out / "results.jsonl").read_text().count("frail") if (out / "results.jsonl").exists() else 0
if rows < 2:
    (out / "results.jsonl").open("a").write({row!r}.replace("KEY", str(rows)))
raise SystemExit(f"died, as a GPU was lost, with {{rows}} rows" if rows < 2 or out.name == "stays" else 0)
"""
    assert not run_part(gpu, tmp_path, "frail", dies_twice, 600.0), "a row has an error"
    assert {key for part, key in read(tmp_path) if part == "frail"} == {"0", "1", "ended"}
    assert not run_part(gpu, tmp_path, "broken", 'print("before")\nraise SystemExit("no more")', 600.0)
    shown = capsys.readouterr().out
    assert "broken: FAILED with status 1:" in shown
    assert "before" in shown
    assert "no more" in shown
    assert ("broken", "ended") not in read(tmp_path)


def test_what_never_ends_is_stopped_and_counts_as_failed_and_the_rest_goes_without_it(
    gpu: Any,  # noqa: ANN401  (a module)
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hangs = "import threading\nthreading.Event().wait()"
    running = {"part": "waiting", "key": "64 x 1000", "began": time.time() - 2 * gpu.HUNG["waiting"]}
    (tmp_path / "running.json").write_text(json.dumps(running))
    assert run_part(gpu, tmp_path, "waiting", hangs, 0.5)
    assert "waiting: stopped after" in capsys.readouterr().out
    rows = read(tmp_path)
    assert set(rows) == {("waiting", "64 x 1000"), ("waiting", "stopped")}
    assert all("error" in row for row in rows.values())
    ended = subprocess.run(
        command(tmp_path, ["waiting", "rates"], "--tiny"), env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert "waiting: has ended before" in ended.stdout
    script = "from gpu_parts import clock, operations; print([o.name for o in operations.OPERATIONS])"
    environment = ENVIRONMENT | {"MTNLG_GPU_WITHOUT": "norm", "TRITON_INTERPRET": "1"}
    left = subprocess.run(
        [sys.executable, "-c", script],
        cwd=BENCHMARK.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "bias_gelu" in left
    assert "norm" not in left


def test_a_norm_that_was_still_being_compiled_is_not_called_hung(gpu: Any, tmp_path: Path) -> None:  # noqa: ANN401  (a module)
    running = {"part": "waiting", "key": "64 x 1000", "began": time.time()}
    (tmp_path / "running.json").write_text(json.dumps(running))
    assert run_part(gpu, tmp_path, "waiting", "import threading\nthreading.Event().wait()", 0.5)
    assert not (tmp_path / "results.jsonl").exists() or not read(tmp_path)


def test_a_case_that_compiles_for_a_minute_goes_on_in_the_next_call(gpu: Any, tmp_path: Path) -> None:  # noqa: ANN401  (a module)
    running = {"part": "rank", "key": "full recomputation", "began": time.time() - 60}
    (tmp_path / "running.json").write_text(json.dumps(running))
    assert run_part(gpu, tmp_path, "rank", "import threading\nthreading.Event().wait()", 0.5)
    assert not (tmp_path / "results.jsonl").exists() or not read(tmp_path)


def test_an_evaluation_that_is_cut_off_keeps_what_it_has_measured(
    gpu: Any,  # noqa: ANN401  (as above)
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del gpu  # makes its parts importable
    evaluation = importlib.import_module("gpu_parts.evaluation")
    asked: list[list[str]] = []

    def measured(words: list[str]) -> dict[str, Any]:
        asked.append(words[:4])
        if len(asked) == 2:
            raise KeyboardInterrupt  # as where the part is stopped
        figures = {"ratio": 2.0, "largest_difference_nats": 1e-3, "differ_fixed": 0, "requests": 9}
        return dict.fromkeys(evaluation.CASES, figures)

    monkeypatch.setattr(
        evaluation,
        "begin",
        lambda _doc, part: (False, importlib.import_module("gpu_parts.results").Results(tmp_path, part)),
    )
    monkeypatch.setattr(evaluation, "measured", measured)
    monkeypatch.setattr(evaluation, "find_spec", lambda name: name)
    monkeypatch.setenv("MTNLG_GPU_ROWS", "rows")
    monkeypatch.setenv("MTNLG_GPU_GPT2", "gpt2")
    with pytest.raises(KeyboardInterrupt):
        evaluation.main()
    evaluation.main()
    assert [words[1:] for words in asked[:2]] == [["whole", "--shots", "0"], ["whole", "--shots", "few"]]
    assert asked[1] == asked[2], "the first is not measured again"
    assert [row["line"][:6] for row in read(tmp_path).values()] == ["2.00 x"] * 3


def test_a_measured_run_leaves_no_checkpoint_on_the_disk(
    gpu: Any,  # noqa: ANN401  (as above)
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del gpu  # makes its parts importable
    training = importlib.import_module("gpu_parts.training")

    def write(_recipe: object, _data: Path, folder: Path, **_options: object) -> None:
        (folder / "checkpoints").mkdir(parents=True)

    monkeypatch.setattr(training.mtnlg_parallel, "train", write)
    training.train("dense-350m", [], tmp_path, tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


def test_a_call_that_takes_long_to_launch_is_timed_behind_longer_reads(
    gpu: Any,  # noqa: ANN401  (as above)
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del gpu
    clock = importlib.import_module("gpu_parts.clock")
    stream: list[str] = []

    class Event:
        """The GPU has passed one that fewer than four reads precede, when the host asks."""

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            """As `torch.cuda.Event.record`."""
            self.passed = stream.count("read") < 4
            stream.append("event")

        def query(self) -> bool:
            """As `torch.cuda.Event.query`."""
            stream.append("asked")
            return self.passed

        def elapsed_time(self, _end: object) -> float:
            """As `torch.cuda.Event.elapsed_time`."""
            return 7000.0

    timed = clock.Clock(tiny=True, rounds=1, repeats=1)
    timed._buffer = SimpleNamespace(max=lambda: stream.append("read"))
    monkeypatch.setattr(clock, "GPU", True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def call() -> None:
        stream.append("call")

    assert timed.compare({"call": call})["call"].median == 7.0
    once = ["event", "call", "event", "asked"]
    assert stream == ["read", *once, *2 * ["read"], *once, *4 * ["read"], *once]


def test_a_part_that_is_over_its_limit_is_stopped_and_not_called_ended(tmp_path: Path) -> None:
    words = command(tmp_path, ["training"], "--tiny", "--minutes", "0.01")
    ended = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "training: stopped after" in ended.stdout
    assert ("training", "ended") not in read(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_nothing_is_measured(tmp_path: Path) -> None:
    ended = subprocess.run(command(tmp_path, ["rates"]), env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "rates: FAILED with status 1: " in ended.stdout
    assert "no GPU here" in ended.stdout


@pytest.fixture(scope="module")
def rows_of_real_sizes(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Of the parts as a GPU would run them, on one that is not there."""
    pytest.importorskip("triton")
    if not stub_gpu.CAN_RUN:
        pytest.skip("compiles a library for Linux with g++")
    folder = tmp_path_factory.mktemp("stub")
    run = [sys.executable, "-m", "training.stub_parts", str(stub_gpu.build(folder)), str(folder), *REAL]
    ended = subprocess.run(run, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return read(folder)


def test_no_part_fails_at_the_sizes_and_in_the_branches_of_a_gpu(rows_of_real_sizes: Rows) -> None:
    assert {part for part, _ in rows_of_real_sizes} == set(REAL)
    assert not [row for row in rows_of_real_sizes.values() if "error" in row or row.get("left_out")]
    keys = " ".join(f"{part} {key}" for part, key in rows_of_real_sizes)
    for what in ("x 16384 x 2048, y 16384 x 6144", "16384 x 20480, beside products", "widest rows", "2,684,416,000"):
        assert what in keys
    assert "training 1.3b" in keys


@pytest.mark.parametrize("case", ["full recomputation", "selective, sequence parallel"])
def test_a_rank_on_a_gpu_runs_the_products_that_the_formula_counts(case: str, rows_of_real_sizes: Rows) -> None:
    """Weight gradients too, which a GPU adds in fp32 inside the product; attention counts as a full square."""
    row = rows_of_real_sizes["rank", case]
    assert set(rows_of_real_sizes["rank", f"{case}, times"]["seconds"]) == set(row["sides"])
    run = {side: figures["products run"] for side, figures in row["sides"].items() if figures["products run"]}
    assert all(0.9 < count / row["formula"]["hardware"] < 1.1 for count in run.values()), run


@pytest.mark.filterwarnings("ignore:CUDA is not available:UserWarning")
def test_where_the_profiler_sees_no_gpu_a_step_is_timed_nonetheless(
    gpu: Any,  # noqa: ANN401  (as above)
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del gpu
    profiled = importlib.import_module("gpu_parts.step_profile")
    monkeypatch.setattr(profiled, "GPU", True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert profiled.time_by_kind(lambda: None) == {}
