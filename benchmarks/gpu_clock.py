"""Times calls on one GPU by CUDA events, all sides in every round; on a CPU a trial of the same code.

Before each timed call a buffer of many times the L2 cache is read: the call then finds none of its data in the cache
and no dirty lines, and the host runs ahead meanwhile, so launch time costs no call anything.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mtnlg_parallel.kernels import best_ops
from mtnlg_parallel.model.head import EAGER
from record import default_out, option_parser, write_result

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence

    from mtnlg_parallel.model.head import ParallelOps

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = torch.bfloat16
FLUSH_BYTES = 1 << 30


def require_kernels(tiny: bool) -> ParallelOps:
    """Return the kernels; exit without a GPU unless ``tiny``, and where there are no kernels."""
    if not GPU and not tiny:
        sys.exit("no GPU here, and times on a CPU say nothing; --tiny tries the script and writes no result")
    ops = best_ops(DEVICE)
    if ops is EAGER:
        sys.exit(f"no kernels on {DEVICE}; on a CPU, set TRITON_INTERPRET=1 to try them")
    return ops


def parse_options(doc: str | None, claim: str, repeats: int) -> Namespace:
    """Read the command line of a GPU benchmark."""
    parser = option_parser(doc)
    parser.add_argument("--repeats", type=int, default=repeats, help="calls of every side in every round")
    parser.add_argument("--tiny", action="store_true", help="try the script at small sizes, once; writes no result")
    parser.set_defaults(out=default_out(claim))
    return parser.parse_args()


def make_clock(options: Namespace, flush: bool) -> Clock:
    """Return a clock with the command line's rounds and repeats; a trial runs everything once."""
    return Clock(1, 1, 0, flush) if options.tiny else Clock(options.rounds, options.repeats, 3, flush)


def write_gpu_result(result: dict[str, Any], options: Namespace) -> None:
    """Write the result if it was measured on a GPU at full size."""
    if GPU and not options.tiny:
        write_result(result, options.out)
    else:
        size = "small" if options.tiny else "full"
        print(f"\ntried on {DEVICE} at {size} size: these times say nothing, and nothing is kept")


class Times(NamedTuple):
    """Seconds of a call: the median of all, and the least and greatest of the rounds' medians."""

    median: float
    least: float
    greatest: float


class Clock:
    """Times calls on the GPU. Without ``flush`` the cache is not cleared, for data far larger than it."""

    def __init__(self, rounds: int, repeats: int, warm: int = 3, flush: bool = True) -> None:
        self.rounds, self.repeats, self.warm = rounds, repeats, warm
        self.left_out: list[str] = []
        size = (FLUSH_BYTES if GPU else 16) // 4
        self._buffer = torch.zeros(size, dtype=torch.int32, device=DEVICE) if flush else None

    def compare(self, sides: Mapping[str, Callable[[], object]], what: str = "") -> dict[str, Times]:
        """Run every side ``warm`` times, then ``repeats`` times in each round, in rotating order.

        The first side is ours: if it fails, the error is raised. Another side that fails is left out and recorded.
        """
        sides = {name: call for name, call in sides.items() if self._works(name, call, what, name == next(iter(sides)))}
        rounds: dict[str, list[list[float]]] = {name: [] for name in sides}
        for number in range(self.rounds):
            names = list(sides)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                rounds[name].append(self._time_round(sides[name]))
        return {name: _summarize(seconds) for name, seconds in rounds.items()}

    def _works(self, name: str, call: Callable[[], object], what: str, ours: bool) -> bool:
        try:
            for _ in range(self.warm):
                call()
        except Exception as error:  # a compiler may raise anything
            if ours:
                raise
            reason = str(error).partition("\n")[0]
            self.left_out.append(f"{what}, {name}: {type(error).__name__}: {reason}")
            print(f"left out: {self.left_out[-1]}")
            return False
        return True

    def _time_round(self, call: Callable[[], object]) -> list[float]:
        if not GPU:
            return [_wall_seconds(call) for _ in range(self.repeats)]
        events = []
        if self._buffer is None:
            call()  # lets the host run ahead
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


def _wall_seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _summarize(rounds: list[list[float]]) -> Times:
    medians = [statistics.median(seconds) for seconds in rounds]
    return Times(statistics.median(chain.from_iterable(rounds)), min(medians), max(medians))


def copy_bandwidth(clock: Clock) -> float:
    """Return the bytes a second that a copy within the GPU's memory reads and writes."""
    source = torch.zeros((FLUSH_BYTES if GPU else 1 << 12) // 2, dtype=DTYPE, device=DEVICE)
    target = torch.empty_like(source)
    seconds = clock.compare({"copy": lambda: target.copy_(source)})["copy"].median
    return 2 * source.numel() * source.itemsize / seconds


def compile_fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` under torch.compile, without earlier caches; on a CPU it is only traced, not compiled."""
    torch.compiler.reset()
    result: Callable[..., Any] = torch.compile(function, dynamic=False, backend="inductor" if GPU else "aot_eager")
    return result


def release() -> None:
    """Return freed memory to the GPU, so that the next case finds all of it."""
    if GPU:
        gc.collect()
        torch.cuda.empty_cache()


def print_table(title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns, the first left-aligned and the others right-aligned."""
    lines = [header, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    print(f"\n{title}")
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *cells]).rstrip())
