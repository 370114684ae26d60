"""One GPU's clock: calls timed by CUDA events, side by side in rounds; on a CPU a trial of the same code.

Before each timed call a buffer of many times the L2 cache is read: what the call finds in cache is then nobody's, and
clean, and the host, which meanwhile runs ahead, costs no call anything. All sides of a comparison run in every round.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mtnlg_parallel.kernels import best
from mtnlg_parallel.model.head import EAGER
from record import keep, today

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mtnlg_parallel.model.head import ParallelOps

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16
FLUSH_BYTES = 1 << 30


def kernels(tiny: bool) -> ParallelOps:
    """What is measured. Ends where there is no GPU and no trial was asked for, and where there are no kernels."""
    if not GPU and not tiny:
        sys.exit("no GPU here, and a CPU's times would say nothing; --tiny tries the script, and keeps nothing")
    ops = best(DEVICE)
    if ops is EAGER:
        sys.exit(f"no kernels on {DEVICE} to measure; on a CPU, TRITON_INTERPRET=1 gives them to a trial")
    return ops


def parsed(about: str | None, claim: str, repeats: int) -> Namespace:
    """The command line that GPU benchmarks have."""
    parser = ArgumentParser(description=about, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=repeats, help="of every side in every round")
    parser.add_argument("--tiny", action="store_true", help="try the script at small sizes, once; keeps nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / f"{today()}-{claim}.json")
    return parser.parse_args()


def clock_of(options: Namespace, flush: bool) -> Clock:
    """As the command line has it; a trial runs everything once."""
    return Clock(1, 1, 0, flush) if options.tiny else Clock(options.rounds, options.repeats, 3, flush)


def kept(result: dict[str, Any], options: Namespace) -> None:
    """Keep what a GPU has shown, and nothing else."""
    if GPU and not options.tiny:
        keep(result, options.out)
    else:
        print(
            f"\ntried on {DEVICE}, {'small' if options.tiny else 'whole'}: these times say nothing, and nothing is kept"
        )


class Times(NamedTuple):
    """Seconds of a call: the median of all, and the least and greatest median of a round."""

    median: float
    least: float
    greatest: float


class Clock:
    """Times calls on the GPU; ``flush`` False where their data are far larger than its cache."""

    def __init__(self, rounds: int, repeats: int, warm: int = 3, flush: bool = True) -> None:
        self.rounds, self.repeats, self.warm = rounds, repeats, warm
        self.left_out: list[str] = []
        size = (FLUSH_BYTES if GPU else 16) // 4
        self._buffer = torch.zeros(size, dtype=torch.int32, device=DEVICE) if flush else None

    def compare(self, sides: Mapping[str, Callable[[], object]], what: str = "") -> dict[str, Times]:
        """Every side ``warm`` times, then in each round ``repeats`` times, another first every round.

        A side of others that fails is left out and noted; the first is ours, and ends all.
        """
        sides = {name: call for name, call in sides.items() if self._works(name, call, what, name == next(iter(sides)))}
        found: dict[str, list[list[float]]] = {name: [] for name in sides}
        for number in range(self.rounds):
            names = list(sides)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                found[name].append(self._round(sides[name]))
        return {name: _times(rounds) for name, rounds in found.items()}

    def _works(self, name: str, call: Callable[[], object], what: str, ours: bool) -> bool:
        try:
            for _ in range(self.warm):
                call()
        except Exception as error:  # whatever a compiler may raise
            if ours:
                raise
            first = str(error).partition("\n")[0]
            self.left_out.append(f"{what}, {name}: {type(error).__name__}: {first}")
            print(f"left out: {self.left_out[-1]}")
            return False
        return True

    def _round(self, call: Callable[[], object]) -> list[float]:
        if not GPU:
            return [_wall(call) for _ in range(self.repeats)]
        events = []
        if self._buffer is None:
            call()  # the host gets ahead
        for _ in range(self.repeats):
            if self._buffer is not None:
                self._buffer.max()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            call()
            end.record()
            events.append((begin, end))
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]


def _wall(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _times(rounds: list[list[float]]) -> Times:
    medians = [statistics.median(seconds) for seconds in rounds]
    return Times(statistics.median(chain.from_iterable(rounds)), min(medians), max(medians))


def copy_bandwidth(clock: Clock) -> float:
    """Bytes a second that a copy within the GPU's memory reads and writes."""
    source = torch.zeros((FLUSH_BYTES if GPU else 1 << 12) // 2, dtype=DTYPE, device=DEVICE)
    target = torch.empty_like(source)
    seconds = clock.compare({"copy": lambda: target.copy_(source)})["copy"].median
    return 2 * source.numel() * source.itemsize / seconds


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` under torch.compile; on a CPU traced only, which needs no compiler."""
    torch.compiler.reset()
    made: Callable[..., Any] = torch.compile(function, dynamic=False, backend="inductor" if GPU else "aot_eager")
    return made


def release() -> None:
    """Give freed memory back, so that the next case finds all of it."""
    if GPU:
        gc.collect()
        torch.cuda.empty_cache()


def table(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns, the first to the left and the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    print(f"\n{title}")
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *cells]).rstrip())
