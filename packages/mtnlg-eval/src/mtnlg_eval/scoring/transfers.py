"""Asynchronous copies of scores from a GPU: they arrive once computed, without waiting for the next batch.

A plain copy waits for all work queued on the GPU. On a CPU nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Arriving:
    """A result of the current stream on its way to the host."""

    def __init__(self, result: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        if result.is_cuda:
            result = result.to("cpu", non_blocking=True)  # into pinned memory
            self._copied = torch.cuda.current_stream().record_event()
        self._host = result

    def wait(self) -> Tensor:
        """Wait for the result and return it, on the host."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host
