"""metrics.jsonl, trackers, progress lines, and throughput."""

import atexit
import errno
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any, Self

import pytest
from small_runs import recipe_of
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from torch.utils.tensorboard import SummaryWriter

from mtnlg_model.checkpoint.manifest import Progress
from mtnlg_model.console import UsageFailure
from mtnlg_model.families import PRESETS
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.record import trackers
from mtnlg_parallel.record.history import StepSeconds, read_events
from mtnlg_parallel.record.metrics import (
    TAIL_BYTES,
    Step,
    last_step,
    peak_flops,
    progress_line,
    read_steps,
    throughput,
    truncate_after,
)
from mtnlg_parallel.record.recorder import Recorder
from mtnlg_parallel.record.trackers import WeightsAndBiases, check_wandb, open_trackers

STEP: Step = {
    "step": 1,
    "samples": 8,
    "tokens": 64,
    "loss": 2.5,
    "lr": 1e-3,
    "grad_norm": None,
    "batch_size": 8,
    "seconds": 0.5,
    "tokens_per_second": 128.0,
    "model_tflops": 126.0,
    "hardware_tflops": 160.0,
    "skipped": "grad_norm_not_finite",
    "skip_reason": "grad_norm is not finite",
}
ONE_SAMPLE = recipe_of(samples=1, batch=1)


class MemoryTracker(list[tuple[int, dict[str, object]]]):
    """A tracker that remembers."""

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        self.append((step, dict(metrics)))

    def close(self) -> None:
        self.append((0, {}))


def test_skips_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """Their reason was in words alone."""
    words = ["none of its targets is learned", "loss is not finite"]
    lines = [json.dumps({"step": number, "skipped": reason}) + "\n" for number, reason in enumerate(words)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    found = [(step["skipped"], step["skip_reason"]) for step in read_steps(tmp_path)]
    assert found == list(zip(["no_targets", "other"], words, strict=True))


def test_step_is_written_once_and_found_at_the_end(tmp_path: Path) -> None:
    truncate_after(tmp_path, 0)
    tracker = MemoryTracker()
    recorder = Recorder(tmp_path, ONE_SAMPLE, [tracker])
    step: Step = {**STEP}
    recorder.record(step)
    assert step == {**STEP, "goodput": 1.0}
    line = {**step, "totals": StepSeconds([step]).totals}
    assert last_step(tmp_path) == line
    recorder.close(Progress(step=1, samples=0, tokens=64, loss=2.5, stream="", layout=Layout()))
    assert list(read_steps(tmp_path)) == [line]
    assert [event["event"] for event in read_events(tmp_path)] == ["stopped"]
    assert not (tmp_path / "summary.json").exists()
    assert tracker[0] == (
        1,
        {k: v for k, v in step.items() if k not in {"step", "grad_norm", "skipped", "skip_reason"}},
    )
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["grad_norm"] is None


def test_lines_that_are_no_steps_are_left_out_by_every_reader(tmp_path: Path) -> None:
    written = json.dumps(STEP).encode() + b"\n"
    damaged = b"\0\0\n{}\n[1]\n\xff\n{" + b"\n"
    (tmp_path / "metrics.jsonl").write_bytes(damaged + written + damaged)
    assert list(read_steps(tmp_path)) == [STEP]
    assert last_step(tmp_path) == STEP
    (tmp_path / "metrics.jsonl").write_bytes(damaged + written + damaged * TAIL_BYTES)
    assert last_step(tmp_path) == STEP
    assert truncate_after(tmp_path, 1) == ([STEP], [])
    assert (tmp_path / "metrics.jsonl").read_bytes() == written


def test_progress_line_shows_mfu_hfu_and_skips() -> None:
    line = progress_line({**STEP, "mfu": 0.302, "hfu": 0.403})
    assert "126 TFLOP/s  MFU 30.2%  HFU 40.3%" in line
    assert "skipped: grad_norm is not finite" in line
    assert "MFU" not in progress_line(STEP)


@pytest.mark.parametrize(
    ("recompute", "hfu"), [("none", 0.302), ("full", 0.403), ("selective", 0.302 * (1 + 2048 / (18 * 20480)))]
)
def test_the_papers_step_has_the_papers_mfu_and_hfu(recompute: str, hfu: float) -> None:
    train = {"samples": 1, "batch": 1920, "lr": 1.0, "decay": 1, "checkpoint_every": 0, "validation_samples": 1920}
    recipe = Recipe.model_validate(
        {
            "model": PRESETS["mt-nlg-530b"],
            "layout": {"tp": 8, "pp": 35, "dp": 8},
            "train": train | {"recompute": recompute},
        }
    )
    figures = throughput(recipe, 1920, 60.1, peak_flops("NVIDIA A100-SXM4-80GB"))
    assert figures["mfu"] == pytest.approx(0.302, rel=2e-3)  # paper.md section 1
    assert figures["hfu"] == pytest.approx(hfu, rel=4e-3)
    assert figures["tokens_per_second"] == pytest.approx(65_427, rel=1e-4)
    assert throughput(recipe, 1920, 60.1, peak_flops("Some CPU")).keys().isdisjoint({"mfu", "hfu"})


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA H100 PCIe", None),  # 756e12: not the H100 of a DGX
        ("NVIDIA H200 NVL", None),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("NVIDIA GeForce GTX 970", None),
    ],
)
def test_peak_flops_are_known_by_the_cuda_name(device: str, peak: float | None) -> None:
    assert peak_flops(device) == (peak and pytest.approx(peak, rel=1e-2))


class Wandb:
    """The module wandb. What ``fails`` raises so often, for ever where None; what ``hangs`` never returns."""

    def __init__(self, fails: dict[str, int | None] | None = None, hangs: str = "") -> None:
        self.fails, self.hangs = dict(fails or {}), hangs
        self.inits, self.steps = list[dict[str, Any]](), list[int]()

    def _called(self, name: str) -> None:
        if name == self.hangs:
            Event().wait()
        left = self.fails.get(name, 0)
        if left != 0:
            self.fails[name] = left and left - 1
            raise ConnectionError(f"{name}: the network is unreachable")

    def init(self, **arguments: object) -> Self:
        self.inits.append(arguments)
        self._called("init")
        return self

    def log(self, figures: Mapping[str, float], step: int) -> None:
        assert figures["train/loss"] == 2.5
        self._called("log")
        self.steps.append(step)

    def finish(self) -> None:
        self._called("finish")


@pytest.mark.parametrize(
    ("wandb", "steps", "missing", "warnings"),
    [
        (Wandb(), [1, 2, 3], "", 0),
        (Wandb({"init": 2}), [1, 2, 3], "", 1),
        (Wandb({"log": 1}), [1, 2, 3], "", 1),
        (Wandb({"init": None}), [], "steps 1 to 3 are missing", 2),
        (Wandb({"log": None}), [], "steps 1 to 3 are missing", 2),
        (Wandb({"finish": 1}), [1, 2, 3], "did not close", 2),
        (Wandb(hangs="init"), [], "steps 1 to 3 are missing", 1),
        (Wandb(hangs="log"), [], "steps 1 to 3 are missing", 1),
        (Wandb(hangs="finish"), [1, 2, 3], "did not close", 1),
    ],
)
def test_a_tracker_never_stops_a_run(  # noqa: PLR0917  (four are what is expected)
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wandb: Wandb,
    steps: list[int],
    missing: str,
    warnings: int,
) -> None:
    """Its first error is printed, it is tried again, and the end names what it lacks; its exit handler is not run."""
    exits: list[object] = []
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(trackers, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 0.2 if wandb.hangs else 600.0)
    monkeypatch.setattr(atexit, "register", lambda *words: exits.append(words))
    truncate_after(tmp_path, 0)
    board, ours = open_trackers(tmp_path, ONE_SAMPLE, 0, "mt-nlg")
    recorder = Recorder(tmp_path, ONE_SAMPLE, [board, ours])
    for number in (1, 2, 3):
        recorder.record({**STEP, "step": number})
    recorder.close(Progress(step=3, samples=1, tokens=64, loss=2.5, stream="", layout=Layout()))
    assert [step["step"] for step in read_steps(tmp_path)] == [1, 2, 3]
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 3
    assert (board.missing, wandb.steps, missing in ours.missing, bool(ours.missing)) == ("", steps, True, bool(missing))
    assert len([line for line in capsys.readouterr().err.splitlines() if "Weights & Biases: " in line]) == warnings
    assert exits == ([(os._exit, 0)] if wandb.hangs else [])


def test_tensorboard_gets_each_step_once_the_disk_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors, add_scalar = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))], SummaryWriter.add_scalar

    def full_once(*words: Any) -> None:  # noqa: ANN401  (as the method that it wraps)
        if errors:
            raise errors.pop()
        add_scalar(*words)

    monkeypatch.setattr(trackers, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(SummaryWriter, "add_scalar", full_once)
    (board,) = open_trackers(tmp_path, ONE_SAMPLE, 4, None)
    for number in (5, 6, 7):
        board.log(number, {"loss": 1.0 / number})
    board.close()
    assert board.missing == ""
    files = (tmp_path / "tensorboard").iterdir()
    events = [event for file in files for event in EventFileLoader(str(file)).Load() if event.summary.value]
    assert [event.step for event in events] == [5, 6, 7]


def test_weights_and_biases_continues_the_run_of_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for _ in range(2):
        tracker = WeightsAndBiases("mt-nlg", tmp_path, ONE_SAMPLE)
        tracker.log(3, {"loss": 2.5})
        tracker.close()
    first, second = wandb.inits
    assert first == second
    assert (first["project"], first["resume"], first["config"]["model"]["hidden"]) == ("mt-nlg", "allow", 64)
    assert wandb.steps == [3, 3]


def test_a_missing_wandb_is_refused_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtnlg_parallel.record.trackers.find_spec", lambda _: None)
    with pytest.raises(UsageFailure, match=r"pip install 'mtnlg-parallel\[wandb\]'"):
        check_wandb()


def test_recomputed_attention_counts_heads_as_wide_as_they_are() -> None:
    """Also where all heads together are wider than the hidden size, as Qwen3's."""
    train = {"samples": 1, "batch": 1, "lr": 1.0}
    whole, selective = (
        Recipe.model_validate({"model": {"preset": "qwen3-0.6b"}, "train": {**train, "recompute": recompute}})
        for recompute in ("none", "selective")
    )
    model = whole.model
    assert model.heads * model.head_size == 2 * model.hidden
    core = 4 * model.layers * model.sequence**2 * model.heads * model.head_size
    more = throughput(selective, 1, 1.0, None)["hardware_tflops"] - throughput(whole, 1, 1.0, None)["hardware_tflops"]
    assert more == pytest.approx(core / 1e12)


def test_isolated_documents_count_the_attention_within_them() -> None:
    recipe = Recipe.model_validate(
        {"model": PRESETS["tiny"], "train": {"samples": 1, "batch": 8, "lr": 1.0}, "data": {"documents": "isolated"}}
    )
    model, length = recipe.model, recipe.model.sequence / 4
    whole, short = (throughput(recipe, 8, 1.0, None, document)["model_tflops"] for document in (None, length))
    attention = 12 * 8 * model.layers * model.sequence * model.heads * model.head_size
    assert whole - short == pytest.approx(attention * (model.sequence - length) / 1e12, rel=0.01)
