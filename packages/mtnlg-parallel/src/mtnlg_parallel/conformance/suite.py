"""Checks many cases, several at a time."""

from __future__ import annotations

import itertools
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

import torch

from mtnlg_parallel.engine.build import engine_class

from .cases import covering, draw, listed, matrix
from .compare import Result, check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from .cases import Case


def fixed_cases(engine: str, strength: int = 3) -> list[Case]:
    """Those of ``cases.toml``, and of the matrix those that cover every combination of ``strength`` factors' values."""
    unsupported = engine_class(engine).unsupported
    return [
        *(case for case in listed() if not unsupported(case.recipe)),
        *covering([case for case in matrix() if not unsupported(case.recipe)], strength),
    ]


def drawn_cases(engine: str, seed: int, first: int = 0) -> Iterator[Case]:
    """An endless iterator of cases drawn from a seed, all supported by the engine."""
    unsupported = engine_class(engine).unsupported
    return (draw(seed, number, unsupported) for number in itertools.count(first))


def run_cases(
    engine: str,
    cases: Iterable[Case],
    jobs: int = 1,
    seconds: float = float("inf"),
    device: Literal["auto", "cpu"] = "cpu",
) -> Iterator[Result]:
    """Check cases in order, ``jobs`` at a time; after ``seconds`` no new case starts, unless none is running."""
    deadline, threads = time.monotonic() + seconds, torch.get_num_threads()
    torch.set_num_threads(1)  # of the plain loop; the ranks have one each
    running: deque[Future[Result]] = deque()
    try:
        with ThreadPoolExecutor(jobs, "case") as pool:
            for case in cases:
                if running and time.monotonic() >= deadline:
                    break
                running.append(pool.submit(check, case, engine, device))
                if len(running) > jobs:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
    finally:
        torch.set_num_threads(threads)
