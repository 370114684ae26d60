"""Cross-compilation of kernels for a GPU that is not present, and the resources that each takes there.

Triton compiles for the target that its active driver names. It caches a kernel by its source, the types of its
arguments, which of them are multiples of 16, its constants and its options; nothing else about a tensor counts. So a
fake driver and meta tensors compile exactly what a launch on that GPU will look up.
"""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path
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
SPILL: Final = re.compile(r"\b(?:LDL|STL)\b")
EXECUTABLE: Final = 4  # SHF_EXECINSTR of ELF
INSTRUCTION_BYTES: Final = 16  # since compute capability 7.0


class _FakeDriver:
    """The part of Triton's driver that compilation calls."""

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


Launch = tuple[Any, dict[str, Any]]
"""A kernel as Triton returns it, and the arguments of its launch by name."""


def compile_launches(target: str, launches: Callable[[], object]) -> list[Kernel]:
    """Compile every kernel that ``launches`` launches on meta tensors for ``target``, such as ``sm_80``.

    The process keeps the fake driver and cannot launch on a GPU afterwards.
    """
    kernels = {compiled.hash: compiled for compiled, _ in collect_launches(target, launches)}
    return sorted(map(describe, kernels.values()))


def collect_launches(target: str, launches: Callable[[], object]) -> list[Launch]:
    """Compile as `compile_launches` does; every launch, in order."""
    driver.set_active(_FakeDriver(target))
    collected: list[Launch] = []

    def collect(*launch: Any) -> None:  # noqa: ANN401  (Triton has no annotations)
        collected.append(launch)

    on_compiled.append(collect)
    try:
        launches()
    finally:
        on_compiled.remove(collect)
    return collected


def run_backward(*outputs: Tensor) -> None:
    """Launch what the gradients of these outputs need."""
    torch.autograd.backward(outputs, tuple(map(torch.empty_like, outputs)))


def disassemble(compiled: Any) -> str:  # noqa: ANN401  (as above)
    """Instructions of a kernel, as cuobjdump prints them."""
    return _cuobjdump("-sass", _cubin(compiled))


def _cubin(compiled: Any) -> Path:  # noqa: ANN401  (as above)
    return Path(get_cache_manager(compiled.hash).get_file(f"{compiled.src.name}.cubin"))


def describe(compiled: Any) -> Kernel:  # noqa: ANN401  (as above)
    """Resources that a kernel takes."""
    cubin = _cubin(compiled)
    usage = USAGE.search(_cuobjdump("--dump-resource-usage", cubin))
    if usage is None:
        raise RuntimeError(f"{cubin}: cuobjdump reports no registers")
    registers, stack, local = map(int, usage.groups())
    return Kernel(
        name=compiled.name.removeprefix("_"),
        variant=_variant(compiled),
        registers=registers,
        shared=compiled.metadata.shared,  # allocated at launch; the cubin names only CUDA's own
        local=stack + local,
        # Only kernels with local memory can spill, and disassembly takes longer than compilation.
        spills=len(SPILL.findall(_cuobjdump("-sass", cubin))) if stack + local else 0,
        instructions=_code_bytes(cubin.read_bytes()) // INSTRUCTION_BYTES,
        folder=cubin.parent.name,
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


def _cuobjdump(option: str, cubin: Path) -> str:
    return subprocess.run(
        [knobs.nvidia.cuobjdump.path, option, str(cubin)], check=True, capture_output=True, text=True
    ).stdout


def _code_bytes(elf: bytes) -> int:
    """Bytes of all executable sections of a 64-bit ELF file."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    width, count = struct.unpack_from("<2H", elf, 0x3A)
    sections = [struct.unpack_from("<8xQ16xQ", elf, headers + n * width) for n in range(count)]  # flags, bytes
    return sum(size for flags, size in sections if flags & EXECUTABLE)
