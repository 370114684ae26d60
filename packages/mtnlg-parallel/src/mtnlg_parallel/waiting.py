"""Waiting for communication that was begun: here alone, so that a stack shows the watchdog that its rank waits.

``Work.wait`` is C++ and leaves no frame: called elsewhere, a rank that waits would look as if it computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Work


def wait_for(work: Work) -> None:
    """Return when ``work`` is done; of NCCL when it is queued."""
    work.wait()
