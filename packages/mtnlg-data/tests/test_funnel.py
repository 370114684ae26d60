"""The account of a stage: counts that add up, lengths, and documents to look at that no order or shard decides."""

from __future__ import annotations

import random

from mtnlg_data.tally import EXCERPT, SHOWN, Tally, passed, stage


def tally(numbers: list[int]) -> Tally:
    told = Tally("web")
    for number in numbers:
        name, text = f"web/x.jsonl/{number}", f"{number} " * 400
        if number % 3:
            told.keep(number)
            told.show("kept", name, text, 0.25)
        else:
            told.drop(number, "short")
            told.show("short", name, text)
    return told


def test_what_is_shown_is_the_same_for_any_order_and_any_shards() -> None:
    numbers = list(range(300))
    whole = stage("clean", [tally(numbers).summary()], ["web"])
    random.Random(1).shuffle(numbers)
    parts = [tally(numbers[begin : begin + 70]).summary() for begin in range(0, 300, 70)]
    assert stage("clean", reversed(parts), ["web"]) == whole
    fates = [document["fate"] for document in whole["shown"]]
    assert fates == ["kept"] * SHOWN + ["short"] * SHOWN
    assert all(len(document["text"]) == EXCERPT for document in whole["shown"])
    assert [document.get("score") for document in whole["shown"]] == [0.25] * SHOWN + [None] * SHOWN


def test_lengths_are_those_of_the_documents_that_are_left_in_octaves() -> None:
    told = Tally("web")
    for length in (0, 1, 511, 512, 1023, 1024):
        told.keep(2 * length, length)
    told.drop(700, "short")
    account = stage("clean", [told.summary()], ["web"])
    assert account["sources"]["web"]["lengths"] == {"0": 1, "1": 1, "256": 1, "512": 2, "1024": 1}
    after = stage("quality", [passed("web", account["sources"]["web"])], ["web"])
    assert after["sources"]["web"]["lengths"] == account["sources"]["web"]["lengths"]
    assert after["characters_in"] == account["characters_out"]
