"""The only place that waits for communication, so that the watchdog sees from a rank's stack that it waits.

``Work.wait`` is C++ and leaves no Python frame: called elsewhere, a waiting rank would look as if it computed. A
`Stopwatch` excludes these times.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from torch.distributed import Work


class Stopwatch:
    """Measures how long this rank works from creation to `stop`, excluding the time within `wait_for`.

    On CUDA the excluded time is that for which the current stream waits, by events: the host does not wait.
    """

    running: ClassVar[Stopwatch | None] = None

    def __init__(self, device: torch.device) -> None:
        self._on_gpu, self._marks = device.type == "cuda", list[Any]()
        Stopwatch.running = self
        self.mark()

    def mark(self) -> None:
        """Mark the start or the end of a wait."""
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
    """Return when ``work`` is done, or with NCCL when it is queued; at once if it is None."""
    if work is None:
        return
    if Stopwatch.running:
        Stopwatch.running.mark()
    work.wait()
    if Stopwatch.running:
        Stopwatch.running.mark()
