"""Idle time of a pipeline by its schedule: ours beside torch.distributed.pipelining's, on layers that sleep.

    python benchmarks/schedules.py [--stages 4 8] [--rounds 3] [--chart FILE.svg] [--out FILE]

Processes on gloo, a stage or several each. A rank's forward, input gradients and weight gradients of a micro-batch
sleep 100 ms each, divided by its number of parts, so that two cores suffice for eight ranks: with less, the 0.6 to
0.9 ms a pass that the interpreter takes between its sleeps would count as the schedule's. A step has four times as many
micro-batches as ranks. With a delay each message is sent 5 ms later, by a thread. torch's are measured at the first
number of stages.

On a busy machine run it by `chrt -f 1`: with real-time priority a sleep ends when it should, and the processors are
taken from others for what lies between two sleeps alone.

Figures: a step's time over the work of its busiest rank, less one, in percent; median, least and most of the rounds.
Work is as measured, since a sleep on a busy machine lasts longer than asked. Theory is the planner's simulation of the
order, with messages that take no time or 5 ms; without them it is the formula of the schedule's file.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["mtnlg-parallel", "torch==2.13.0"]
# ///

from __future__ import annotations

import multiprocessing
import os
import queue
import statistics
import threading
import time
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]

from mtnlg_parallel.engine.contract import MicroBatch, Skip, StepSettings
from mtnlg_parallel.engine.pipeline_engine import PipelineEngine
from mtnlg_parallel.engine.process import suppress_output
from mtnlg_parallel.model.head import EAGER
from mtnlg_parallel.planner import simulation
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.schedules import load_schedule, schedule_of
from record import picture, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 0.1
DELAY = 0.005
MICRO_BATCHES_A_RANK = 4
LIMIT = 600.0
"""Seconds for the rounds of a case: a rank that has died would be waited for."""


Interval = tuple[str, float, float]
"""Kind of work, begin and end."""


class Case(NamedTuple):
    """A pipeline to measure. ``chunks`` parts a rank; ``split``: weight gradients apart."""

    stages: int
    chunks: int
    split: bool
    delay: bool

    @property
    def micro_batches(self) -> int:
        """Of one step."""
        return MICRO_BATCHES_A_RANK * self.stages

    @property
    def schedule(self) -> str:
        """Its name."""
        return "zero-bubble" if self.split else schedule_of(self.chunks)

    def simulate(self) -> tuple[float, dict[int, list[Interval]]]:
        """Idle time as a share of the work, and every rank's intervals, where nothing else takes time."""
        count, unit = self.stages * self.chunks, SECONDS / self.chunks
        pipeline = simulation.Pipeline(
            self.stages,
            forward=(unit,) * count,
            backward=(unit * (1 if self.split else 2),) * count,
            hops=(DELAY * self.delay,) * count,
            weights=(unit,) * count if self.split else None,
        )
        orders = load_schedule(self.schedule).orders(self.stages, self.chunks, self.micro_batches)
        events: list[simulation.Event] = []
        seconds = simulation.simulate(pipeline, orders, events).seconds
        ranks: dict[int, list[Interval]] = {rank: [] for rank in range(self.stages)}
        for event in events:
            middle = event.begin + unit
            if event.kind == "backward" and not self.split:
                ranks[event.stage] += [("backward", event.begin, middle), ("weights", middle, event.end)]
            else:
                ranks[event.stage].append((event.kind, event.begin, event.end))
        return seconds / (3 * self.micro_batches * SECONDS) - 1, ranks


class Sleeper:
    """Sleeps in place of work, and notes when."""

    def __init__(self, case: Case) -> None:
        self.unit = SECONDS / case.chunks
        self.intervals: list[Interval] = []
        self.is_warm = False

    def sleep(self, kind: str) -> None:
        """Sleep, once warm."""
        if not self.is_warm:
            return
        began = time.perf_counter()
        time.sleep(self.unit)
        self.intervals.append((kind, began, time.perf_counter()))


class Sleep(Function):
    """Backward calls ``sleep``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sleep: Callable[[], None]) -> Tensor:  # noqa: ANN401, D102  (autograd's)
        ctx.sleep = sleep
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401, D102  (as above)
        ctx.sleep()
        return dy.contiguous(), None


class SleepingPart(nn.Module):
    """A part of a decoder that sleeps; it has one weight."""

    def __init__(self, sleeper: Sleeper, engine: PipelineEngine | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self._sleeper, self._engine = sleeper, engine
        self.layers = dict[str, nn.Module]()  # nothing to gather
        self.embedding = self.head = self.table = self.table_bias = None

    def forward(self, x: Tensor, *_attention: object) -> Tensor:
        """[S, B, H] → the same."""
        x = x if x.is_floating_point() else torch.zeros(x.shape[1], x.shape[0], HIDDEN)
        self._sleeper.sleep("forward")
        # The weight before the other, so that backward comes to it later.
        weight: Tensor = Sleep.apply(self.weight, self._sleep_for_weight)  # type: ignore[no-untyped-call]
        moved: Tensor = Sleep.apply(x.requires_grad_(), partial(self._sleeper.sleep, "backward"))  # type: ignore[no-untyped-call]
        return moved + weight

    def _sleep_for_weight(self) -> None:
        """Sleep, or have an engine do it later."""
        put_off = self._engine.optimizer.put_off if self._engine and self._engine.splits_backward else None
        if put_off is None:
            self._sleeper.sleep("weights")
        else:
            put_off.append(partial(self._sleeper.sleep, "weights"))

    def loss(self, x: Tensor, _targets: Tensor) -> Tensor:
        """A sum."""
        return x.sum()


HIDDEN, SEQUENCE = 8, 8


def recipe_of(case: Case) -> Recipe:
    """A decoder with a layer for every part."""
    layers = case.stages * case.chunks
    model = {"layers": layers, "hidden": HIDDEN, "heads": 1, "sequence": SEQUENCE, "vocabulary": 16}
    train = {"samples": 1 << 20, "batch": case.micro_batches, "lr": 1e-3, "precision": "fp32", "recompute": "none"}
    train |= {"schedule": case.schedule, "chunks": case.chunks}
    sections = {"model": model, "layout": {"pp": case.stages}, "train": train}
    return Recipe.model_validate(sections, strict=False)


def ours(case: Case, sleeper: Sleeper) -> Callable[[], object]:
    """A step of our engine."""
    engine = PipelineEngine(recipe_of(case), torch.device("cpu"), EAGER)
    engine.parts = [SleepingPart(sleeper, engine) for _ in range(case.chunks)]  # type: ignore[misc]
    tokens = torch.zeros(1, SEQUENCE, dtype=torch.long)

    def batches() -> Any:  # noqa: ANN401  (an iterator)
        while True:
            yield MicroBatch(tokens, tokens)

    return lambda: engine.train_batch(
        batches(), case.micro_batches, StepSettings(1e-3, 0.0, 1.0), lambda *_: Skip("asleep", "a sleeping step")
    )


def torchs(case: Case, sleeper: Sleeper) -> Callable[[], object]:
    """A step of torch.distributed.pipelining, which learns the shapes of messages in the first."""
    from torch.distributed import pipelining  # noqa: PLC0415  (the peer)

    rank = distributed.get_rank()
    count, cpu = case.stages * case.chunks, torch.device("cpu")
    parts: list[Any] = [
        pipelining.PipelineStage(SleepingPart(sleeper), number, count, cpu)
        for number in range(rank, count, case.stages)
    ]
    options: dict[str, Any] = {"loss_fn": lambda y, _: y.sum(), "scale_grads": False}
    if case.split:
        schedule: Any = pipelining.ScheduleInterleavedZeroBubble(parts, case.micro_batches, **options)
    elif case.chunks > 1:
        schedule = pipelining.ScheduleInterleaved1F1B(parts, case.micro_batches, **options)
    else:
        schedule = pipelining.Schedule1F1B(parts[0], case.micro_batches, **options)
    x = torch.zeros(SEQUENCE * case.micro_batches, 1, HIDDEN)
    inputs = (x,) if rank == 0 else ()
    targets = {"target": x} if rank == case.stages - 1 else {}
    return lambda: schedule.step(*inputs, **targets)


SIDES = {"ours": ours, "torch": torchs}


def delay_sends() -> None:
    """Have every message sent `DELAY` later, by a thread, in order."""
    isend, waiting = distributed.isend, queue.SimpleQueue[Any]()

    class Late:
        """A send that has not begun."""

        def __init__(self) -> None:
            self.begun = threading.Event()
            self.work: Any = None

        def wait(self) -> None:
            """As `Work.wait`."""
            self.begun.wait()
            self.work.wait()

        def is_completed(self) -> bool:
            """As `Work.is_completed`."""
            return self.begun.is_set() and bool(self.work.is_completed())

    def send() -> None:
        while True:
            due, late, words, options = waiting.get()
            time.sleep(max(0.0, due - time.perf_counter()))
            late.work = isend(*words, **options)
            late.begun.set()

    def begin(*words: Any, **options: Any) -> Late:  # noqa: ANN401  (isend's)
        late = Late()
        waiting.put((time.perf_counter() + DELAY, late, words, options))
        return late

    threading.Thread(target=send, daemon=True).start()
    vars(distributed)["isend"] = vars(distributed_c10d)["isend"] = begin


Step = tuple[float, list[Interval]]
"""Its seconds, and a rank's intervals."""


def be_rank(case: Case, side: str, port: int, rounds: int, rank: int) -> tuple[int, list[Step]]:
    """One rank, and its steps: one to warm up, then ``rounds``."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case.stages))
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=case.stages)
    if case.delay:
        delay_sends()
    sleeper, steps = Sleeper(case), list[Step]()
    step = SIDES[side](case, sleeper)
    for _ in range(1 + rounds):
        distributed.barrier()
        began = time.perf_counter()
        step()
        ended = time.perf_counter()
        steps.append((ended - began, [(kind, a - began, b - began) for kind, a, b in sleeper.intervals]))
        sleeper.is_warm, sleeper.intervals = True, []
    return rank, steps[1:]


def run_steps(case: Case, side: str, rounds: int) -> list[dict[int, Step]]:
    """Seconds and intervals of each step by rank."""
    context = multiprocessing.get_context("forkserver")  # this process has a store's thread, which a fork would lose
    context.set_forkserver_preload(["torch.distributed.pipelining", "mtnlg_parallel.engine.pipeline_engine"])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with context.Pool(case.stages) as pool:  # whose end ends the ranks: gloo would wait
        ended = pool.imap_unordered(partial(be_rank, case, side, store.port, rounds), range(case.stages))
        of_rank = dict(ended.next(LIMIT) for _ in range(case.stages))  # raises what a rank raises
    return [{rank: steps[number] for rank, steps in of_rank.items()} for number in range(rounds)]


def idle_share(step: dict[int, Step]) -> float:
    """The slowest rank's time over the busiest rank's work, less one."""
    work = max(sum(end - begin for _, begin, end in intervals) for _, intervals in step.values())
    return max(seconds for seconds, _ in step.values()) / work - 1


COLOURS = {"forward": "#4c72b0", "backward": "#dd8452", "weights": "#55a868"}


def draw(timelines: list[tuple[str, dict[int, list[Interval]]]], path: Path) -> None:
    """Each pipeline's ranks over time."""
    with picture(path, 11, 0.8 * len(timelines)) as figure:
        for axes, (name, ranks) in zip(figure.subplots(len(timelines), sharex=True), timelines, strict=True):
            for (rank, spans), (kind, colour) in product(ranks.items(), COLOURS.items()):
                bars = [(begin, end - begin) for each, begin, end in spans if each == kind]
                axes.broken_barh(bars, (-rank, 0.8), color=colour, label=kind if rank == 0 else None)
            axes.set(yticks=[])
            axes.set_ylabel(name, rotation=0, ha="right")
        axes.legend(ncols=3, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.3))


SCHEDULES = {
    "1F1B": (1, False),
    "interleaved, 2 parts": (2, False),
    "interleaved, 3 parts": (3, False),
    "zero-bubble": (1, True),
    "zero-bubble, 2 parts": (2, True),
}
"""Parts a rank, and whether weight gradients are apart."""


def measure(stages: tuple[int, ...] = (4, 8), rounds: int = 3, chart: Path | None = None) -> dict[str, Any]:
    """Measure every schedule; ``chart``: an SVG of timelines at the first number of stages, and the ideal."""
    suppress_output().__enter__()
    rows: dict[str, dict[str, Any]] = {}
    timelines = []
    for count, schedule, delay in product(stages, SCHEDULES, (False, True)):
        case, is_first = Case(count, *SCHEDULES[schedule], delay), count == stages[0]
        theory, ideal = case.simulate()
        row: dict[str, Any] = {"theory": round(100 * theory, 1)}
        for side in SIDES if is_first else ["ours"]:
            steps = run_steps(case, side, rounds)
            idle = [100 * idle_share(step) for step in steps]
            row[side] = [round(value, 1) for value in (statistics.median(idle), min(idle), max(idle))]
            if is_first and side == "ours" and not delay:
                typical = min(steps, key=lambda step: abs(100 * idle_share(step) - row["ours"][0]))
                timelines.append((f"{schedule}, measured", {rank: spans for rank, (_, spans) in typical.items()}))
                timelines.append(("ideal", ideal))
        rows[f"{count} ranks, {schedule}{', 5 ms a send' * delay}"] = row
    if chart:
        draw(timelines, chart)
    return {"seconds_of_sleep": SECONDS, "idle_percent": rows}


if __name__ == "__main__":
    run(measure, __doc__)
