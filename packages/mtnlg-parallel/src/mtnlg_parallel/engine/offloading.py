"""Activations kept in host memory from a pass forward until its backward (`train.offload_activations`).

    forward    autograd's saved tensors are noted by storage; when the pass ends each storage is copied to the host
    backward   the storages come back whole, and the saved tensors are the same views of them: equal to the last bit

On CUDA both ways are copies from and to pinned memory in a stream of their own: out beside the passes that follow, in
beside the one before, so that a rank holds the activations of few passes (`schedule.PASSES_ON_DEVICE`). What lives
longer than a pass, the weights, stays where it is. So does a pass whose backward follows at once.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class HostActivations:
    """What passes of one rank have saved for backward, in host memory; not the storages of tensors ``staying``."""

    def __init__(self, device: torch.device, staying: Iterable[Tensor]) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._staying = {tensor.untyped_storage().data_ptr() for tensor in staying}
        self._passes: dict[tuple[int, int], _Pass] = {}

    @contextmanager
    def moved_out(self, key: tuple[int, int]) -> Iterator[None]:
        """Move out what the forward pass ``key``, run inside, saves for backward."""
        moving = self._passes[key] = _Pass(self.device, self.stream, self._staying)
        with saved_tensors_hooks(moving.note, moving.restore):
            yield
        moving.move_out()

    def bring_back(self, key: tuple[int, int]) -> None:
        """Begin to copy back what a pass has saved, if it was moved out."""
        if key in self._passes:
            self._passes[key].bring_back()

    def drop(self, key: tuple[int, int]) -> None:
        """Forget a pass after its backward."""
        self._passes.pop(key, None)


class _View(NamedTuple):
    """A saved tensor: a view of one of its pass's storages."""

    storage: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Pass:
    """The storages of one pass: on the device while it runs, then on the host, then on the device again."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None, staying: set[int]) -> None:
        self._device, self._stream, self._staying = device, stream, staying
        self._numbers: dict[int, int] = {}  # by address
        self._on_device: list[Tensor] = []
        self._on_host: list[Tensor] = []
        self._arrived: torch.cuda.Event | None = None

    def note(self, tensor: Tensor) -> Tensor | _View:
        """What autograd keeps in place of a saved tensor. Storages stay until the pass ends, so no address recurs."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self._staying or not storage.nbytes():
            return tensor
        if address not in self._numbers:
            self._numbers[address] = len(self._on_device)
            self._on_device.append(torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage))
        offset = int(tensor.storage_offset())
        return _View(self._numbers[address], tensor.dtype, offset, tuple(tensor.shape), tensor.stride())

    def move_out(self) -> None:
        """Copy the storages to the host and let go of them."""
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._on_host = [self._copy(storage, torch.device("cpu")) for storage in self._on_device]
        self._on_device, self._numbers = [], {}

    def bring_back(self) -> None:
        """Copy the storages to the device, if not done yet."""
        if not self._on_device:
            self._on_device = [self._copy(storage, self._device) for storage in self._on_host]
            self._arrived = self._stream.record_event() if self._stream else None

    def restore(self, saved: Tensor | _View) -> Tensor:
        """The saved tensor, in backward."""
        if isinstance(saved, Tensor):
            return saved
        self.bring_back()
        storage = self._on_device[saved.storage]
        if self._arrived:
            backward = torch.cuda.current_stream(self._device)
            backward.wait_event(self._arrived)
            storage.record_stream(backward)
        whole = torch.empty(0, dtype=saved.dtype, device=self._device)
        return whole.set_(storage.untyped_storage(), saved.offset, saved.shape, saved.stride)

    def _copy(self, source: Tensor, to: torch.device) -> Tensor:
        """A copy in the stream, without waiting for it: the memory of either side is not used again before its end."""
        with torch.cuda.stream(self._stream):  # the current one, where there is none
            pinned: dict[str, Any] = {"pin_memory": True} if self._stream and to.type == "cpu" else {}
            copy = torch.empty(source.shape, dtype=torch.uint8, device=to, **pinned)
            copy.copy_(source, non_blocking=True)
        if self._stream and source.is_cuda:
            source.record_stream(self._stream)
        return copy
