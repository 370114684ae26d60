"""Loops compiled by numba, which is imported only at the first call of a loop, since it takes 0.65 s and 130 MB."""

from __future__ import annotations

from functools import cache, cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def jit(loop: F) -> F:
    """Compile a loop with numba, cached on disk."""
    return cast("F", _Loop(loop))


class _Loop:
    """A loop that is compiled when it is first called, from Python or from another loop."""

    def __init__(self, loop: Callable[..., Any]) -> None:
        self.py_func = loop
        update_wrapper(self, loop)

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        import numba  # noqa: PLC0415  (at the first call)

        _teach_wide_vectors()
        return cast("Callable[..., Any]", numba.njit(cache=True)(self.py_func))

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401  (those of the loop)
        return self.compiled(*arguments)

    @property
    def _numba_type_(self) -> object:
        """The numba type of this loop when another loop calls it."""
        import numba  # noqa: PLC0415

        return numba.typeof(self.compiled)


def wide_vectors() -> None:
    """In a compiled loop: use vectors of 512 bits, where LLVM prefers 256 although the processor has 512.

    Minima of 32-bit products are a quarter faster with them.
    """


@cache
def _teach_wide_vectors() -> None:
    from numba import types  # noqa: PLC0415
    from numba.extending import lower_builtin, type_callable  # noqa: PLC0415

    @type_callable(wide_vectors)  # type: ignore[untyped-decorator]
    def _type(_context: object) -> Callable[[], object]:
        return lambda: types.none

    @lower_builtin(wide_vectors)  # type: ignore[untyped-decorator]
    def _generate(context: Any, builder: Any, _signature: object, _values: object) -> object:  # noqa: ANN401
        if isinstance(attributes := builder.function.attributes, set):  # whose own ``add`` knows few of LLVM's
            set.add(attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()
