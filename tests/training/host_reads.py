"""Counts, on a CPU, where a program would make the host wait for a GPU."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, Self

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero"}
"""Operations whose result the host waits for: item(), numbers and truth values, sizes that depend on data."""


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts by function, of this project or of a library, what would make the host wait for a GPU."""

    class _Copies(TorchFunctionMode):
        """Those that torch does not dispatch on a CPU."""

        def __init__(self, found: Counter[str]) -> None:
            super().__init__()
            self._found = found

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401  (torch's)
            if getattr(func, "__name__", "") in {"tolist", "cpu", "numpy"}:
                self._found[HostReads.caller()] += 1
            return func(*args, **(kwargs or {}))

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = Counter[str]()
        self._copies = self._Copies(self.found)

    def __enter__(self) -> Self:
        self._copies.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._copies.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401  (torch's)
        if func.namespace == "aten" and func.__name__.split(".")[0] in READS:
            self.found[self.caller()] += 1
        return func(*args, **(kwargs or {}))

    @staticmethod
    def caller() -> str:
        """The innermost function that is not torch's or this file's, by file and name."""
        frame = sys._getframe(1)
        while "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__:
            assert frame.f_back
            frame = frame.f_back
        return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"
