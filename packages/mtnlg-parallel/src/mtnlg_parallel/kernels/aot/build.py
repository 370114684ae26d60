"""Compiles kernels ahead of time, with no GPU present: those that a recipe's ranks launch, or all variants.

A rank compiles a kernel at its first launch unless Triton's cache (``TRITON_CACHE_DIR``) has it. A build fills that
cache; kernels already in it are not compiled again. Builds run in separate processes, since Triton has one target per
process.
"""

from __future__ import annotations

import csv
import io
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import filterfalse
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from mtnlg_data.engine.machine import cores
from mtnlg_model.console import Failure, UsageFailure, progress
from mtnlg_model.files import write_text
from mtnlg_parallel.kernels.dispatch import OLDEST_OF_EIGHT_BITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from mtnlg_parallel.recipe import Recipe

SHARED_KIB: Final = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_103": 227, "sm_120": 99}
"""Maximum shared memory per block, in KiB (CUDA C++ Programming Guide, technical specifications)."""

VARIANT_DTYPES: Final = ("bf16", "fp16", "fp32")
"""Dtypes of "all variants"; each dtype is built in its own process."""


class Kernel(NamedTuple):
    """A compiled kernel and the resources it uses."""

    name: str
    variant: str  # argument types, divisibility by 16, constants, warps
    registers: int  # a thread
    shared: int  # bytes a block
    local: int  # bytes a thread in the GPU's memory: arrays and spilled registers


def build_kernels(recipe: Recipe | None, targets: Sequence[str]) -> dict[str, list[Kernel]]:
    """Build a recipe's kernels, or all variants for None, for each target.

    Without ``targets`` this machine's GPU is the target. Raises ``UsageFailure`` for an unknown target, or if there is
    neither target nor GPU; ``Failure`` if Triton is missing, or a kernel spills registers or exceeds shared memory.
    """
    targets = _resolve_targets(targets)
    if recipe and recipe.train.precision == "fp8" and (old := [*filterfalse(converts_to_eight_bits, targets)]):
        raise UsageFailure(f'--target {old[0]} has no 8-bit products, as of train.precision = "fp8"; sm_89 has')
    tasks = [(target, piece) for target in targets for piece in ([recipe] if recipe else VARIANT_DTYPES)]
    kernels: dict[str, set[Kernel]] = {target: set() for target in targets}
    with (
        ProcessPoolExecutor(min(len(tasks), cores()), get_context("spawn")) as pool,
        progress("building kernels", len(tasks), "parts") as advance,
    ):
        for (target, _), compiled in zip(tasks, pool.map(_compile_in_worker, *zip(*tasks, strict=True)), strict=True):
            kernels[target].update(compiled)
            advance(1)
    for target, built in kernels.items():
        check_limits(target, built)
    return {target: sorted(built) for target, built in kernels.items()}


def converts_to_eight_bits(target: str) -> bool:
    """Whether GPUs of ``target`` have 8-bit floating point."""
    return divmod(int(target.removeprefix("sm_")), 10) >= OLDEST_OF_EIGHT_BITS


def _resolve_targets(targets: Sequence[str]) -> list[str]:
    if find_spec("triton") is None:
        raise Failure("Triton is not installed; pip install 'mtnlg-parallel[kernels]'")
    if os.environ.get("TRITON_INTERPRET"):
        raise UsageFailure("TRITON_INTERPRET is set, so kernels are interpreted; unset it to build them")
    gpu = this_gpu()
    if not targets and gpu is None:
        raise UsageFailure(f"no GPU here; name a target, such as --target {next(iter(SHARED_KIB))}")
    resolved = list(dict.fromkeys(targets or [str(gpu)]))
    if unknown := [target for target in resolved if target not in SHARED_KIB]:
        raise UsageFailure(f"--target {unknown[0]}: use {', '.join(SHARED_KIB)}")
    return resolved


def this_gpu() -> str | None:
    """Target of this machine's GPU, such as ``sm_80``; None if there is no NVIDIA GPU."""
    if torch.version.hip or not torch.cuda.is_available():
        return None
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def _compile_in_worker(target: str, piece: Recipe | str) -> list[Kernel]:
    from . import compilation, launch_signatures  # noqa: PLC0415  (import Triton)

    launch: Any = launch_signatures.launch_all_variants if isinstance(piece, str) else launch_signatures.launch_recipe
    return [*map(compilation.describe, compilation.compile_launches(target, partial(launch, piece)))]


def check_limits(target: str, kernels: Iterable[Kernel]) -> None:
    """Raise ``Failure`` if a kernel spills registers or needs more shared memory than ``target`` has."""
    limit, problems = SHARED_KIB[target] * 1024, []
    for kernel in sorted(kernels):
        label = f"{kernel.name} ({kernel.variant})"
        if kernel.local:
            problems += [
                f"{label} spills: {kernel.registers} registers, {kernel.local} bytes of local memory per thread"
            ]
        if kernel.shared > limit:
            problems += [f"{label} needs {kernel.shared:,} bytes of shared memory per block, of {limit:,}"]
    if problems:
        raise Failure(f"{target}: {'; '.join(problems)}")


def summary(kernels: Sequence[Kernel]) -> str:
    """Number of kernels, and the largest registers and shared memory that one of them uses, as text."""
    registers, shared = (max(getattr(kernel, key) for kernel in kernels) for key in ("registers", "shared"))
    limits = f"at most {registers} registers per thread and {shared:,} bytes of shared memory per block, no spills"
    return f"{len(kernels)} kernels built: {limits}"


def write_table(folder: Path, built: dict[str, list[Kernel]]) -> None:
    """Write each target's kernels to ``folder/TARGET.csv``; the same kernels give the same bytes."""
    for target, kernels in built.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([Kernel._fields, *kernels])
        write_text(folder / f"{target}.csv", text.getvalue())
