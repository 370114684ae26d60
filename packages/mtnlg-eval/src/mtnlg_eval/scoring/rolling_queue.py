"""One queue of requests for a whole evaluation: the next prompts are built while the network runs on the last.

A thread runs the engine. It packs what waits into batches, keeps as many in flight as the engine has room for, and
stores the answers of each batch as they come. All rows wait in one line: tasks, numbers of shots and seeds share
batches, and nothing drains before the end. Only if nothing else waits is a batch sent that is not full.

A score depends on its request alone (docs/decisions/0085), not on what shared its batch.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from itertools import islice
from math import fsum, isnan
from typing import TYPE_CHECKING, Protocol, Self

import torch

from mtnlg_model.console import Failure
from mtnlg_model.generation.sampling import NO_NUMBERS

from .packing import pack_rows, plan_rows, take_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType

    from torch import Tensor

    from .answer_store import AnswerStore
    from .generation import PromptBatch
    from .packing import Batch, Request, Row

    Score = tuple[float, bool]  # log P(answer | context), and whether greedy decoding gives the answer

WAITING_TOKENS = 1 << 23
"""Tokens that may wait, about 64 MB: then `RollingQueue.submit` waits as well."""


class Engine(Protocol):
    """Runs the network. Batches to score go in and come out in one order; several may be in flight."""

    capacity: int
    """Batches in flight that keep it busy."""
    row_multiple: int
    """A batch has a multiple of so many tokens, and of so many scored positions."""
    batch_share: int
    """Batches are so many times smaller than asked for."""

    def submit(self, batch: Batch) -> None:
        """Begin to score a batch."""

    def collect(self) -> tuple[Tensor, Tensor]:
        """The oldest batch in flight: log P(target) in fp32 and whether the target is the argmax, [N] on the CPU."""

    def finish(self) -> None:
        """End a series of batches, when all have been collected."""

    def generate(self, batches: Iterable[PromptBatch]) -> Iterator[list[list[int]]]:
        """Yield for each batch the new tokens of its prompts."""


class Submission:
    """Requests in the queue, and their scores as they come."""

    def __init__(self, keys: Sequence[bytes], on_scored: Callable[[int], None]) -> None:
        self._keys, self._counts, self._on_scored = keys, Counter(keys), on_scored
        self._scores: dict[bytes, Score] = {}
        self._ended = threading.Event()
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._ended.is_set()

    def result(self) -> list[Score]:
        """The scores in the order of the requests; waits for them, and raises what ended the engine."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return [self._scores[key] for key in self._keys]

    def add(self, scores: Mapping[bytes, Score]) -> None:
        """Take scores of this submission's requests, by key."""
        self._scores |= scores
        if scores:
            self._on_scored(sum(self._counts[key] for key in scores))
        if len(self._scores) == len(self._counts):
            self._ended.set()

    def fail(self, error: BaseException) -> None:
        """Take note that no more scores will come."""
        self._error = error
        self._ended.set()


class RollingQueue:
    """Scores requests in a thread of its own. Leaving its context waits for all, or after an error for those in flight.

    Equal requests are scored once, and those in the ``store`` not at all.
    """

    def __init__(self, engine: Engine, store: AnswerStore, max_length: int, batch_tokens: int) -> None:
        self._engine, self._store = engine, store
        self._max_length, self._batch_tokens = max_length, batch_tokens // engine.batch_share
        self._changed = threading.Condition()
        self._rows: deque[Row] = deque()
        self._waiting_tokens = 0
        self._wanted: dict[Request, tuple[bytes, list[Submission]]] = {}  # what waits or is in flight
        self._closed = False
        self._error: BaseException | None = None
        settings = (torch.get_num_threads(), torch.cuda.current_device() if torch.cuda.is_available() else None)
        self._thread = threading.Thread(target=self._run, args=settings, name="scoring", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the thread has ended."""
        with self._changed:
            if error is not None:
                self._rows.clear()
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def submit(self, requests: Sequence[Request], on_scored: Callable[[int], None]) -> Submission:
        """Queue requests; ``on_scored(n)`` is called when n more have a score, some at once, others in the thread."""
        keys = {request: self._store.key("score", *request) for request in requests}
        submission = Submission([keys[request] for request in requests], on_scored)
        stored = self._store.lookup(list(keys.values()))
        with self._changed:
            self._raise_error()
            new = []
            for request, key in keys.items():
                if key not in stored:
                    if request not in self._wanted:
                        new.append(request)
                    self._wanted.setdefault(request, (key, []))[1].append(submission)
        submission.add({key: (logp, bool(greedy)) for key, (logp, greedy) in stored.items()})
        rows = plan_rows(new, self._max_length)
        with self._changed:
            self._rows.extend(rows)
            self._waiting_tokens += sum(row.length for row in rows)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting_tokens <= WAITING_TOKENS or self._error)
            self._raise_error()
        return submission

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self, threads: int, device: int | None) -> None:
        """Run the engine until the queue is closed and empty."""
        set_up_thread(threads, device)
        in_flight: deque[list[Row]] = deque()
        try:
            while True:
                if batch := self._next_batch(wait=not in_flight):
                    self._engine.submit(pack_rows(batch, self._engine.row_multiple))
                    in_flight.append(batch)
                if in_flight and (not batch or len(in_flight) >= self._engine.capacity):
                    self._deliver(_scores_of_rows(in_flight.popleft(), *self._engine.collect()))
                elif not batch:
                    break
            self._engine.finish()
        except BaseException as error:  # noqa: BLE001  (raised again where the scores are waited for)
            with self._changed:
                self._error = error
                waiting = {id(each): each for _, submissions in self._wanted.values() for each in submissions}
                self._changed.notify_all()
            for submission in waiting.values():
                submission.fail(error)

    def _next_batch(self, *, wait: bool) -> list[Row]:
        """Rows for a batch; [] if there are none now or, after waiting, if there will be none."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._rows or self._closed)
            batch = take_batch(self._rows, self._batch_tokens)
            self._waiting_tokens -= sum(row.length for row in batch)
            self._changed.notify_all()
        return batch

    def _deliver(self, scores: Mapping[Request, Score]) -> None:
        """Store scores and hand them to the submissions that wait for them."""
        with self._changed:
            wanted = {request: self._wanted[request] for request in scores}
        self._store.save((key, scores[request]) for request, (key, _) in wanted.items())
        with self._changed:
            for request in scores:
                del self._wanted[request]
        by_submission: defaultdict[Submission, dict[bytes, Score]] = defaultdict(dict)
        for request, (key, submissions) in wanted.items():
            for submission in submissions:
                by_submission[submission][key] = scores[request]
        for submission, own in by_submission.items():
            submission.add(own)


def _scores_of_rows(rows: Sequence[Row], logp_N: Tensor, greedy_N: Tensor) -> dict[Request, Score]:
    """Sum token scores, ordered as `pack_rows` orders scored positions, into one score per request.

    Raises ``Failure`` if one is not a number.
    """
    logp, greedy = iter(logp_N.tolist()), iter(greedy_N.tolist())
    requests = [request for row in rows for request in row.requests]
    scores = {
        request: (fsum(islice(logp, len(request.answer))), all(list(islice(greedy, len(request.answer)))))
        for request in requests
    }
    if any(isnan(total) for total, _ in scores.values()):
        raise Failure(NO_NUMBERS)
    return scores


def set_up_thread(threads: int, device: int | None) -> None:
    """Give a new thread its process' number of cores and GPU; torch does not inherit them."""
    torch.set_num_threads(threads)
    if device is not None:
        torch.cuda.set_device(device)
