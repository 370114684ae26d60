"""Counts of a stage: they add up, and examples and records depend on neither the order, the shards nor the batches."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numba  # noqa: F401  (with it, lengths are counted from the buffers)
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtnlg_data import tally
from mtnlg_data.summary import SHOWN_PER_FATE, passthrough_summary, say_summary, stage_summary
from mtnlg_data.tally import EXCERPT_CHARACTERS, Tallies, Tally, recorded_tallies
from mtnlg_data.text.arrays import text_lengths

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def tally_of(numbers: Sequence[int]) -> Tally:
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


def test_examples_do_not_depend_on_order_or_shards() -> None:
    numbers = list(range(300))
    whole = stage_summary("clean", [tally_of(numbers).summary()], ["web"])
    random.Random(1).shuffle(numbers)
    parts = [tally_of(numbers[begin : begin + 70]).summary() for begin in range(0, 300, 70)]
    assert stage_summary("clean", reversed(parts), ["web"]) == whole
    shown = [(one["fate"], len(one["text"]), one.get("score")) for one in whole["shown"]]
    kept, short = (("kept", EXCERPT_CHARACTERS, 0.25), ("short", EXCERPT_CHARACTERS, None))
    assert shown == [kept] * SHOWN_PER_FATE + [short] * SHOWN_PER_FATE


def test_lengths_are_counted_in_octaves_and_pass_through() -> None:
    tally = Tally("web")
    for length in (0, 1, 511, 512, 1023, 1024):
        tally.keep(2 * length, length)
    tally.drop(700, "short")
    clean = stage_summary("clean", [tally.summary()], ["web"])
    assert clean["sources"]["web"]["lengths"] == {"0": 1, "1": 1, "256": 1, "512": 2, "1024": 1}
    after = stage_summary("quality", [passthrough_summary("web", clean["sources"]["web"])], ["web"])
    assert after["sources"]["web"]["lengths"] == clean["sources"]["web"]["lengths"]
    assert after["characters_in"] == clean["characters_out"]


def test_drops_beyond_a_row_group_are_all_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "DROPS_PER_GROUP", 4)
    with recorded_tallies(tmp_path / "ten.parquet") as ten:
        for number in range(10):
            ten["web"].drop(5, "short", str(number), number / 2, f"web/{number}")
    rows = pq.read_table(tmp_path / ten.files[0]).to_pylist()
    assert [row["id"] for row in rows] == [str(number) for number in range(10)]
    assert rows[7] == {"id": "7", "key": "web/7", "source": "web", "reason": "short", "score": 3.5}


def test_alarm_names_source_stage_reason_and_setting(capsys: pytest.CaptureFixture[str]) -> None:
    tallies = Tallies()
    for number in range(799):
        tallies["docs"].drop(300, "short") if number < 412 else tallies["docs"].keep(900)
    tallies["docs"].drop(300, "javascript")
    tallies["books"].keep(900)
    summary = stage_summary("clean", [tallies.summary()], ["books", "docs"], 0.5)
    message = "clean drops 51.6% of docs: 413 of 800 documents, 412 of them as short; more than clean.alarm_share = 0.5"
    assert summary["alarms"] == [{"source": "docs", "message": message}]
    say_summary(summary, "0.1 s")
    line, warning = capsys.readouterr().err.splitlines()
    assert "kept 388 of 801 documents (48.4%), 473,100 → 349,200 characters;" in line
    assert warning == f"WARNING: {message}"
    assert stage_summary("clean", [tallies.summary()], ["books", "docs"], 413 / 800)["alarms"] == []


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_lengths_of_either_type_of_strings(kind: pa.DataType) -> None:
    assert text_lengths(pa.array(["abc", "", "é", "日本"], kind).slice(1)).tolist() == [0, 1, 2]
