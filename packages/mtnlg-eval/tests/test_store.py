"""The store: nothing is scored twice, and one model's answers are never another's."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_eval.scoring.decoder_lm import LocalEngine
from mtnlg_eval.scoring.open_model import open_lm, open_model
from mtnlg_eval.scoring.packing import Request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mtnlg_model.checkpoint.reader import Checkpoint

REQUESTS = [
    Request((1, 2, 3), (4, 5)),
    Request((1, 2, 3), (6,)),
    Request((1, 2), (3, 4, 5)),
    Request((1, 2, 3), (4, 5)),
]


def test_stored_answers_are_reused(checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = (open_lm(open_model(checkpoint.directory), tmp_path / "scores.sqlite") for _ in range(2))
    scores = first.score(REQUESTS)
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "_score_batch", None)  # nothing is scored
        assert first.score(REQUESTS) == scores
        assert again.score(REQUESTS[::-1]) == scores[::-1]
    again.score([*REQUESTS, Request((9,), (8, 7))])


def test_other_checkpoint_misses_the_store(
    checkpoint: Checkpoint, write_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    store = tmp_path / "scores.sqlite"
    first = open_lm(open_model(checkpoint.directory), store).score(REQUESTS)
    other = open_lm(open_model(write_checkpoint(tmp_path / "other", seed=2)), store)
    assert other.score(REQUESTS) != first
    assert other.store.taken_over == 0


def test_released_store_is_closed() -> None:
    store = AnswerStore("model")
    connection = store._connection
    del store
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def test_answers_round_trip_exactly(tmp_path: Path) -> None:
    answers = {bytes([n]): answer for n, answer in enumerate([[-0.1 - 0.2, True], "text \u2028\n", 1e-300])}
    AnswerStore("model", tmp_path / "store").save(answers.items())
    assert AnswerStore("model", tmp_path / "store").lookup([*answers, b"unknown"]) == answers
    many = [n.to_bytes(4, "big") for n in range(2000)]
    store = AnswerStore("model", tmp_path / "store")
    store.save((key, 1) for key in many)
    assert len(store.lookup(many)) == 2000


def test_a_damaged_answer_names_the_store(tmp_path: Path) -> None:
    store = AnswerStore("one", tmp_path / "scores.sqlite")
    store.save([(b"a", 1)])
    with sqlite3.connect(tmp_path / "scores.sqlite") as file:
        file.execute("UPDATE answers SET answer = ?", ("[" * 10**5,))
    with pytest.raises(OSError, match=r"remove the file.*scores\.sqlite"):
        store.lookup([b"a"])


def test_other_file_as_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    path.write_bytes(b"not a database, however long it may be, is ever a store of answers" * 20)
    with pytest.raises(OSError, match=r"cannot store answers \(file is not a database\).*scores\.sqlite"):
        AnswerStore("model", path)
