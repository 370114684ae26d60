"""Summaries of a stage: counts that add up, lengths, and examples that depend on neither order nor shards."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq

from mtnlg_data.schema import SCHEMA, Document, document_columns
from mtnlg_data.tally import (
    EXCERPT_CHARACTERS,
    SHOWN_PER_FATE,
    Fates,
    Tallies,
    Tally,
    passthrough_summary,
    recorded_tallies,
    say_summary,
    stage_summary,
)

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_batch_is_counted_recorded_and_shown_as_its_documents_one_by_one(tmp_path: Path) -> None:
    reasons, draw = ("short", "other"), random.Random(1)
    with recorded_tallies(tmp_path / "batch.parquet") as batches, recorded_tallies(tmp_path / "one.parquet") as ones:
        for first, last in ((0, 90), (90, 100)):
            documents = [
                Document(f"id {n % 7}", draw.choice(["web", "books"]), "é" * draw.randrange(900), key=f"web/{n}")
                for n in range(first, last)
            ]
            numbers = np.array([draw.randrange(-1, 2) for _ in documents])
            scores = np.array([draw.choice([np.nan, 0.25, 1 / 3]) for _ in documents])
            lengths = np.array([len(document.text) for document in documents])
            fates = Fates(numbers, reasons, scores, lengths, lengths[numbers < 0] // 2)
            batches.count(document_columns(documents, SCHEMA), fates)
            for source in ("web", "books"):  # as a batch's drops are ordered
                for document, number, score in zip(documents, numbers.tolist(), scores.tolist(), strict=True):
                    if document.source != source:
                        continue
                    size, name, key = len(document.text), document.id, document.key
                    shown = None if np.isnan(score) else score
                    if number < 0:
                        ones[source].keep(size, size // 2)
                    else:
                        ones[source].drop(size, reasons[number], name, shown, key)
                    ones[source].show(reasons[number] if number >= 0 else "kept", name, document.text, shown, key)
    summaries = [json.loads(json.dumps({**tallies.summary(), "files": []})) for tallies in (batches, ones)]
    assert summaries[0] == summaries[1]
    rows = [pq.read_table(tmp_path / "dropped" / f"{name}.parquet").to_pylist() for name in ("batch", "one")]
    assert sorted(map(str, rows[0])) == sorted(map(str, rows[1]))
    assert {row["score"] for row in rows[0]} == {None, 0.25, float(np.float32(1 / 3))}


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
