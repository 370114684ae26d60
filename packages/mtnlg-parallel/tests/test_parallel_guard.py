"""The guard's judgement, and what a thread is taken to be doing."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_parallel.launch.watchdog import phase_of
from mtnlg_parallel.recipe import GuardSettings
from mtnlg_parallel.training.guard import AdamW, Guard
from mtnlg_parallel.training.metrics import Step

FOUR = GuardSettings(deviations=3.0, window=4, most_skips=2)


def taken(number: int, loss: float, norm: float = 1.0) -> Step:
    return {"step": number, "loss": loss, "grad_norm": norm}


def after(*losses: float, settings: GuardSettings = FOUR) -> Guard:
    return Guard(settings, [taken(n, loss, norm=loss) for n, loss in enumerate(losses, 1)])


@pytest.mark.parametrize(
    ("loss", "norm", "reason"),
    [
        (float("nan"), 1.0, "loss is not finite"),
        (2.0, float("inf"), "grad_norm is not finite"),
        (5.0, 2.5, None),  # mean 2.5, deviation 1.118: up to 5.854 is allowed
        (5.8, 2.5, None),
        (5.9, 2.5, "loss 5.9 is 3.0 deviations above the last 4 (2.5)"),
        (1.0, 9.0, "grad_norm 9 is 5.8 deviations above the last 4 (2.5)"),
        (-100.0, 0.0, None),  # only what leaps up
    ],
)
def test_a_step_is_judged_by_the_last_ones(loss: float, norm: float, reason: str | None) -> None:
    assert after(1.0, 2.0, 3.0, 4.0).reason(loss, norm) == reason


def test_nothing_but_what_is_not_finite_is_skipped_before_the_window_is_full_or_with_no_deviations() -> None:
    assert after(1.0, 2.0, 3.0).reason(1e9, 1e9) is None
    assert after(1.0, 2.0, 3.0, 4.0, settings=GuardSettings(deviations=0.0, window=4)).reason(1e9, 1e9) is None


@given(st.floats(0.1, 10), st.integers(2, 300))
def test_a_level_run_allows_what_is_no_higher(level: float, window: int) -> None:
    settings = GuardSettings(deviations=1.0, window=window)
    guard = after(*[level] * window, settings=settings)
    assert guard.reason(level, level) is None
    assert guard.reason(level / 2, level / 2) is None


def test_skipped_steps_leave_no_trace_in_the_window_and_are_counted_in_a_row() -> None:
    guard = after(1.0, 2.0, 3.0, 4.0)
    guard.saw({"step": 5, "loss": 100.0, "grad_norm": 1.0, "skipped": "loss 100 leapt"})
    assert guard.reason(5.9, 1.0)
    assert not guard.exhausted
    guard.saw({"step": 6, "loss": None, "grad_norm": None, "skipped": "loss is not finite"})
    assert guard.exhausted
    line = str(guard.failure({"step": 6}, Path("out/checkpoints/step-4")))
    assert line.startswith(
        "step 6: 2 steps in a row were skipped, the last because its loss is not finite; the last good"
    )
    assert "out/checkpoints/step-4" in line
    guard.saw(taken(7, 2.0))
    assert not guard.exhausted


@pytest.mark.parametrize(
    ("files", "phase"),
    [
        (["mtnlg_parallel/training.py", "deepspeed/runtime/pipe/engine.py", "mtnlg_model/decoder.py"], "forward"),
        (["deepspeed/runtime/pipe/engine.py", "torch/autograd/graph.py"], "backward"),
        (
            ["torch/autograd/graph.py", "mtnlg_parallel/regions.py", "torch/distributed/distributed_c10d.py"],
            "communication",
        ),
        (["deepspeed/runtime/pipe/engine.py", "mtnlg_parallel/samples.py", "queue.py"], "data"),
        (["mtnlg_parallel/saving.py", "mtnlg_model/writer.py"], "checkpoint"),
        (["mtnlg_parallel/saving.py", "torch/distributed/distributed_c10d.py"], "communication"),
    ],
)
def test_the_innermost_known_file_of_a_stack_names_the_phase(files: list[str], phase: str) -> None:
    frames: list[Any] = []

    def reach(rest: list[str]) -> None:
        if not rest:
            frames.append(sys._getframe(1))
            return
        call = compile("reach(rest)", f"/somewhere/{rest[0]}", "eval")
        eval(call, {"reach": reach, "rest": rest[1:]})  # noqa: S307  (a frame of a file of this name)

    reach(files)
    assert phase_of(frames[0]) == phase


def test_the_fused_update_is_that_of_adamw_in_fp64_and_waits_for_permission() -> None:
    """As CUDA takes it, here by the CPU's own; steps are 1e-2, of which fp32 rounds the weights by 2**-24."""
    numbers = torch.Generator().manual_seed(1)
    weights = torch.randn(1000, generator=numbers)
    ours, exact = weights.clone().requires_grad_(), weights.double().requires_grad_()
    fused = AdamW([ours], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    reference = torch.optim.AdamW([exact], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    permitted: list[bool] = []
    fused.permits = permitted.pop
    for step in range(30):
        gradient = torch.randn(1000, generator=numbers) * 10.0 ** (step % 5 - 3)
        ours.grad, exact.grad = gradient, gradient.double()
        permitted.append(step != 7)
        before = ours.detach().clone()
        fused.step()
        if step != 7:
            reference.step()
        else:
            assert torch.equal(ours, before)
    torch.testing.assert_close(ours.double(), exact, rtol=30 * 2**-24, atol=30 * 2**-24)
    for slot in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(fused.state[ours][slot].double(), reference.state[exact][slot], rtol=1e-5, atol=1e-7)
