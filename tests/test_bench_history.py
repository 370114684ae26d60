"""When the history of benchmarks says that something became slower."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

from history import HISTORY, SHORTS, Figure, bound, entry, figure, machine
from record import spread

if TYPE_CHECKING:
    from collections.abc import Sequence


def runs(*leasts: float, **others: object) -> list[dict[str, Any]]:
    """Runs here, whose rounds span 1."""
    return [
        {"name": "some", "least": least, "most": least + 1, "lost": False, **machine(), **others} for least in leasts
    ]


@pytest.mark.parametrize(
    ("history", "limit"),
    [
        (runs(2.0, 1.0), None),
        (runs(2.0, 2.0, 2.0), 1.5),
        (runs(9.0, 1.5, 9.0), 1.0),
        (runs(0.5, *[2.0] * 10), 1.5),
        (runs(2.0, 2.0, 2.0) + runs(0.1, lost=True), 1.5),
        (runs(2.0, 2.0, 2.0) + runs(0.1, name="other"), 1.5),
        (runs(2.0, 2.0, 2.0) + runs(0.1, python="3.11.99"), 1.5),
        (runs(2.0, 2.0, 2.0, processor="another"), None),
    ],
    ids=[
        "too few",
        "the least round less half a span",
        "a gain is no noise",
        "old runs are forgotten",
        "a loss is no bound",
        "others do not count",
        "another Python does not count",
        "another machine does not count",
    ],
)
def test_bound_is_the_least_round_less_half_the_span(history: Sequence[dict[str, Any]], limit: float | None) -> None:
    assert bound(history, "some") == limit


@pytest.mark.parametrize(("ratio", "lost"), [(0.99, True), (1.0, False), (9.0, False)])
def test_median_below_the_noise_bound_is_a_loss(ratio: float, lost: bool) -> None:
    assert entry("some", Figure(ratio, ratio, ratio), runs(2.0, 1.5, 9.0))["lost"] is lost


def test_ratio_at_a_path_of_a_result_is_read() -> None:
    assert figure({"ratios": [{"a": spread([1.0, 3.0, 2.0])}]}, ("ratios", 0, "a")) == Figure(2.0, 1.0, 3.0)


def test_repeated_exact_figure_is_not_a_loss() -> None:
    first = entry("some", Figure(7.3816, 7.3816, 7.3816), [])
    assert entry("some", Figure(7.3816, 7.3816, 7.3816), [first] * 3)["lost"] is False


def test_every_line_of_the_history_is_still_measured() -> None:
    names = {json.loads(line)["name"] for line in HISTORY.read_text(encoding="utf-8").splitlines()}
    assert names - {name for short in SHORTS.values() for name in short.figures} == set()


def test_every_short_form_is_of_a_benchmark() -> None:
    folder = Path(__file__).parents[1] / "benchmarks"
    assert not [script for script in SHORTS if not (folder / f"{script}.py").exists()]
