"""A pickle read as data: nothing in it is imported, called or built, so a stranger's is safe to read.

A pickle is a program for a small stack machine. Here its numbers, texts, lists and dictionaries become themselves, the
name of a class or function becomes a `Global`, and whatever it would have called or built becomes a `Record` that
says so. What is read is then searched for what one expects, as JSON would be.
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Global:
    """The name of a class or function, never looked up."""

    module: str
    name: str


@dataclass(eq=False)
class Record:
    """What would have been built: ``what`` called with ``arguments``, then given ``state`` and ``items``."""

    what: object
    arguments: object
    state: object = None
    items: dict[Any, Any] = field(default_factory=dict)

    def is_a(self, module: str, name: str) -> bool:
        """Whether it would have been an object of this class, or the result of this function."""
        return self.what == Global(module, name)


class _Mark:
    """Where a group of values on the stack begins."""


_PUSHED: Final = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "GLOBAL"),
}
"""Opcodes whose argument is the value."""
_CONSTANTS: Final[dict[str, object]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_NEW: Final[dict[str, Callable[[], object]]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "MARK": _Mark}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_REMEMBERED: Final = {"BINGET", "LONG_BINGET"}
_REMEMBER: Final = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}
_BUILT: Final = {
    *("TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS"),
    *("STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID"),
}
_IGNORED: Final = {"PROTO", "FRAME"}
_STOP: Final = b"."
_READ: Final = _PUSHED | _CONSTANTS.keys() | _NEW.keys() | _TUPLES.keys() | _REMEMBERED | _REMEMBER | _BUILT | _IGNORED
_OPCODES: Final = {opcode.code.encode("latin-1"): opcode for opcode in pickletools.opcodes if opcode.name in _READ}
"""What protocols 2 to 5 write of data, classes and calls; nothing else is even decoded."""


def read(raw: bytes, place: Path) -> Any:  # noqa: ANN401  (whatever the pickle holds)
    """What the pickle ``raw`` of the file ``place`` holds; ``Failure`` where it is none, or needs more than we read."""
    machine = _Machine()
    try:
        for name, argument in _opcodes(BytesIO(raw)):
            machine.step(name, argument)
        return machine.stack.pop()
    except (ValueError, LookupError, TypeError) as error:
        raise Failure(f"{place}: no pickle that can be read as data: {error or type(error).__name__}") from None


def _opcodes(stream: BytesIO) -> Iterator[tuple[str, Any]]:
    """Name and argument of one opcode after the other."""
    while (code := stream.read(1)) != _STOP:
        if code not in _OPCODES:
            raise ValueError(f"opcode {code!r}" if code else "it ends too early")
        opcode = _OPCODES[code]
        if opcode.name == "GLOBAL":  # two lines as they are; pickletools would look for escapes in them
            yield opcode.name, Global(*(stream.readline().decode().removesuffix("\n") for _ in range(2)))
        else:
            yield opcode.name, opcode.arg.reader(stream) if opcode.arg else None


class _Machine:
    """The stack and the memo of the values seen before."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:  # noqa: ANN401  (an opcode's argument)
        """Carry out one opcode. Raises ``ValueError``, ``LookupError`` or ``TypeError`` where it cannot be."""
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _NEW:
            self.stack.append(_NEW[name]())
        elif name in _TUPLES:
            self.stack[-_TUPLES[name] :] = [tuple(self._top(_TUPLES[name]))]
        elif name in _REMEMBERED:
            self.stack.append(self.memo[argument])
        elif name in _REMEMBER:
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self._top(1)[0]
        elif name in _BUILT:
            self._build(name)

    def _build(self, name: str) -> None:
        match name:
            case "TUPLE":
                self.stack.append(tuple(self._group()))
            case "APPEND" | "APPENDS":
                values = self._group() if name == "APPENDS" else [self.stack.pop()]
                self._target(list).extend(values)
            case "SETITEM" | "SETITEMS":
                pairs = self._group() if name == "SETITEMS" else self._pop(2)
                target = self._target(dict, Record)
                items = target.items if isinstance(target, Record) else target
                items.update((_key(key), value) for key, value in zip(pairs[::2], pairs[1::2], strict=True))
            case "STACK_GLOBAL":
                self.stack.append(Global(*self._pop(2)))
            case "REDUCE" | "NEWOBJ":
                self.stack.append(Record(*self._pop(2)))
            case "BUILD":
                state = self.stack.pop()
                self._target(Record).state = state
            case "BINPERSID":
                self.stack.append(Record("persistent", self.stack.pop()))

    def _top(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("an empty stack")
        return self.stack[-count:]

    def _pop(self, count: int) -> list[Any]:
        values = self._top(count)
        del self.stack[-count:]
        return values

    def _group(self) -> list[Any]:
        """Pop the values above the last mark, and the mark."""
        values = []
        while not isinstance(value := self.stack.pop(), _Mark):
            values.append(value)
        return values[::-1]

    def _target(self, *kinds: type) -> Any:  # noqa: ANN401  (of one of ``kinds``)
        """The topmost value, which has to be of one of these kinds."""
        target = self.stack[-1]
        if not isinstance(target, kinds):
            raise TypeError(f"a {type(target).__name__} that is filled like a {kinds[0].__name__}")
        return target


def _key(key: object) -> object:
    # Nothing that contains other values: the hash of a tuple of tuples of … may take forever.
    if isinstance(key, str | int | Record):
        return key
    raise TypeError(f"a {type(key).__name__} for a key")
