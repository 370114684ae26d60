"""Ahead-of-time compilation of kernels, with no GPU present: those that a recipe's ranks launch, or all variants.

A rank compiles a kernel at its first launch unless Triton's cache has it. A record beside that cache lists what was
built for a target. Its file name holds a digest of everything that a recipe's kernels depend on, so a record that
exists is valid, unless the cache has since lost a kernel. Builds run in processes of their own, since Triton has one
target a process.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.util import find_spec
from itertools import filterfalse
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from mtnlg_model.console import Failure, UsageFailure, progress
from mtnlg_model.files import write_json, write_text
from mtnlg_parallel.kernels.dispatch import OLDEST_OF_EIGHT_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_parallel.recipe import Recipe

SHARED_KIB: Final = {"sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227, "sm_103": 227, "sm_120": 99}
"""Most shared memory of a block (CUDA C++ Programming Guide, technical specifications)."""

VARIANT_DTYPES: Final = ("bf16", "fp16", "fp32")
"""All variants are built in one process per dtype."""

SOURCES: Final = Path(__file__).parents[1]
"""Folder of the kernels' sources."""


class Kernel(NamedTuple):
    """A compiled kernel and the resources it takes."""

    name: str
    variant: str  # argument types, divisibility by 16, constants, warps
    registers: int  # a thread
    shared: int  # bytes a block
    local: int  # bytes a thread in the GPU's memory: arrays and spilled registers
    spills: int  # instructions that load or store local memory
    instructions: int  # padding included
    folder: str  # in Triton's cache


class Built(NamedTuple):
    """The kernels of a target, and whether an earlier build left them in the cache."""

    kernels: list[Kernel]
    cached: bool

    def __str__(self) -> str:
        """Number of kernels and the most that one of them takes."""
        registers, shared = (max(getattr(kernel, key) for kernel in self.kernels) for key in ("registers", "shared"))
        limits = f"at most {registers} registers a thread and {shared:,} bytes of shared memory a block, no spills"
        return f"{len(self.kernels)} kernels {'already built' if self.cached else 'built'}: {limits}"


def build_kernels(recipe: Recipe | None, targets: Sequence[str]) -> dict[str, Built]:
    """Build a recipe's kernels, or all variants for None, for each target whose cache lacks them.

    Without ``targets`` this machine's GPU is the target. Raises ``UsageFailure`` for an unknown target, or none and no
    GPU, and ``Failure`` if Triton is missing or a kernel spills registers or exceeds the target's shared memory.
    """
    targets = _resolve_targets(targets)
    if recipe and recipe.train.precision == "fp8" and (old := [*filterfalse(converts_to_eight_bits, targets)]):
        raise UsageFailure(f'--target {old[0]} has no products of 8 bits, as of train.precision = "fp8"; sm_89 has')
    cached = {target: read_record(target, recipe) for target in targets}
    pieces = [recipe] if recipe else VARIANT_DTYPES
    tasks = [(target, piece) for target in targets if cached[target] is None for piece in pieces]
    kernels: dict[str, set[Kernel]] = {target: set(record or ()) for target, record in cached.items()}
    if tasks:
        workers = min(len(tasks), os.cpu_count() or 1)
        with (
            ProcessPoolExecutor(workers, get_context("spawn")) as pool,
            progress("building kernels", len(tasks), "parts") as advance,
        ):
            results = pool.map(_compile_in_worker, *zip(*tasks, strict=True))
            for (target, _), compiled in zip(tasks, results, strict=True):
                kernels[target].update(compiled)
                advance(1)
    for target in {target for target, _ in tasks}:
        check_limits(target, kernels[target])
        write_record(target, recipe, sorted(kernels[target]))
    return {target: Built(sorted(kernels[target]), cached[target] is not None) for target in targets}


def converts_to_eight_bits(target: str) -> bool:
    """Whether GPUs of ``target`` have numbers of 8 bits."""
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
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # megatron-core uses torch.compile on functions we never call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # megatron-core warns of optional packages
        from . import compilation, launch_signatures  # noqa: PLC0415  (import Triton and megatron-core)

        launches = (
            partial(launch_signatures.launch_all_variants, piece)
            if isinstance(piece, str)
            else partial(launch_signatures.launch_recipe, piece)
        )
        return compilation.compile_launches(target, launches)


def check_limits(target: str, kernels: set[Kernel]) -> None:
    """Raise ``Failure`` if a kernel spills registers or needs more shared memory than ``target`` has."""
    limit, problems = SHARED_KIB[target] * 1024, []
    for kernel in sorted(kernels):
        label = f"{kernel.name} ({kernel.variant})"
        if kernel.local:
            local = f"{kernel.local} bytes of local memory a thread, {kernel.spills} loads and stores of it"
            problems += [f"{label} spills: {kernel.registers} registers, {local}"]
        if kernel.shared > limit:
            problems += [f"{label} needs {kernel.shared:,} bytes of shared memory a block, of {limit:,}"]
    if problems:
        raise Failure(f"{target}: {'; '.join(problems)}")


def not_built_warning(recipe: Recipe, target: str) -> str | None:
    """Warning for training on ``target`` without a build; None if the kernels are built, or none would be used."""
    if find_spec("triton") is None or target not in SHARED_KIB or read_record(target, recipe) is not None:
        return None
    command = f"mtnlg-parallel build-kernels RECIPE --target {target}"
    return f"kernels for {target} are not built: every rank compiles them at its first step, unless you run {command}"


def write_table(folder: Path, built: dict[str, Built]) -> None:
    """Write each target's kernels to ``folder/TARGET.csv``; the same kernels give the same bytes."""
    columns = Kernel._fields[:-1]  # the cache folder differs between machines
    for target, (kernels, _) in built.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([getattr(kernel, column) for column in columns] for kernel in kernels)
        write_text(folder / f"{target}.csv", text.getvalue())


def read_record(target: str, recipe: Recipe | None) -> list[Kernel] | None:
    """Kernels built for ``target`` and this recipe, or all variants; None unless all are still in Triton's cache."""
    path = _record_path(target, recipe)
    if not path.exists():
        return None
    kernels = [Kernel(**kernel) for kernel in json.loads(path.read_text(encoding="utf-8"))["kernels"]]
    return kernels if all((_triton_cache() / kernel.folder).is_dir() for kernel in kernels) else None


def write_record(target: str, recipe: Recipe | None, kernels: Sequence[Kernel]) -> None:
    """Record the kernels built for ``target`` and this recipe, or all variants."""
    record = _identity(target, recipe) | {"kernels": [kernel._asdict() for kernel in kernels]}
    write_json(_record_path(target, recipe), record)


def _record_path(target: str, recipe: Recipe | None) -> Path:
    digest = hashlib.sha256(json.dumps(_identity(target, recipe), sort_keys=True).encode()).hexdigest()
    return _triton_cache() / "mtnlg-parallel" / f"{target}-{digest[:16]}.json"


def _triton_cache() -> Path:
    """``TRITON_CACHE_DIR``, or ``.triton/cache`` in the home folder."""
    from triton import knobs  # noqa: PLC0415  (the extra `kernels`)

    return Path(knobs.cache.dir)


def _identity(target: str, recipe: Recipe | None) -> dict[str, object]:
    """Everything that the compiled kernels depend on."""
    import triton  # noqa: PLC0415  (as above)

    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCES.rglob("*.py")))).hexdigest()
    settings = recipe and {
        "model": recipe.model.model_dump(mode="json", exclude={"layers", "init_std"}),
        "tp": recipe.layout.tp,
        "sequence_parallel": recipe.train.sequence_parallel,
        "micro_batch": recipe.train.micro_batch,
        "precision": recipe.train.precision,
    }
    return {"target": target, "triton": triton.__version__, "sources": digest, "recipe": settings}
