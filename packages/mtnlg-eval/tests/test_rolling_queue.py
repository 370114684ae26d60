"""RollingQueue: one line for all submissions, batches in flight, answers stored as they come."""

from __future__ import annotations

import json
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mtnlg_eval.results.folder import ResultFolder
from mtnlg_eval.scoring import rolling_queue
from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_eval.scoring.decoder_lm import DecoderLM
from mtnlg_eval.scoring.harness import Evaluation
from mtnlg_eval.scoring.packing import Request
from mtnlg_eval.scoring.rolling_queue import RollingQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mtnlg_eval.scoring.packing import Batch
    from mtnlg_model.checkpoint.reader import Checkpoint

ROWS = Path(__file__).parent / "rows"


class Recorded:
    """An engine that scores nothing: -1 nat a token. It takes a batch only once ``open``, and records what it has."""

    row_multiple = batch_share = 1

    def __init__(self, capacity: int = 1) -> None:
        self.capacity, self.open = capacity, threading.Event()
        self.open.set()
        self.sizes: list[int] = []
        self.in_flight: deque[int] = deque()
        self.most = self.finished = 0
        self.fails: BaseException | None = None

    def submit(self, batch: Batch) -> None:
        self.open.wait()
        self.sizes.append(len(batch.tokens))
        self.in_flight.append(len(batch.scored))
        self.most = max(self.most, len(self.in_flight))

    def collect(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.fails is not None:
            raise self.fails
        n = self.in_flight.popleft()
        return -torch.ones(n), torch.ones(n, dtype=torch.bool)

    def finish(self) -> None:
        assert not self.in_flight
        self.finished += 1

    def generate(self, batches: object) -> Iterator[list[list[int]]]:
        raise NotImplementedError


def ignore(n: int) -> None:
    del n


def requests(first: int, count: int, length: int = 10) -> list[Request]:
    """Requests with contexts of their own, one token to score."""
    return [Request((n, *range(length - 1)), (1,)) for n in range(first, first + count)]


def test_submissions_share_batches_and_one_alone_is_not_held_back() -> None:
    engine = Recorded()
    engine.open.clear()
    with RollingQueue(engine, AnswerStore("model"), 100, 40) as queue:
        parts = [queue.submit(requests(10 * n, 3), ignore) for n in range(4)]  # 12 rows of 10 tokens
        assert not any(part.done for part in parts)
        engine.open.set()
        assert [part.result() for part in parts] == [[(-1.0, True)] * 3] * 4
        # What the thread took before the others came is a batch by itself; the rest is full but for the last.
        assert sum(engine.sizes) == 120
        assert engine.sizes[1:-1] == [40] * len(engine.sizes[1:-1])
        queue.submit(requests(1000, 1), ignore).result()  # nothing follows, and nothing is waited for
        assert engine.sizes[-1] == 10
    assert engine.finished == 1


def test_as_many_batches_are_in_flight_as_the_engine_has_room_for() -> None:
    engine = Recorded(capacity=3)
    engine.open.clear()
    with RollingQueue(engine, AnswerStore("model"), 100, 10) as queue:
        part = queue.submit(requests(0, 9), ignore)
        engine.open.set()
        part.result()
    assert engine.most == 3


def test_equal_requests_in_flight_and_stored_ones_are_not_scored_again() -> None:
    engine, store, counts = Recorded(), AnswerStore("model"), [0, 0]
    engine.open.clear()

    def counted(which: int, n: int) -> None:
        counts[which] += n

    with RollingQueue(engine, store, 100, 10) as queue:
        first = queue.submit(requests(0, 4) * 2, lambda n: counted(0, n))
        second = queue.submit(requests(2, 4), lambda n: counted(1, n))
        engine.open.set()
        assert len(first.result()) == 8
        assert len(second.result()) == 4
        assert len(engine.sizes) == 6
        assert queue.submit(requests(0, 6), ignore).done
        assert queue.submit([], ignore).done
    assert counts == [8, 4]
    assert len(engine.sizes) == 6


def test_an_error_of_the_engine_reaches_all_who_wait_and_all_who_come() -> None:
    engine, error = Recorded(), RuntimeError("a rank died")
    engine.fails = error
    with pytest.raises(RuntimeError) as raised, RollingQueue(engine, AnswerStore("model"), 100, 10) as queue:  # noqa: PT012
        with pytest.raises(RuntimeError, match="a rank died"):
            queue.submit(requests(0, 3), ignore).result()
        queue.submit(requests(5, 1), ignore)
    assert raised.value is error


def test_an_error_of_the_caller_drops_what_waits_and_keeps_what_is_in_flight() -> None:
    engine, store = Recorded(), AnswerStore("model")
    engine.open.clear()
    with pytest.raises(KeyboardInterrupt), RollingQueue(engine, store, 100, 10) as queue:  # noqa: PT012
        join = queue._thread.join

        def open_and_join(timeout: float | None = None) -> None:
            engine.open.set()
            join(timeout)

        queue._thread.join = open_and_join  # type: ignore[method-assign]
        queue.submit(requests(0, 50), ignore)
        raise KeyboardInterrupt
    assert len(engine.sizes) <= 1
    stored = store.lookup([store.key("score", *request) for request in requests(0, 50)])
    assert len(stored) == len(engine.sizes)


def test_who_builds_waits_while_too_much_waits_for_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling_queue, "WAITING_TOKENS", 30)
    engine = Recorded()
    engine.open.clear()
    submitted: list[int] = []

    def build(queue: RollingQueue) -> None:
        for n in range(6):
            queue.submit(requests(10 * n, 2), ignore)
            submitted.append(n)
            if n == 1:
                engine.open.set()  # else the third would wait for ever

    with RollingQueue(engine, AnswerStore("model"), 100, 10) as queue:
        build(queue)
    assert submitted == list(range(6))
    assert sum(engine.sizes) == 120


def test_the_next_task_is_built_while_the_last_is_scored(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation = Evaluation(["hellaswag", "wic", "boolq"], ["0", "1"], ROWS)
    built: list[str] = []
    build = Evaluation._build

    def recorded(self: Evaluation, *arguments: Any) -> Any:  # noqa: ANN401
        cell = build(self, *arguments)
        built.append(f"{cell.name} {cell.shots}")
        if len(built) == 3:
            engine.open.set()
        return cell

    monkeypatch.setattr(Evaluation, "_build", recorded)
    lm = DecoderLM.open(checkpoint)
    engine = lm.engine = Recorded()
    engine.open.clear()  # until three cells are built
    summary = evaluation.run(lm, checkpoint, tmp_path, None)
    assert built == [f"{task} {shots}" for task in ("hellaswag", "wic", "boolq") for shots in ("0", "1")]
    assert {task: list(scores) for task, scores in summary["tasks"].items()} == {
        task: ["0", "1"] for task in ("hellaswag", "wic", "boolq")
    }
    assert engine.finished == 1


def test_results_built_ahead_are_those_built_one_by_one(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Several numbers of shots and seeds of one task wait at once: each result keeps its own prompts and fits."""

    def scored(out: Path, cells: list[tuple[str, int]], style: str) -> dict[str, Any]:
        for shots, seed in cells:
            shots_of, seeds = (shots.split(","), (1, 2)) if "," in shots else ([shots], (seed,))
            evaluation = Evaluation(["lambada", "race_h"], shots_of, ROWS, style=style, seeds=seeds)
            evaluation.run(DecoderLM.open(checkpoint), checkpoint, out, None)
        results = {result.name: json.loads(result.model_dump_json()) for result in ResultFolder(out).results()}
        for result in results.values():
            del result["provenance"]
        return results

    for style in ("paper", "lm_eval"):
        ahead = scored(tmp_path / style / "ahead", [("0,1,2", 0)], style)
        alone = [("0", 1), ("1", 1), ("1", 2), ("2", 1), ("2", 2)]
        assert ahead == scored(tmp_path / style / "alone", alone, style)
        assert len(ahead) == 10
