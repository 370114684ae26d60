"""Summaries of a stage: counts that add up, lengths, and examples that depend on neither order nor shards."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from mtnlg_data.tally import (
    EXCERPT_CHARACTERS,
    SHOWN_PER_FATE,
    Tallies,
    Tally,
    passthrough_summary,
    say_summary,
    stage_summary,
)

if TYPE_CHECKING:
    import pytest


def tally_of(numbers: list[int]) -> Tally:
    tally = Tally("web")
    for number in numbers:
        name, text = f"web/x.jsonl/{number}", f"{number} " * 400
        if number % 3:
            tally.keep(number)
            tally.show("kept", name, text, 0.25)
        else:
            tally.drop(number, "short")
            tally.show("short", name, text)
    return tally


def test_the_examples_are_the_same_for_any_order_and_any_shards() -> None:
    numbers = list(range(300))
    whole = stage_summary("clean", [tally_of(numbers).summary()], ["web"])
    random.Random(1).shuffle(numbers)
    parts = [tally_of(numbers[begin : begin + 70]).summary() for begin in range(0, 300, 70)]
    assert stage_summary("clean", reversed(parts), ["web"]) == whole
    fates = [example["fate"] for example in whole["shown"]]
    assert fates == ["kept"] * SHOWN_PER_FATE + ["short"] * SHOWN_PER_FATE
    assert all(len(example["text"]) == EXCERPT_CHARACTERS for example in whole["shown"])
    scores = [example.get("score") for example in whole["shown"]]
    assert scores == [0.25] * SHOWN_PER_FATE + [None] * SHOWN_PER_FATE


def test_lengths_count_the_documents_that_are_left_in_octaves() -> None:
    tally = Tally("web")
    for length in (0, 1, 511, 512, 1023, 1024):
        tally.keep(2 * length, length)
    tally.drop(700, "short")
    clean = stage_summary("clean", [tally.summary()], ["web"])
    assert clean["sources"]["web"]["lengths"] == {"0": 1, "1": 1, "256": 1, "512": 2, "1024": 1}
    after = stage_summary("quality", [passthrough_summary("web", clean["sources"]["web"])], ["web"])
    assert after["sources"]["web"]["lengths"] == clean["sources"]["web"]["lengths"]
    assert after["characters_in"] == clean["characters_out"]


def test_a_first_run_that_loses_half_as_short_is_told_with_source_stage_reason_share_and_setting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tallies = Tallies()
    for number in range(799):
        tallies["docs"].drop(300, "short") if number < 412 else tallies["docs"].keep(900)
    tallies["docs"].drop(300, "javascript")
    tallies["books"].keep(900)
    summary = stage_summary("clean", [tallies.summary()], ["books", "docs"], 0.5)
    message = "clean drops 51.6% of docs: 413 of 800 documents, 412 of them as short; more than clean.alarm_share = 0.5"
    assert summary["alarms"] == [{"source": "docs", "message": message}]
    say_summary(summary, "0.1 s")
    assert capsys.readouterr().err.splitlines()[1] == f"WARNING: {message}"
    assert stage_summary("clean", [tallies.summary()], ["books", "docs"], 413 / 800)["alarms"] == []
