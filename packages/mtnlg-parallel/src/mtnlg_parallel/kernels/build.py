"""Kernels built ahead of time, with no GPU present: those that a recipe's ranks will launch, or all variants.

A rank that launches a kernel for the first time compiles it, unless Triton's cache has it. Built in a few processes of
their own, since Triton has one target a process.
"""

from __future__ import annotations

import csv
import io
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from mtnlg_model.console import Failure, UsageFailure, progress
from mtnlg_model.files import write_text

from . import build_record
from .build_record import Kernel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

SHARED_KIB: Final = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_103": 227, "sm_120": 99}
"""Shared memory that a block may have at most (CUDA C++ Programming Guide, technical specifications)."""

PARTS: Final = ("bf16", "fp16", "fp32")
"""Into which all variants are cut, for as many processes to share."""


class Built(NamedTuple):
    """The kernels of a target, and whether they had been there before."""

    kernels: list[Kernel]
    already: bool

    def __str__(self) -> str:
        """In words."""
        registers, shared = (max(getattr(kernel, key) for kernel in self.kernels) for key in ("registers", "shared"))
        most = f"at most {registers} registers a thread and {shared:,} bytes of shared memory a block, no spills"
        return f"{len(self.kernels)} kernels {'are there already' if self.already else 'built'}: {most}"


def build(recipe: Recipe | None, targets: Sequence[str]) -> dict[str, Built]:
    """Build for each of ``targets`` what the recipe asks for, or all variants where it is None, unless it is there.

    Raises ``UsageFailure`` for a target that is none and for no targets where there is no GPU either, and ``Failure``
    where Triton is missing or where a kernel spills registers or needs more shared memory than the target has.
    """
    targets = _checked(targets)
    there = {target: build_record.read(target, recipe) for target in targets}
    tasks = [(target, part) for target in targets if there[target] is None for part in ([recipe] if recipe else PARTS)]
    found: dict[str, set[Kernel]] = {target: set(kernels or ()) for target, kernels in there.items()}
    if tasks:
        workers = min(len(tasks), os.cpu_count() or 1)
        with (
            ProcessPoolExecutor(workers, get_context("spawn")) as pool,
            progress("building kernels", len(tasks), "parts") as advance,
        ):
            for (target, _), kernels in zip(tasks, pool.map(_compiled, *zip(*tasks, strict=True)), strict=True):
                found[target].update(kernels)
                advance(1)
    for target in {target for target, _ in tasks}:
        check(target, found[target])
        build_record.write(target, recipe, sorted(found[target]))
    return {target: Built(sorted(found[target]), there[target] is not None) for target in targets}


def _checked(targets: Sequence[str]) -> list[str]:
    if find_spec("triton") is None:
        raise Failure("Triton is not installed; pip install 'mtnlg-parallel[kernels]'")
    if os.environ.get("TRITON_INTERPRET"):
        raise UsageFailure("TRITON_INTERPRET is set, so that kernels are interpreted; unset it to build them")
    here = this_gpu()
    if not targets and here is None:
        raise UsageFailure(f"no GPU here; name what to build for, such as --target {next(iter(SHARED_KIB))}")
    chosen = list(dict.fromkeys(targets or [str(here)]))
    if unknown := [target for target in chosen if target not in SHARED_KIB]:
        raise UsageFailure(f"--target {unknown[0]}: there is {', '.join(SHARED_KIB)}")
    return chosen


def this_gpu() -> str | None:
    """The target that this machine's GPU is; None where there is no NVIDIA GPU."""
    if torch.version.hip or not torch.cuda.is_available():
        return None
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def _compiled(target: str, part: Recipe | str) -> list[Kernel]:
    """In a process of its own."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # megatron-core decorates with torch.compile what we never call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what megatron-core could use and we do not
        from . import compilation, launch_signatures  # noqa: PLC0415  (import Triton and megatron-core)

        ask = (
            partial(launch_signatures.every_variant, part)
            if isinstance(part, str)
            else partial(launch_signatures.any_rank, part)
        )
        return compilation.compiled_for(target, ask)


def check(target: str, kernels: set[Kernel]) -> None:
    """Raise ``Failure`` where a kernel spills registers or needs more shared memory than ``target`` has."""
    limit, refused = SHARED_KIB[target] * 1024, []
    for kernel in sorted(kernels):
        which = f"{kernel.name} ({kernel.variant})"
        if kernel.local:
            figures = f"{kernel.local} bytes of local memory a thread, {kernel.spills} loads and stores of it"
            refused += [f"{which} spills: {kernel.registers} registers, {figures}"]
        if kernel.shared > limit:
            refused += [f"{which} needs {kernel.shared:,} bytes of shared memory a block, of {limit:,}"]
    if refused:
        raise Failure(f"{target}: {'; '.join(refused)}")


def missing(recipe: Recipe, target: str) -> str | None:
    """What to tell who is about to train on ``target``; None where its kernels are built, or there are none."""
    if find_spec("triton") is None or target not in SHARED_KIB or build_record.read(target, recipe) is not None:
        return None
    ahead = f"mtnlg-parallel build-kernels RECIPE --target {target} does so ahead"
    return f"kernels for {target} are not built: every rank will compile them at its first step; {ahead}"


def write_table(folder: Path, built: dict[str, Built]) -> None:
    """Write each target's kernels to ``folder/TARGET.csv``; the same kernels give the same bytes."""
    columns = Kernel._fields[:-1]  # a folder in a cache is nobody's business
    for target, (kernels, _) in built.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([getattr(kernel, column) for column in columns] for kernel in kernels)
        write_text(folder / f"{target}.csv", text.getvalue())
