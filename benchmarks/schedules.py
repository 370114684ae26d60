"""Idle time of a pipeline by its schedule: ours beside torch.distributed.pipelining's, on layers that sleep.

    python benchmarks/schedules.py [--stages 4 8] [--rounds 3] [--recompute] [--picture FILE.svg] [--out FILE]

Processes on gloo, a stage or several each. A part's forward, its input gradient and its weight gradient sleep 20 ms
each, divided by the number of parts a rank (with --recompute backward sleeps for another forward), so that two cores
suffice for eight ranks. A step has four times as many micro-batches as ranks. With a delay each message is sent 5 ms
later, by a thread.

Figures: the median step's time over that of the work alone, less one, in percent; beside it what the formula in
`mtnlg_parallel.engine.schedule` says. The delay's theory is that of a pipeline whose sends cost nothing while it is
full: the way there and back is added once.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.autograd import Function
from torch.distributed import TCPStore, distributed_c10d  # type: ignore[attr-defined]

from mtnlg_parallel.engine.process import suppress_output
from mtnlg_parallel.engine.pipeline_engine import PipelineEngine
from mtnlg_parallel.model.head import EAGER
from mtnlg_parallel.recipe import Recipe
from record import conditions, option_parser, write_result

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 0.02
DELAY = 0.005
MICRO_BATCHES_A_RANK = 4


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
    def work(self) -> float:
        """Seconds of a rank's work in one step."""
        return self.micro_batches * SECONDS * (4 if self.recompute else 3)

    @property
    def theory(self) -> float:
        """Idle time as a share of the work."""
        edges, pieces = self.stages - 1, 4 if self.recompute else 3
        once = (pieces - 2 if self.split else pieces) * SECONDS / self.chunks
        return edges * (once + (2 * DELAY if self.delay else 0.0)) / self.work


class Sleeper:
    """Sleeps in place of work, and notes when."""

    def __init__(self, case: Case) -> None:
        self.unit = SECONDS / case.chunks
        self.backward = self.unit * (2 if case.recompute else 1)
        self.intervals: list[tuple[str, float, float]] = []

    def sleep(self, kind: str, seconds: float) -> None:
        """Sleep until so many seconds from now."""
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
        sleeper, put_off = ctx.sleeper, ctx.engine and ctx.engine.optimizer.deferral.products
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
        moved: Tensor = SleepThrough.apply(x.requires_grad_(), self._sleeper)  # type: ignore[no-untyped-call]
        weight: Tensor = SleepForWeight.apply(  # type: ignore[no-untyped-call]
            self.weight, self._sleeper, *self._engine
        )
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
    schedule = "zero-bubble" if case.split else "interleaved" if case.chunks > 1 else "1f1b"
    train |= {"schedule": schedule, "chunks": case.chunks}
    sections = {"model": model, "layout": {"pp": case.stages}, "train": train}
    return Recipe.model_validate(sections, strict=False)


def ours(case: Case, sleeper: Sleeper) -> Callable[[], object]:
    """A step of our engine."""
    engine = PipelineEngine(recipe_of(case), torch.device("cpu"), EAGER)
    engine.parts = [SleepingPart(sleeper, engine) for _ in range(case.chunks)]  # type: ignore[misc]
    tokens = torch.zeros(1, SEQUENCE, dtype=torch.long)

    def batches() -> Any:  # noqa: ANN401  (an iterator)
        while True:
            yield tokens, tokens

    return lambda: engine.train_batch(batches(), case.micro_batches, 1e-3, lambda *_: "a sleeping step")


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
            """Not that we know."""
            return False

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
    sleeper = Sleeper(case)
    step, seconds = SIDES[side](case, sleeper), []
    for _ in range(1 + rounds):
        distributed.barrier()
        sleeper.intervals.clear()
        began = time.perf_counter()
        step()
        distributed.barrier()
        seconds.append(time.perf_counter() - began)
    results.put((rank, seconds[1:], [(kind, a - began, b - began) for kind, a, b in sleeper.intervals]))
    results.close()
    results.join_thread()
    os._exit(0)  # gloo would wait for the others


def measure(case: Case, side: str, rounds: int) -> tuple[list[float], dict[int, Any]]:
    """The seconds of each step, and every rank's intervals of the last."""
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        context.Process(target=be_rank, args=(case, side, rank, store.port, rounds, results))
        for rank in range(case.stages)
    ]
    for process in ranks:
        process.start()
    answers = [results.get(timeout=300) for _ in ranks]
    for process in ranks:
        process.join()
    return answers[0][1], {rank: intervals for rank, _, intervals in answers}


COLOURS = {"forward": "#4c72b0", "backward": "#dd8452", "weights": "#55a868"}


def draw(timelines: list[tuple[str, float, dict[int, Any]]], path: Path) -> None:
    """Each pipeline's ranks over time, with the end of the work alone as a line."""
    width, row, left = 1100, 12, 190
    longest = max(end for _, _, ranks in timelines for spans in ranks.values() for *_, end in spans)
    scale, y = (width - left - 10) / longest, 8.0
    lines = []
    for name, work, ranks in timelines:
        lines.append(f'<text x="4" y="{y + 11}" font-size="11">{name}</text>')
        for rank, spans in sorted(ranks.items()):
            top = y + rank * row
            lines += [
                f'<rect x="{left + begin * scale:.1f}" y="{top:.1f}" width="{(end - begin) * scale:.1f}" '
                f'height="{row - 2}" fill="{COLOURS[kind]}"/>'
                for kind, begin, end in spans
            ]
        bottom, x = y + len(ranks) * row, left + work * scale
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{bottom}" stroke="black" stroke-dasharray="3 2"/>')
        y = bottom + 14
    legend = "".join(
        f'<rect x="{left + 110 * n}" y="{y}" width="10" height="10" fill="{colour}"/>'
        f'<text x="{left + 110 * n + 14}" y="{y + 9}" font-size="11">{kind}</text>'
        for n, (kind, colour) in enumerate(COLOURS.items())
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + 18:.0f}" font-family="sans-serif">'
    body = '<rect width="100%" height="100%" fill="white"/>' + "\n".join(lines)
    path.write_text(f"{head}{body}{legend}</svg>\n", encoding="utf-8")


def main() -> int:
    """Run it; returns the exit status."""
    parser = option_parser(__doc__, rounds=3)
    parser.add_argument("--stages", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--picture", type=Path, help="SVG of the timelines of the first number of stages")
    chosen = parser.parse_args()
    suppress_output().__enter__()
    result: dict[str, Any] = {**conditions("mtnlg-parallel", "torch"), "percent_of_the_work_idle": {}}
    timelines = []
    for stages in chosen.stages:
        for chunks, split in ((1, False), (2, False), (3, False), (1, True), (2, True)):
            for delay in (False, True):
                case = Case(stages, chunks, split, delay, chosen.recompute)
                name = f"{stages} ranks, parts each {chunks}{', split' * split}{', 5 ms a send' * delay}"
                row: dict[str, Any] = {"theory": round(100 * case.theory, 1)}
                for side in SIDES:
                    seconds, spans = measure(case, side, chosen.rounds)
                    idle = [100 * (second / case.work - 1) for second in seconds]
                    row[side] = [round(value, 1) for value in (statistics.median(idle), min(idle), max(idle))]
                    if stages == chosen.stages[0] and side == "ours":
                        timelines.append((name, case.work, spans))
                result["percent_of_the_work_idle"][name] = row
                print(name, row, file=sys.stderr, flush=True)
    if chosen.picture:
        draw(timelines, chosen.picture)
    write_result(result, chosen.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
