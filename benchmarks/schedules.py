"""Idle time of a pipeline by its schedule: ours beside torch.distributed.pipelining's, on layers that sleep.

    python benchmarks/schedules.py [--stages 4 8] [--rounds 3] [--recompute] [--picture FILE.svg] [--out FILE]

Processes on gloo, a stage or several each. A rank's forward, input gradients and weight gradients of a micro-batch
sleep 100 ms each, divided by its number of parts (with --recompute backward sleeps for another forward), so that two
cores suffice for eight ranks: with less, the 0.6 to 0.9 ms a pass that the interpreter takes between its sleeps
would count as the schedule's. A step has four times as many micro-batches as ranks. With a delay each message is sent
5 ms later, by a thread. torch's are measured at the first number of stages.

On a busy machine run it by `chrt -f 1`: with real-time priority a sleep ends when it should, and the processors are
taken from others for what lies between two sleeps alone.

Figures: a step's time over the work of its busiest rank, less one, in percent; median, least and most of the rounds.
Work is as measured, since a sleep on a busy machine lasts longer than asked. Theory is the planner's simulation of the
order, with messages that take no time or 5 ms; without them it is the formula of the schedule's file.
"slower_than_its_sleeps" is what our engine adds to its own sleeps put together in its order, in percent of the step:
the rest above theory is sleeps that lasted longer than asked on one rank, for which the others wait.
"there_and_back" is what the delay adds where the pipeline fills and empties: once down all parts and up again, with one
part and weight gradients apart at most twice; "delay_adds" is what it has added. "zero-bubble over 1F1B" is the ratio
of their idle times without a delay, as measured and in theory. With one part no order is below a third: the last rank
waits for the first micro-batch, and all wait for the gradient norm in the end.
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
import sys
import threading
import time
from collections import deque
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]

from mtnlg_parallel.engine.contract import MicroBatch, StepSettings
from mtnlg_parallel.engine.pipeline_engine import PipelineEngine
from mtnlg_parallel.engine.process import suppress_output
from mtnlg_parallel.model.head import EAGER
from mtnlg_parallel.planner import simulation
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.schedules import load_schedule, schedule_of
from record import conditions, option_parser, write_result

if TYPE_CHECKING:
    from collections.abc import Callable

    from mtnlg_parallel.schedules import Order

SECONDS = 0.1
DELAY = 0.005
MICRO_BATCHES_A_RANK = 4


Interval = tuple[str, float, float]
"""Kind of work, begin and end."""


class Case(NamedTuple):
    """A pipeline to measure. ``chunks`` parts a rank; ``split``: weight gradients apart."""

    stages: int
    chunks: int
    split: bool
    delay: bool
    recompute: bool

    @property
    def micro_batches(self) -> int:
        """Of one step."""
        return MICRO_BATCHES_A_RANK * self.stages

    @property
    def schedule(self) -> str:
        """Its name."""
        return "zero-bubble" if self.split else schedule_of(self.chunks)

    def orders(self) -> tuple[Order, ...]:
        """Every rank's actions."""
        return load_schedule(self.schedule).orders(self.stages, self.chunks, self.micro_batches)

    @property
    def work(self) -> float:
        """Seconds of a rank's work in one step."""
        return self.micro_batches * SECONDS * (4 if self.recompute else 3)

    @property
    def there_and_back(self) -> float:
        """Time of messages down all parts and up again, as a share of the work."""
        return 2 * (self.stages * self.chunks - 1) * DELAY * self.delay / self.work

    def simulate(self) -> tuple[float, dict[int, list[Interval]]]:
        """Idle time as a share of the work, and every rank's intervals, where nothing else takes time."""
        count, unit = self.stages * self.chunks, SECONDS / self.chunks
        inputs, weights = (unit * (1 + self.recompute),) * count, (unit,) * count
        whole = tuple(map(sum, zip(inputs, weights, strict=True)))
        pipeline = simulation.Pipeline(
            self.stages,
            forward=weights,
            backward=inputs if self.split else whole,
            hops=(DELAY * self.delay,) * count,
            weights=weights if self.split else None,
        )
        events: list[simulation.Event] = []
        seconds = simulation.simulate(pipeline, self.orders(), events).seconds
        ranks: dict[int, list[Interval]] = {rank: [] for rank in range(self.stages)}
        for event in events:
            middle = event.begin + inputs[0]
            if event.kind == "backward" and not self.split:
                ranks[event.stage] += [("backward", event.begin, middle), ("weights", middle, event.end)]
            else:
                ranks[event.stage].append((event.kind, event.begin, event.end))
        return seconds / self.work - 1, ranks


class Sleeper:
    """Sleeps in place of work, and notes when."""

    def __init__(self, case: Case) -> None:
        self.unit = SECONDS / case.chunks
        self.backward = self.unit * (2 if case.recompute else 1)
        self.intervals: list[Interval] = []
        self.is_warm = False

    def sleep(self, kind: str, seconds: float) -> None:
        """Sleep until so many seconds from now, once warm."""
        if not self.is_warm:
            return
        began = time.perf_counter()
        time.sleep(seconds)
        self.intervals.append((kind, began, time.perf_counter()))


class SleepThrough(Function):
    """Forward sleeps; backward sleeps for the input gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sleeper: Sleeper) -> Tensor:  # noqa: ANN401, D102  (autograd's)
        ctx.sleeper = sleeper
        sleeper.sleep("forward", sleeper.unit)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401, D102  (as above)
        ctx.sleeper.sleep("backward", ctx.sleeper.backward)
        return dy.contiguous(), None


class SleepForWeight(Function):
    """Backward sleeps for the weight gradient, or has an engine do it later."""

    @staticmethod
    def forward(  # noqa: D102  (as above)
        ctx: Any,  # noqa: ANN401
        weight: Tensor,
        sleeper: Sleeper,
        engine: PipelineEngine | None,
    ) -> Tensor:
        ctx.sleeper, ctx.engine = sleeper, engine
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401, D102  (as above)
        sleeper, engine = ctx.sleeper, ctx.engine
        put_off = engine.optimizer.put_off if engine and engine.splits_backward else None
        if put_off is None:
            sleeper.sleep("weights", sleeper.unit)
        else:
            put_off.append(lambda: sleeper.sleep("weights", sleeper.unit))
        return dy, None, None


class SleepingPart(nn.Module):
    """A part of a decoder that sleeps; it has one weight."""

    def __init__(self, sleeper: Sleeper, engine: PipelineEngine | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self._sleeper, self._engine = sleeper, (engine,)  # not a submodule

    def forward(self, x: Tensor) -> Tensor:
        """[S, B, H] → the same."""
        x = x if x.is_floating_point() else torch.zeros(x.shape[1], x.shape[0], HIDDEN)
        weight: Tensor = SleepForWeight.apply(  # type: ignore[no-untyped-call]
            self.weight, self._sleeper, *self._engine
        )  # before the other, so that backward comes to it later
        moved: Tensor = SleepThrough.apply(x.requires_grad_(), self._sleeper)  # type: ignore[no-untyped-call]
        return moved + weight

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
        batches(), case.micro_batches, StepSettings(1e-3, 0.0, 1.0), lambda *_: "a sleeping step"
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


def be_rank(  # noqa: PLR0917  (what, as whom, and where to)
    case: Case,
    side: str,
    rank: int,
    port: int,
    rounds: int,
    results: Any,  # noqa: ANN401  (a multiprocessing queue)
) -> None:
    """One rank: a step to warm up, then ``rounds``."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(case.stages))
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=case.stages)
    if case.delay:
        delay_sends()
    sleeper, steps = Sleeper(case), list[tuple[float, list[Interval]]]()
    step = SIDES[side](case, sleeper)
    for _ in range(1 + rounds):
        distributed.barrier()
        began = time.perf_counter()
        step()
        ended = time.perf_counter()
        if sleeper.is_warm:
            steps.append((ended - began, [(kind, a - began, b - began) for kind, a, b in sleeper.intervals]))
        sleeper.is_warm, sleeper.intervals = True, []
    results.put((rank, steps))
    store.wait(["measured"])
    os._exit(0)  # gloo would wait for the others


def measure(case: Case, side: str, rounds: int) -> list[dict[int, tuple[float, list[Interval]]]]:
    """Seconds and intervals of each step by rank."""
    context = multiprocessing.get_context("forkserver")  # this process has a store's thread, which a fork would lose
    context.set_forkserver_preload(["torch.distributed.pipelining", "mtnlg_parallel.engine.pipeline_engine"])
    results: Any = context.Queue()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        context.Process(target=be_rank, args=(case, side, rank, store.port, rounds, results), daemon=True)
        for rank in range(case.stages)
    ]
    for process in ranks:
        process.start()
    answers: dict[int, list[tuple[float, list[Interval]]]] = {}
    while len(answers) < case.stages:
        try:
            rank, steps = results.get(timeout=1.0)
        except queue.Empty:
            if any(process.exitcode is not None for process in ranks):
                raise RuntimeError(f"a rank has died: {case}, {side}") from None
        else:
            answers[rank] = steps
    store.set("measured", "")  # a rank that ended before would take its connections from those that still need them
    for process in ranks:
        process.join()
    return [{rank: steps[number] for rank, steps in answers.items()} for number in range(rounds)]


def idle_share(step: dict[int, tuple[float, list[Interval]]]) -> float:
    """The slowest rank's time over the busiest rank's work, less one."""
    work = max(sum(end - begin for _, begin, end in intervals) for _, intervals in step.values())
    return max(seconds for seconds, _ in step.values()) / work - 1


def replay(case: Case, step: dict[int, tuple[float, list[Interval]]]) -> float:
    """Seconds of a step of our engine if nothing but its sleeps, each as long as it was, and the delay took time."""
    order = case.orders()
    sleeps = {rank: iter(end - begin for _, begin, end in spans) for rank, (_, spans) in step.items()}
    left, now = [deque(rank_order) for rank_order in order], [0.0] * case.stages
    arrivals: dict[tuple[str, int, int], float] = {}  # of a kind's message, for a micro-batch, at a virtual stage
    last = case.stages * case.chunks - 1
    while any(left):
        for rank, actions in enumerate(left):
            while actions:
                kind, number, chunk = actions[0]
                stage = chunk * case.stages + rank
                is_begin = kind == "weights" or stage == (0 if kind == "forward" else last)
                if not is_begin and (kind, number, stage) not in arrivals:
                    break
                actions.popleft()
                now[rank] = max(now[rank], arrivals.get((kind, number, stage), 0.0))
                for _ in range(1 + (kind == "backward" and not case.split)):
                    now[rank] += next(sleeps[rank])
                if kind != "weights":
                    arrivals[kind, number, stage + (1 if kind == "forward" else -1)] = now[rank] + DELAY * case.delay
    return max(now)


COLOURS = {"forward": "#4c72b0", "backward": "#dd8452", "weights": "#55a868"}


def draw(timelines: list[tuple[str, dict[int, list[Interval]]]], path: Path) -> None:
    """Each pipeline's ranks over time."""
    width, row, left = 1100, 12, 190
    longest = max(end for _, ranks in timelines for spans in ranks.values() for *_, end in spans)
    scale, y = (width - left - 10) / longest, 8
    lines = []
    for name, ranks in timelines:
        lines.append(f'<text x="4" y="{y + 11}" font-size="11">{name}</text>')
        for (rank, spans), (kind, colour) in product(sorted(ranks.items()), COLOURS.items()):
            boxes = "".join(
                f"M{left + begin * scale:.1f} {y + rank * row}h{(end - begin) * scale:.1f}v{row - 2}"
                f"h-{(end - begin) * scale:.1f}z"
                for each, begin, end in spans
                if each == kind
            )
            lines.append(f'<path d="{boxes}" fill="{colour}" stroke="white" stroke-width="0.4"/>')
        y += len(ranks) * row + 10
    legend = "".join(
        f'<rect x="{left + 110 * n}" y="{y}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{left + 110 * n + 14}" y="{y + 9}" font-size="11">{kind}</text>'
        for n, (kind, colour) in enumerate(COLOURS.items())
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 18}" font-family="sans-serif">'
    body = '<rect width="100%" height="100%" fill="white"/>' + "\n".join(lines)
    path.write_text(f"{head}{body}{legend}</svg>\n", encoding="utf-8")


SCHEDULES = {
    "1F1B": (1, False),
    "interleaved, 2 parts": (2, False),
    "interleaved, 3 parts": (3, False),
    "zero-bubble": (1, True),
    "zero-bubble, 2 parts": (2, True),
}
"""Parts a rank, and whether weight gradients are apart."""


def main() -> int:
    """Run it; returns the exit status."""
    parser = option_parser(__doc__, rounds=3)
    parser.add_argument("--stages", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--schedules", choices=SCHEDULES, nargs="+", default=list(SCHEDULES))
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument(
        "--picture", type=Path, help="SVG of the timelines of the first number of stages, and the ideal"
    )
    chosen = parser.parse_args()
    suppress_output().__enter__()
    result: dict[str, Any] = {**conditions("mtnlg-parallel", "torch"), "seconds_of_sleep": SECONDS}
    result["real_time_priority"] = os.sched_getscheduler(0) == os.SCHED_FIFO
    rows: dict[str, dict[str, Any]] = {}
    result["idle_percent"], timelines = rows, []
    for stages, schedule, delay in product(chosen.stages, chosen.schedules, (False, True)):
        case = Case(stages, *SCHEDULES[schedule], delay, chosen.recompute)
        name = f"{stages} ranks, {schedule}{', 5 ms a send' * delay}"
        theory, ideal = case.simulate()
        row: dict[str, Any] = {"theory": round(100 * theory, 1), "there_and_back": round(100 * case.there_and_back, 1)}
        for side in SIDES if stages == chosen.stages[0] else ["ours"]:
            steps = measure(case, side, chosen.rounds)
            idle = [100 * idle_share(step) for step in steps]
            row[side] = [round(value, 1) for value in (statistics.median(idle), min(idle), max(idle))]
            if side == "ours":
                slower = [max(seconds for seconds, _ in step.values()) / replay(case, step) - 1 for step in steps]
                row["slower_than_its_sleeps"] = round(100 * statistics.median(slower), 1)
            if stages == chosen.stages[0] and side == "ours" and not delay:
                typical = min(steps, key=lambda step: abs(100 * idle_share(step) - row["ours"][0]))
                timelines.append((f"{schedule}, measured", {rank: spans for rank, (_, spans) in typical.items()}))
                timelines.append(("ideal", ideal))
        if delay:
            row["delay_adds"] = round(row["ours"][0] - rows[f"{stages} ranks, {schedule}"]["ours"][0], 1)
        rows[name] = row
        print(name, row, file=sys.stderr, flush=True)
    for stages in chosen.stages if {"1F1B", "zero-bubble"} <= set(chosen.schedules) else []:
        own = {name: rows[f"{stages} ranks, {name}"] for name in chosen.schedules}
        plain = own["1F1B"]
        result[f"zero-bubble over 1F1B, {stages} ranks"] = {
            name: {
                "ours": round(row["ours"][0] / plain["ours"][0], 2),
                "theory": round(row["theory"] / plain["theory"], 2),
            }
            for name, row in own.items()
            if SCHEDULES[name][1]
        }
    if chosen.picture:
        draw(timelines, chosen.picture)
    write_result({**result, "load_average_after": round(os.getloadavg()[0], 1)}, chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
