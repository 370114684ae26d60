"""Compiling kernels for a GPU that is not there, and reading off what each takes of it.

Triton compiles for the target that its active driver names, and finds a compiled kernel again by its source, the types
of its arguments, which of them are multiples of 16, its constants and options: nothing else about a tensor counts. So a
stand-in for the driver and meta tensors give exactly what a launch on that GPU will look up.
"""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.cache import get_cache_manager

from .build_record import Kernel
from .tiles import on_compiled

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE: Final = re.compile(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)")
SPILL: Final = re.compile(r"\b(?:LDL|STL)\b")
EXECUTABLE: Final = 4  # SHF_EXECINSTR of ELF
INSTRUCTION_BYTES: Final = 16  # since compute capability 7.0


class _StandIn:
    """As much of a driver as compiling needs."""

    def __init__(self, target: str) -> None:
        self.name, self.target = target, GPUTarget("cuda", int(target.removeprefix("sm_")), 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        return self.name  # by which a kernel remembers for what it was compiled

    def get_current_stream(self, device: str) -> int:
        del device
        return 0


def compiled_for(target: str, ask: Callable[[], object]) -> list[Kernel]:
    """Every kernel that ``ask`` launches on meta tensors, compiled for ``target``, such as ``sm_80``.

    The process keeps the stand-in for its driver: it cannot launch on a GPU any more.
    """
    driver.set_active(_StandIn(target))
    found: dict[str, Any] = {}

    def note(compiled: Any) -> None:  # noqa: ANN401  (Triton has no annotations)
        found[compiled.hash] = compiled

    on_compiled.append(note)
    try:
        ask()
    finally:
        on_compiled.remove(note)
    return sorted(map(_described, found.values()))


def _described(compiled: Any) -> Kernel:  # noqa: ANN401  (as above)
    cubin = Path(get_cache_manager(compiled.hash).get_file(f"{compiled.src.name}.cubin"))
    usage = USAGE.search(_cuobjdump("--dump-resource-usage", cubin))
    if usage is None:
        raise RuntimeError(f"{cubin}: cuobjdump names no registers")
    registers, stack, local = map(int, usage.groups())
    return Kernel(
        name=compiled.name.removeprefix("_"),
        variant=_variant(compiled),
        registers=registers,
        shared=compiled.metadata.shared,  # all of it is asked for at launch; the cubin names what CUDA keeps for itself
        local=stack + local,
        # Only what has local memory can touch it, and disassembling takes longer than compiling.
        spills=len(SPILL.findall(_cuobjdump("-sass", cubin))) if stack + local else 0,
        instructions=_code_bytes(cubin.read_bytes()) // INSTRUCTION_BYTES,
        folder=cubin.parent.name,
    )


def _variant(compiled: Any) -> str:  # noqa: ANN401  (as above)
    """What tells this variant of a kernel from its others, in words."""
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
    """Of all executable sections of a 64-bit ELF file."""
    (headers,) = struct.unpack_from("<Q", elf, 0x28)
    width, count = struct.unpack_from("<2H", elf, 0x3A)
    sections = [struct.unpack_from("<8xQ16xQ", elf, headers + n * width) for n in range(count)]  # flags, bytes
    return sum(size for flags, size in sections if flags & EXECUTABLE)
