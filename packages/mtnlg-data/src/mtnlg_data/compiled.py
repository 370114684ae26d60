"""Loops compiled by numba, and what stands in for them where Python is newer than numba's wheels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

HAS_NUMBA = find_spec("numba") is not None


def compiled(instead: F) -> Callable[[F], F]:
    """Decorate loops over arrays: numba compiles them once a machine; without numba ``instead`` is the function.

    ``instead`` is the same function in NumPy and gives the same bits, so that where a run goes on never shows.
    """

    def choose(loops: F) -> F:
        if not HAS_NUMBA:
            return instead
        import numba  # noqa: PLC0415  (only where there is one)

        return cast("F", numba.njit(cache=True)(loops))

    return choose


def compiled_if_possible(loops: F) -> F:
    """Decorate loops that, without numba, run as they stand: others call them, or nothing in NumPy is like them."""
    return compiled(instead=loops)(loops)
