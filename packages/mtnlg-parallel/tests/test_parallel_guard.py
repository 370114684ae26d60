"""The guard's decisions, and the optimizer that obeys them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_parallel.engine.deepspeed import Verdict
from mtnlg_parallel.recipe import GuardSettings
from mtnlg_parallel.record.metrics import Step
from mtnlg_parallel.training.guard import NO_TARGETS, Guard, history

FOUR = GuardSettings(deviations=3.0, window=4, most_skips=2)


def taken(number: int, loss: float, norm: float = 1.0) -> Step:
    return {"step": number, "samples": 2 * number, "batch_size": 2, "loss": loss, "grad_norm": norm}


def after(*losses: float, settings: GuardSettings = FOUR) -> Guard:
    return Guard(settings, [taken(n, loss, norm=loss) for n, loss in enumerate(losses, 1)])


@pytest.mark.parametrize(
    ("loss", "norm", "code", "reason"),
    [
        (float("nan"), 1.0, "loss_not_finite", "loss is not finite"),
        (float("nan"), float("nan"), "loss_not_finite", "loss is not finite"),
        (float("nan"), 0.0, *NO_TARGETS),
        (2.0, float("inf"), "grad_norm_not_finite", "grad_norm is not finite"),
        (5.0, 2.5, None, None),  # mean 2.5, deviation 1.118: up to 5.854 is allowed
        (5.8, 2.5, None, None),
        (5.9, 2.5, "loss_spike", "loss 5.9 is 3.0 deviations above the last 4 (2.5)"),
        (1.0, 9.0, "grad_norm_spike", "grad_norm 9 is 5.8 deviations above the last 4 (2.5)"),
        (-100.0, 0.0, None, None),  # only what leaps up
    ],
)
def test_a_step_is_judged_by_the_window_before_it(
    loss: float, norm: float, code: str | None, reason: str | None
) -> None:
    assert after(1.0, 2.0, 3.0, 4.0).judge(loss, norm) == ((code, reason) if code else None)


def test_steps_without_learned_targets_do_not_end_a_run() -> None:
    empty = taken(1, 0.0) | {"loss": None, "grad_norm": 0.0, "skipped": NO_TARGETS.code}
    guard = Guard(FOUR, [empty] * 5)
    assert not guard.exhausted
    for _ in range(2):
        guard.record(empty | {"skipped": "loss_spike"})
        guard.record(empty)
    assert guard.exhausted


def test_only_non_finite_steps_are_skipped_at_first() -> None:
    assert after(1.0, 2.0, 3.0).judge(1e9, 1e9) is None
    assert after(1.0, 2.0, 3.0, 4.0, settings=GuardSettings(deviations=0.0, window=4)).judge(1e9, 1e9) is None


@given(st.floats(0.1, 10), st.integers(2, 300))
def test_a_flat_loss_allows_steps_that_are_no_higher(level: float, window: int) -> None:
    settings = GuardSettings(deviations=1.0, window=window)
    guard = after(*[level] * window, settings=settings)
    assert guard.judge(level, level) is None
    assert guard.judge(level / 2, level / 2) is None


@pytest.mark.parametrize(("change", "skips"), [(1, True), (8, True), (9, False), (16, False), (17, True)])
def test_window_starts_anew_at_a_change(change: int, skips: bool) -> None:
    """Steps of two samples each: the fifth begins at sample 8; a change within a step counts from the next one on."""
    run = [taken(n, 2.0 + n / 10) for n in range(1, 9)]
    assert bool(Guard(FOUR, run, {change: FOUR}).judge(9.0, 1.0)) is skips


def test_change_sets_the_guard() -> None:
    changes = {8: FOUR.model_copy(update={"window": 2}), 16: FOUR.model_copy(update={"deviations": 0.0})}
    run = [taken(n, 2.0 + n / 10) for n in range(1, 13)]
    assert [bool(Guard(FOUR, run[:n], changes).judge(9.0, 1.0)) for n in range(13)] == [n in {6, 7} for n in range(13)]


@given(st.lists(st.tuples(st.floats(1, 2), st.booleans()), max_size=40), st.integers(1, 6), st.sets(st.integers(1, 90)))
def test_resumed_guard_judges_as_an_uninterrupted_one(
    steps: list[tuple[float, bool]], window: int, changes: set[int]
) -> None:
    settings = GuardSettings(deviations=1.0, window=window, most_skips=3)
    run = [
        taken(number, loss) | ({"skipped": "loss_spike"} if skip else {}) for number, (loss, skip) in enumerate(steps)
    ]
    at = dict.fromkeys(sorted(changes), settings)
    whole, resumed = (Guard(settings, replayed, at) for replayed in (run, history(run, settings)))
    assert resumed.exhausted == whole.exhausted
    for loss in (0.5, 1.2, 1.5, 1.9, 3.0):
        assert resumed.judge(loss, 1.0) == whole.judge(loss, 1.0)


def test_skipped_steps_stay_out_of_the_window() -> None:
    guard = after(1.0, 2.0, 3.0, 4.0)
    guard.record(taken(5, 100.0) | {"skipped": "loss_spike"})
    assert guard.judge(5.9, 1.0)
    assert not guard.exhausted
    spike, command = taken(5, 100.0) | {"skip_reason": "loss is far off"}, "rollback out --to step-4 --skip last"
    for newest, hint in (("step-4", f"mtnlg-parallel {command}"), ("step-5", "its loss is far off")):
        warning = guard.warning(spike, [(int(newest[-1]), Path("out/checkpoints") / newest)])
        assert warning.startswith("WARNING: step 5 was skipped: its loss is far off")
        assert warning.endswith(hint)
    guard.record(
        taken(6, 0.0)
        | {"loss": None, "grad_norm": None, "skipped": "loss_not_finite", "skip_reason": "loss is not finite"}
    )
    assert guard.exhausted
    checkpoints = [(step, Path(f"out/checkpoints/step-{step}")) for step in (2, 4, 5)]
    failure = guard.failure(checkpoints)
    assert (failure.first, failure.last, failure.checkpoint) == (5, 6, Path("out/checkpoints/step-4"))
    assert "mtnlg-parallel rollback out --to step-4 --skip last" in str(failure)
    assert guard.failure(checkpoints[2:]).checkpoint is None
    guard.record(taken(7, 2.0))
    assert not guard.exhausted


def test_verdict_measures_once_for_all_groups() -> None:
    measured = [(100.0, 1.0)]
    verdict = Verdict(after(1.0, 2.0, 3.0, 4.0).judge, measured.pop)
    assert [verdict.permits_update(), verdict.permits_update()] == [False, False]
    loss, norm, reason = verdict.outcome()
    assert (loss, norm) == (100.0, 1.0)
    assert reason
    assert reason.code == "loss_spike"
    for norm in (float("inf"), 2.0):  # dropped by DeepSpeed, which never asked
        dropped = Verdict(after(1.0).judge, [(2.0, norm)].pop)
        assert dropped.outcome() == (2.0, norm, ("grad_norm_not_finite", "grad_norm is not finite"))
