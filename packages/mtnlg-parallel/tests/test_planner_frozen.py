"""Plans of every mechanism of the cost model, frozen in plans.json: seconds of a step and bytes of a stage, by part.

``UPDATE_GOLDENS=1 pytest test_planner_frozen.py`` writes the figures anew, to be read in the diff.
"""

import json
import os
from pathlib import Path

import pytest
from plan_command import plan_json

FROZEN = Path(__file__).with_name("plans.json")
PLANS: dict[str, dict[str, str]] = json.loads(FROZEN.read_text("utf-8"))
"""Figures by what is planned, under the mechanism that it is there for."""


@pytest.mark.parametrize(("mechanism", "words"), [(each, words) for each, plans in PLANS.items() for words in plans])
def test_no_prediction_changes_unnoticed(mechanism: str, words: str) -> None:
    told = plan_json(words)
    figures = [each for by in ("step_seconds_by", "memory_bytes_by") for each in told[by].values()]
    if os.environ.get("UPDATE_GOLDENS"):
        PLANS[mechanism][words] = " ".join(f"{each:.6g}" for each in figures)
        FROZEN.write_text(json.dumps(PLANS, indent=1) + "\n", encoding="utf-8")
    assert figures == pytest.approx([float(each) for each in PLANS[mechanism][words].split()], rel=1e-5)
