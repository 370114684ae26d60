"""Cross-compilation of kernels for a GPU that is not present, and the resources that each uses there.

Triton compiles for the target that its active driver names. It caches a kernel by its source, the types of its
arguments, which of them are multiples of 16, its constants and its options; nothing else about a tensor counts. So a
fake driver and meta tensors compile exactly what a launch on that GPU will look up.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any, Final

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager

from mtnlg_parallel.kernels.tiles import on_compiled

from .build import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)")


class _FakeDriver:
    """Implements the part of Triton's driver that compilation calls."""

    def __init__(self, target: str) -> None:
        self.name, self.target = target, GPUTarget("cuda", int(target.removeprefix("sm_")), 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return self.name  # part of the key of compiled kernels

    def get_current_stream(self, device: str) -> int:
        del device
        return 0


def active_target() -> str:
    """The target of the active driver, such as ``sm_80``."""
    return f"sm_{driver.active.get_current_target().arch}"


def compile_launches(target: str, launches: Callable[[], object]) -> list[Any]:
    """Compile every kernel that ``launches`` launches on meta tensors for ``target``, such as ``sm_80``.

    Returns Triton's compiled kernels. The process keeps the fake driver and cannot launch on a GPU afterwards.
    """
    driver.set_active(_FakeDriver(target))
    compiled: dict[str, Any] = {}
    on_compiled.append(lambda kernel: compiled.update({kernel.hash: kernel}))
    try:
        launches()
    finally:
        on_compiled.pop()
    return [*compiled.values()]


def run_backward(*outputs: Tensor) -> None:
    """Launch the backward kernels of these outputs."""
    torch.autograd.backward(outputs, tuple(map(torch.empty_like, outputs)))


def describe(compiled: Any) -> Kernel:  # noqa: ANN401  (Triton has no annotations)
    """Read the resources of a compiled kernel with cuobjdump."""
    cubin = str(get_cache_manager(compiled.hash).get_file(f"{compiled.src.name}.cubin"))
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin]
    usage = USAGE.search(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    if usage is None:
        raise RuntimeError(f"{cubin}: cuobjdump reports no registers")
    registers, stack, local = map(int, usage.groups())
    # Shared memory comes from Triton's metadata: it is allocated at launch, and the cubin lists only CUDA's own.
    return Kernel(
        compiled.name.removeprefix("_"), _variant(compiled), registers, compiled.metadata.shared, stack + local
    )


def _variant(compiled: Any) -> str:  # noqa: ANN401  (as above)
    """Text that distinguishes the variants of a kernel: types, constants, divisibility by 16, warps."""
    source, words = compiled.src, []
    types = [kind.removeprefix("*") for kind in source.signature.values() if kind.startswith("*")]
    words += ["+".join(dict.fromkeys(types))]
    for number, (name, kind) in enumerate(source.signature.items()):
        if (number,) in source.constants:
            words += [f"{name}={source.constants[number,]}"]
        elif re.fullmatch(r"i\d+", kind) and not source.fn.params[number].do_not_specialize:
            words += [f"{name}=16n" if source.attrs.get((number,)) else f"{name}=any"]
    return " ".join([*words, f"warps={compiled.metadata.num_warps}"])
