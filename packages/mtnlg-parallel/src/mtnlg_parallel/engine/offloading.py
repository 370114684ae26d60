"""Offloads activations to host memory between a forward pass and its backward (`train.offload_activations`).

    forward    records the storages of autograd's saved tensors; when the pass ends, copies each storage to the host
    backward   copies the storages back, and rebuilds the saved tensors as the same views of them, bit for bit

On CUDA the copies use pinned memory and one stream per direction: to the host during the passes that follow, to the
device during the previous backward pass. A rank holds the activations of few passes (`schedule.PASSES_ON_DEVICE`)
however far its host runs ahead: all of this memory belongs to the compute stream, which waits for a copy before its
source is freed, in a forward pass for the copy of the pass before the last. Weights, which outlive a pass, are not
offloaded, nor is a pass whose backward follows at once.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from mtnlg_parallel.schedules.schedule import LEAVING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Streams(NamedTuple):
    """CUDA streams for copies to the host and back."""

    out: torch.cuda.Stream
    back: torch.cuda.Stream


class HostActivations:
    """Tensors that one rank's passes saved for backward, in host memory; storages of ``staying`` stay on the device."""

    def __init__(self, device: torch.device, staying: Iterable[Tensor]) -> None:
        self.device = device
        self.streams = Streams(torch.cuda.Stream(device), torch.cuda.Stream(device)) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._staying = {tensor.untyped_storage().data_ptr() for tensor in staying}
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._leaving = deque[_Pass]()

    @contextmanager
    def moved_out(self, key: tuple[int, int]) -> Iterator[None]:
        """Offload the tensors that the forward pass ``key``, run in this context, saves for backward."""
        while len(self._leaving) > LEAVING:
            self._leaving.popleft().let_go()
        moving = self._passes[key] = _Pass(self.device, self.streams, self._staying)
        with saved_tensors_hooks(moving.note, moving.restore):
            yield
        moving.move_out()
        if self.streams:
            self._leaving.append(moving)
        else:
            moving.let_go()

    def bring_back(self, key: tuple[int, int]) -> None:
        """Start to copy an offloaded pass's tensors back; if not yet freed on the device, just keep them there."""
        if passed := self._passes.get(key):
            if passed in self._leaving:
                self._leaving.remove(passed)
            passed.bring_back()

    def drop(self, key: tuple[int, int]) -> None:
        """Free a pass after its backward."""
        if passed := self._passes.pop(key, None):
            passed.let_go()


class _View(NamedTuple):
    """A saved tensor: a view of one of its pass's storages."""

    storage: int
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Pass:
    """The storages of one pass: on the device while it runs, then on the host, then on the device again."""

    def __init__(self, device: torch.device, streams: Streams | None, staying: set[int]) -> None:
        self._device, self._streams, self._staying = device, streams, staying
        self._numbers: dict[int, int] = {}  # by address
        self._on_device: list[Tensor] = []
        self._on_host: list[Tensor] = []
        self._copied: torch.cuda.Event | None = None  # unless the computing stream has waited for it
        self._is_back = False

    def note(self, tensor: Tensor) -> Tensor | _View:
        """What autograd keeps in place of a saved tensor. No address recurs, as storages live until the pass ends."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if tensor.device.type != self._device.type or address in self._staying or not storage.nbytes():
            return tensor  # scalars of a generator may lie on the host
        if address not in self._numbers:
            self._numbers[address] = len(self._on_device)
            self._on_device.append(torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage))
        offset = int(tensor.storage_offset())
        return _View(self._numbers[address], tensor.dtype, offset, tuple(tensor.shape), tensor.stride())

    def move_out(self) -> None:
        """Start to copy the storages to the host."""
        pinned: dict[str, Any] = {"pin_memory": True} if self._device.type == "cuda" else {}
        self._on_host = [torch.empty(storage.shape, dtype=torch.uint8, **pinned) for storage in self._on_device]
        self._copy(self._on_device, self._on_host, self._streams and self._streams.out)
        self._numbers = {}

    def let_go(self) -> None:
        """Free the storages on the device, once their copy is done."""
        self._wait()
        self._on_device = []

    def bring_back(self) -> None:
        """Start to copy the storages to the device, unless they are there."""
        if not self._on_device:
            self._is_back = True
            self._on_device = [torch.empty_like(storage, device=self._device) for storage in self._on_host]
            self._copy(self._on_host, self._on_device, self._streams and self._streams.back)

    def restore(self, saved: Tensor | _View) -> Tensor:
        """Return the saved tensor to backward."""
        if isinstance(saved, Tensor):
            return saved
        self.bring_back()
        if self._is_back:  # else it has not left yet
            self._wait()
        whole = torch.empty(0, dtype=saved.dtype, device=self._device)
        storage = self._on_device[saved.storage].untyped_storage()
        return whole.set_(storage, saved.offset, saved.shape, saved.stride)

    def _copy(self, sources: list[Tensor], copies: list[Tensor], stream: torch.cuda.Stream | None) -> None:
        """Copy in ``stream``, after the work queued so far in the compute stream."""
        if stream:
            stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream) if stream else nullcontext():
            for copy, source in zip(copies, sources, strict=True):
                copy.copy_(source, non_blocking=True)
        self._copied = stream.record_event() if stream else None

    def _wait(self) -> None:
        """Make the compute stream wait for the last copy."""
        if self._copied:
            torch.cuda.current_stream(self._device).wait_event(self._copied)
            self._copied = None
