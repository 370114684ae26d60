"""Times calls on one GPU by CUDA events, all sides in every round; on a CPU a trial of the same code.

Before each timed call a buffer of many times the L2 cache is read: the call then finds none of its data in the cache
and no dirty lines, and the host runs ahead meanwhile, so launch time costs no call anything. If the GPU has begun with
a call before all of it was launched, the call is timed again behind more reads.
"""

from __future__ import annotations

import gc
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from mtnlg_parallel.kernels import best_ops
from mtnlg_parallel.model.head import EAGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mtnlg_parallel.model.head import ParallelOps

GPU = torch.cuda.is_available()
DEVICE = torch.device(os.environ.get("MTNLG_GPU_DEVICE") or ("cuda" if GPU else "cpu"))
"""`compiled` sets it to meta, where kernels are only compiled."""
DTYPE = torch.bfloat16
FLUSH_BYTES = 1 << 30
MOST_READS = 8
"""Of the buffer before a call: 2 ms of an H200."""
SAMPLED = ("power.draw", "clocks.sm", "temperature.gpu")


def generator(seed: int) -> torch.Generator | None:
    """Return random numbers for `DEVICE`; meta tensors have none."""
    return None if DEVICE.type == "meta" else torch.Generator(DEVICE).manual_seed(seed)


def kernels() -> ParallelOps:
    """Return the fused kernels of this device; exit where there are none."""
    ops = best_ops(DEVICE)
    if ops is EAGER:
        sys.exit(f"no kernels on {DEVICE}; on a CPU, set TRITON_INTERPRET=1 to try them")
    return ops


class Times(NamedTuple):
    """Seconds of a call: the median of all, and the least and greatest of the rounds' medians."""

    median: float
    least: float
    greatest: float


class Clock:
    """Times calls on the GPU. Without ``flush`` the cache is not cleared, for data far larger than it.

    A trial (``tiny``) runs everything once.
    """

    def __init__(self, tiny: bool, rounds: int, repeats: int, flush: bool = True) -> None:
        self.rounds, self.repeats, self.warm = (1, 1, 0) if tiny else (rounds, repeats, 3)
        self.left_out: list[str] = []
        size = (FLUSH_BYTES if GPU else 16) // 4
        self._buffer = torch.zeros(size, dtype=torch.int32, device=DEVICE) if flush else None
        self._reads = 1

    def compare(self, sides: Mapping[str, Callable[[], object]], what: str = "") -> dict[str, Times]:
        """Run every side ``warm`` times, then ``repeats`` times in each round, in rotating order.

        The first side is ours: if it fails, the error is raised. Another side that fails is left out and recorded.
        """
        self._reads = 1
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
        if self._buffer is None:
            call()  # lets the host run ahead
        events = [self._record(call) for _ in range(self.repeats)]
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in events]

    def _record(self, call: Callable[[], object]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        """Events before and after a call."""
        while True:
            for _ in range(self._reads):
                if self._buffer is not None:
                    self._buffer.max()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            call()
            end.record()
            if self._buffer is None or self._reads >= MOST_READS or not begin.query():  # type: ignore[no-untyped-call]
                return begin, end
            self._reads *= 2


def _wall_seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _summarize(rounds: list[list[float]]) -> Times:
    medians = [statistics.median(seconds) for seconds in rounds]
    return Times(statistics.median(chain.from_iterable(rounds)), min(medians), max(medians))


def copy_bandwidth(clock: Clock) -> float:
    """Return the bytes per second that a copy within the GPU's memory reads and writes."""
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


class Sampler:
    """Samples power and clock of the GPU while its block runs, twice a second; empty without nvidia-smi."""

    def __enter__(self) -> Self:
        """Begin."""
        self._child = None
        if GPU and (program := shutil.which("nvidia-smi")):
            query = [f"--query-gpu={','.join(SAMPLED)}", "--format=csv,noheader,nounits", "-lms", "500"]
            self._child = subprocess.Popen([program, *query, "-i", "0"], stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        self.figures: dict[str, float] = {}
        if self._child:
            self._child.terminate()
            lines = self._child.communicate()[0].splitlines()
            with suppress(ValueError):  # a figure that this GPU does not have
                columns = zip(*(map(float, line.split(",")) for line in lines if line.count(",") == 2), strict=True)
                self.figures = {name: statistics.median(each) for name, each in zip(SAMPLED, columns, strict=False)}
