"""Streams and events of a GPU that is not there, and what could happen at once on it.

Every stream and every host thread has a clock (Fidge 1988, Mattern 1989) that says how much of each other has happened
before what it does next. `Streams` sees every operation, and finds two of the same storage, one of which writes, that
no event and no wait puts in an order; memory that is given to another tensor while a stream still uses it; and places
where the host waits for the GPU. Operations run when they are called, so numbers and order of calls are as without it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_leaves

from training.stub_gpu import caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ATEN = torch.ops.aten
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_", "detach", "lift_fresh"}
COPIES = {"_to_copy", "copy_"}
READS = {"equal", "nonzero", "is_nonzero", "masked_select"}


class Timeline:
    """A stream or a host thread: what of all of them has happened before its next operation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: dict[Timeline, int] = {}

    def join(self, other: Timeline) -> None:
        """Do nothing before what ``other`` has done."""
        self.seen = {line: max(self.seen.get(line, 0), other.seen.get(line, 0)) for line in self.seen | other.seen}

    def act(self) -> Access:
        """Do something."""
        self.seen[self] = self.seen.get(self, 0) + 1
        return Access(self, self.seen[self])

    def is_after(self, access: Access) -> bool:
        """Whether what it does next comes after an access."""
        return self.seen.get(access.line, 0) >= access.number


class Access(NamedTuple):
    """An operation of a timeline."""

    line: Timeline
    number: int


class Stream(Timeline):
    """As `torch.cuda.Stream`."""

    def __init__(self, device: object = None, name: str = "side stream") -> None:
        super().__init__(name)
        self.device = device

    def wait_stream(self, other: Stream) -> None:
        """As `torch.cuda.Stream.wait_stream`."""
        self.join(other)

    def wait_event(self, event: Event) -> None:
        """As `torch.cuda.Stream.wait_event`."""
        self.join(event)

    def record_event(self) -> Event:
        """As `torch.cuda.Stream.record_event`."""
        event = Event()
        event.join(self)
        return event

    def synchronize(self) -> None:
        """As `torch.cuda.Stream.synchronize`."""
        current.host.join(self)


class Event(Timeline):
    """As `torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False) -> None:
        super().__init__("event")
        self.times = enable_timing

    def record(self) -> None:
        """As `torch.cuda.Event.record`."""
        self.join(current.stream)

    def synchronize(self) -> None:
        """As `torch.cuda.Event.synchronize`."""
        current.host.join(self)


class Current:
    """Who acts: a host thread, on a stream."""

    def __init__(self) -> None:
        self.host, self.stream = Timeline("host"), Stream(name="computing stream")


current = Current()


class Job:
    """As a future of a thread that began when it was submitted, and ends when it is waited for."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        before, current.host = current.host, Timeline("thread")
        current.host.join(before)
        try:
            self._value = function(*arguments)
        finally:
            self._host, current.host = current.host, before

    def result(self) -> Any:  # noqa: ANN401  (the function's)
        """As `concurrent.futures.Future.result`."""
        current.host.join(self._host)
        return self._value


class Executor:
    """As `concurrent.futures.ThreadPoolExecutor`."""

    def __init__(self, threads: int, name: str, _initializer: object = None) -> None:
        assert threads == 1
        assert name

    def submit(self, function: Callable[..., Any], *arguments: object) -> Job:
        """As `concurrent.futures.Executor.submit`."""
        return Job(function, arguments)


@contextmanager
def on(stream: Stream | None) -> Iterator[None]:
    """As `torch.cuda.stream`."""
    before, current.stream = current.stream, stream or current.stream
    try:
        yield
    finally:
        current.stream = before


def install() -> None:
    """Have torch use these, and lists of real tensors' numbers be real."""
    vars(torch.cuda).update(
        Stream=Stream,
        Event=Event,
        stream=on,
        current_stream=lambda _device=None: current.stream,
        synchronize=lambda _device=None: wait_for_all("synchronize"),
    )
    listed = torch.Tensor.tolist

    def tolist(tensor: Tensor) -> Any:  # noqa: ANN401  (torch's)
        with _disable_current_modes():
            return listed(tensor)

    def wait(tensor: Tensor) -> list[int]:
        if tensor.is_cuda:
            wait_for_all("tolist")
        return [1] * tensor.numel()

    torch.Tensor.tolist = tolist  # type: ignore[method-assign, assignment]
    FakeTensor.tolist = wait  # type: ignore[method-assign, assignment]


def wait_for_all(reason: str) -> None:
    """Have the host wait for the current stream, where somebody watches."""
    for mode in _get_current_dispatch_mode_stack():
        if isinstance(mode, Streams):
            mode.wait(reason)


class Storage(NamedTuple):
    """What is known of a storage: the stream it was allocated on, its last write, and reads since."""

    owner: Timeline
    writes: list[Access]
    reads: dict[Timeline, Access]


class Streams(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds races and waits of the operations within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.races = set[str]()
        self.waits = Counter[str]()
        self._storages: dict[int, Storage] = {}
        self._pinned = set[int]()

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401  (torch's)
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        with self:  # what is made of other operations, in inference mode
            if (decomposed := func.decompose(*args, **kwargs)) is not NotImplemented:
                return decomposed
        name = func.__name__.partition(".")[0]
        if name == "_local_scalar_dense" and args[0].is_cuda:
            self.wait(name)
            return 1.0 if args[0].is_floating_point() else int(args[0].dtype != torch.bool)
        is_pinned = bool(kwargs.pop("pin_memory", False)) or name == "_pin_memory"  # of which fake tensors know nothing
        made = args[0].clone() if name == "_pin_memory" else func(*args, **kwargs)
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        results = [value for value in tree_leaves(made) if isinstance(value, Tensor)]
        for tensor in results:
            self._storage(tensor)
            if is_pinned or (name == "_to_copy" and tensor.is_cpu and kwargs.get("non_blocking")):
                self._pinned.add(tensor.untyped_storage()._cdata)
        is_view = any(result.alias_info and not result.alias_info.is_write for result in func._schema.returns)
        if name in ALLOCATIONS or is_view:
            return made
        written = {id(tensor) for tensor in results} | {
            id(value)
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info and argument.alias_info.is_write
        }
        self._access(
            func, [(tensor, id(tensor) in written) for tensor in {id(each): each for each in given + results}.values()]
        )
        if (name in READS and given[0].is_cuda) or (
            name in COPIES and self._waits(func, args, kwargs, given + results)
        ):
            self.wait(name)
        return made

    def wait(self, name: str) -> None:
        """Take note of a wait for all that the current stream was given."""
        self.waits[f"{name} {caller()}"] += 1
        current.host.join(current.stream)

    def _waits(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor]) -> bool:  # noqa: ANN401  (torch's)
        """Whether a copy makes the host wait: between host and GPU, unless it says otherwise and is pinned."""
        if len({tensor.device.type for tensor in tensors}) == 1:
            return False
        says_otherwise = kwargs.get("non_blocking") or (func is ATEN.copy_.default and len(args) > 2 and args[2])
        pinned = any(tensor.untyped_storage()._cdata in self._pinned for tensor in tensors)
        return not (says_otherwise and pinned)

    def _access(self, func: Any, tensors: list[tuple[Tensor, bool]]) -> None:  # noqa: ANN401  (an operation)
        on_gpu = any(tensor.is_cuda for tensor, _ in tensors)
        line: Timeline = current.stream if on_gpu else current.host
        if on_gpu:
            line.join(current.host)
        access = line.act()
        for tensor, writes in tensors:
            storage = self._storage(tensor)
            if any(
                not line.is_after(other) for other in [*storage.writes, *(storage.reads.values() if writes else ())]
            ):
                self.races.add(f"{func} in {line.name} {caller()}")
            if writes:
                storage.writes[:] = [access]
                storage.reads.clear()
            else:
                storage.reads[line] = access

    def _storage(self, tensor: Tensor) -> Storage:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = Storage(current.stream if tensor.is_cuda else current.host, [], {})
            weakref.finalize(storage, self._free, key, tensor.is_cuda)
        return self._storages[key]

    def _free(self, key: int, on_gpu: bool) -> None:
        """The next tensor of the stream that a storage was allocated on may have its memory."""
        storage = self._storages.pop(key)
        self._pinned.discard(key)
        if not on_gpu:
            return
        owner = Timeline("allocator")
        owner.join(storage.owner)
        owner.join(current.host)
        for access in [*storage.writes, *storage.reads.values()]:
            if not owner.is_after(access):
                self.races.add(f"memory freed in use by {access.line.name} {caller()}")
