"""Copies between the host and a GPU beside the GPU's work: neither waits for what it has been given before.

A plain copy waits for all of that. So what goes to a GPU goes from pinned memory, and scores leave it as soon as they
are computed, not when the next batch is, too. On a CPU nothing is copied.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Work


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on ``device``."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def wait_on_host(work: Work, device: torch.device) -> None:
    """Have the host wait for ``work``, and no stream that computes."""
    if device.type != "cuda":
        work.wait()
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        work.wait()
    stream.synchronize()


class Arriving:
    """A result on its way to the host: what the current stream computes, or what ``work`` receives."""

    def __init__(self, result: Tensor, work: Work | None = None) -> None:
        self._result, self._work = result, work
        self._copied: torch.cuda.Event | None = None
        if result.is_cuda:
            stream = _stream(result.device) if work else torch.cuda.current_stream(result.device)
            with torch.cuda.stream(stream):
                self._receive()
                self._host = result.to("cpu", non_blocking=True)  # into pinned memory
            self._copied = stream.record_event()

    def _receive(self) -> None:
        """Have the stream, or on a CPU the host, wait for the work."""
        if self._work is not None:
            self._work.wait()

    def wait(self) -> Tensor:
        """The result on the host, once it is there."""
        if self._copied is None:
            self._receive()
            return self._result
        self._copied.synchronize()
        return self._host


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of results that are received: what the GPU computes meanwhile does not wait for them."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
