"""Waiting for communication that was begun: here alone, so that a stack shows the watchdog that its rank waits.

``Work.wait`` is C++ and leaves no frame: called elsewhere, a rank that waits would look as if it computed. And a
`Stopwatch` leaves these times out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch.distributed import Work


class Stopwatch:
    """Measures from its making to `stop` how long this rank works, the times within `wait_for` left out.

    On CUDA those are the times for which the current stream waits, by events: the host does not.
    """

    running: ClassVar[Stopwatch | None] = None

    def __init__(self, device: torch.device) -> None:
        self._on_gpu, self._marks = device.type == "cuda", list[Any]()
        Stopwatch.running = self
        self.mark()

    def mark(self) -> None:
        """Begin to wait, or go on."""
        if not self._on_gpu:
            self._marks.append(time.perf_counter())
            return
        import torch  # noqa: PLC0415  (the launcher imports this without torch)

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def stop(self) -> float:
        """Seconds of work."""
        Stopwatch.running = None
        self.mark()
        if self._on_gpu:
            self._marks[-1].synchronize()
        spans = zip(self._marks[::2], self._marks[1::2], strict=True)
        seconds: float = sum(one.elapsed_time(other) / 1e3 if self._on_gpu else other - one for one, other in spans)
        return seconds


def wait_for(work: Work | None) -> None:
    """Return when ``work`` is done; of NCCL when it is queued. None is done."""
    if work is None:
        return
    if Stopwatch.running:
        Stopwatch.running.mark()
    work.wait()
    if Stopwatch.running:
        Stopwatch.running.mark()
