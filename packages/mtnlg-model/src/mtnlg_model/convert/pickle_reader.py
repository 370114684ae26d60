"""Read a pickle as data: nothing is imported, called or constructed, so an untrusted pickle is safe to read.

A pickle is a program for a small stack machine. Numbers, strings, lists and dictionaries are read as themselves, the
name of a class or function as a `Global`, and every call or construction as a `Record` of its arguments. The caller
searches the result for the expected structure, as in JSON.

Values may be shared, so a few hundred bytes can describe a structure whose copy, hash, comparison or ``repr`` would not
end: check the types of values, but never traverse all of their contents. Reading takes one step per opcode and makes at
most one container per `BYTES_A_CONTAINER` bytes, so memory is at most a multiple of the pickle's size.
"""

from __future__ import annotations

import pickletools
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or function, which is never looked up."""

    module: str
    name: str


@dataclass(eq=False, repr=False, slots=True)
class Record:
    """An object left unbuilt: ``what`` called with ``arguments``, then given ``state`` and ``items``."""

    what: object
    arguments: object
    state: object = None
    items: dict[Any, Any] = field(default_factory=dict)

    def is_a(self, module: str, name: str) -> bool:
        """Whether the object would come from this class or function."""
        return self.what == Global(module, name)


BYTES_A_CONTAINER: Final = 4
"""Minimum bytes of a pickle per list, dictionary, tuple or record in it; torch writes 8.7 or more."""
SPARE_CONTAINERS: Final = 1000
LARGEST_KEY: Final = 1 << 53
"""Limit on integer keys: integers far beyond it can be chosen to have equal hashes."""

_MARK: Final = object()
"""Marks the start of a group of values on the stack."""


# The opcodes of protocols 2 to 5 for data, classes and calls; any other is refused.
_PUSH: Final = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES", "GLOBAL"),
}
"""Opcodes that push their argument."""
_CONSTANTS: Final[dict[str, object]] = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
    "MARK": _MARK,
}
_NEW: Final[dict[str, Callable[[], object]]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_MEMO_GET: Final = {"BINGET", "LONG_BINGET"}
_MEMO_PUT: Final = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}
_MAKE_CONTAINERS: Final = {*_NEW, *_TUPLES, "TUPLE", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BINPERSID", "GLOBAL"}
_IGNORED: Final = {"PROTO", "FRAME", "STOP"}


def read(raw: bytes, path: Path) -> Any:  # noqa: ANN401  (any pickled value)
    """The contents of the pickle ``raw`` from file ``path``. Raises ``Failure`` if it is damaged or unsupported."""
    machine = _Machine(SPARE_CONTAINERS + len(raw) // BYTES_A_CONTAINER)
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in the name of a class
            for opcode, argument, _ in pickletools.genops(raw):
                machine.step(opcode.name, argument)
        return machine.stack.pop()
    except (ValueError, LookupError, TypeError) as error:
        raise Failure(f"{path}: not a pickle that can be read as data: {error or type(error).__name__}") from None


class _Machine:
    """The pickle machine: a stack, and a memo of values to refer to again."""

    def __init__(self, containers: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._containers_left = containers

    def step(self, name: str, argument: Any) -> None:  # noqa: ANN401  (an opcode's argument)
        """Execute one opcode. Raises ``ValueError``, ``LookupError`` or ``TypeError`` if it is invalid."""
        if name in _PUSH:
            self.stack.append(Global(*argument.split(" ", 1)) if name == "GLOBAL" else argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _NEW:
            self.stack.append(_NEW[name]())
        elif name in _TUPLES:
            self.stack[-_TUPLES[name] :] = [tuple(self._top(_TUPLES[name]))]
        elif name in _MEMO_GET:
            self.stack.append(self.memo[argument])
        elif name in _MEMO_PUT:
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self._top(1)[0]
        else:
            self._build(name)
        if name in _MAKE_CONTAINERS:
            self._containers_left -= 1
            if self._containers_left < 0:
                raise ValueError("too many containers for its length")

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
                module, name = self._pop(2)
                if not (isinstance(module, str) and isinstance(name, str)):
                    raise TypeError("the name of a class is not a string")
                self.stack.append(Global(module, name))
            case "REDUCE" | "NEWOBJ":
                self.stack.append(Record(*self._pop(2)))
            case "BUILD":
                state = self.stack.pop()
                self._target(Record).state = state
            case "BINPERSID":
                self.stack.append(Record("persistent", self.stack.pop()))
            case _ if name not in _IGNORED:
                raise ValueError(f"unsupported opcode {name}")

    def _top(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("stack is empty")
        return self.stack[-count:]

    def _pop(self, count: int) -> list[Any]:
        values = self._top(count)
        del self.stack[-count:]
        return values

    def _group(self) -> list[Any]:
        """Pop the values above the last mark, and the mark."""
        values = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _target(self, *types: type) -> Any:  # noqa: ANN401  (of one of ``types``)
        """The topmost value. Raises ``TypeError`` if it is of none of these types."""
        target = self.stack[-1]
        if not isinstance(target, types):
            raise TypeError(f"expected a {types[0].__name__} to add to, found a {type(target).__name__}")
        return target


def _key(key: object) -> object:
    # No containers: hashing deeply nested tuples may take forever.
    if isinstance(key, str | Record) or (isinstance(key, int) and abs(key) < LARGEST_KEY):
        return key
    raise TypeError(f"a {type(key).__name__} as a key")
