"""Copies between the host and a GPU beside the GPU's work: neither waits for what it has been given before.

A plain copy waits for all of that. So what goes to a GPU goes from pinned memory, and scores leave it as soon as they
are computed, not when the next batch is, too. On a CPU nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on ``device``."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class Arriving:
    """A result of the current stream on its way to the host."""

    def __init__(self, result: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        if result.is_cuda:
            result = result.to("cpu", non_blocking=True)  # into pinned memory
            self._copied = torch.cuda.current_stream().record_event()
        self._host = result

    def wait(self) -> Tensor:
        """The result on the host, once it is there."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host
