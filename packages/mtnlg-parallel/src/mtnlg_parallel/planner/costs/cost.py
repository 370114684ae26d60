"""Cost of a piece of work on one rank, and how work of two kinds overlaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from mtnlg_parallel.planner.run import Run


OVERLAP_SHARE: Final = 0.5
"""Hidden share of an overlapped collective; the rest takes multiprocessors and bandwidth from the product."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one rank's GPU by kind of work, and the number of operations its host launches."""

    products: float = 0.0
    memory: float = 0.0
    collectives: float = 0.0
    launches: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """The sum of both."""
        return Cost(
            self.products + other.products,
            self.memory + other.memory,
            self.collectives + other.collectives,
            self.launches + other.launches,
        )

    def __mul__(self, n: float) -> Cost:
        """N times this cost."""
        return Cost(self.products * n, self.memory * n, self.collectives * n, self.launches * n)

    @property
    def busy(self) -> float:
        """Seconds in which the GPU computes or communicates."""
        return self.products + self.memory + self.collectives


class Phases(NamedTuple):
    """Cost of one micro-batch by phase."""

    forward: Cost
    backward: Cost
    recompute: Cost = Cost()
    weights: Cost = Cost()


def exposed(collective: float, beside: float, share: float = OVERLAP_SHARE) -> float:
    """Seconds that a collective adds to ``beside`` seconds of computing; ``share`` of their overlap is hidden."""
    return collective - share * min(collective, beside)


def memory_seconds(run: Run, size: float, kernels: int) -> float:
    """Seconds of element-wise kernels that move ``size`` bytes in all."""
    measured = run.cluster.measured
    return size / (run.cluster.gpu.memory_bandwidth * measured.memory) + kernels * measured.kernel_seconds
