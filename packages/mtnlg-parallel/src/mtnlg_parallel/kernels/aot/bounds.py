"""The share of a GPU's memory bandwidth that a compiled kernel can reach, from its binary alone.

    memory    bytes moved / bandwidth
    busy      clocks of the busiest unit of a multiprocessor for its share of the warps' instructions, over memory
    bound     least bytes / bytes moved · min(1, 1 / busy)

A launch moves every tensor that it is given once, those that it overwrites or only notes sums in twice, and of causal
scores reads half; the least leaves the notes out. A warp's instructions are those of its binary outside loops, branches
not taken included, and those of its loops as often as the launch's shape asks. Four warps issue one each a clock; the
units behind them take fewer (`UNITS`). So a bound holds for a kernel whose loads never wait for each other; only a
measurement on the GPU says how near it comes.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from math import ceil
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from mtnlg_model.console import Failure
from mtnlg_model.files import write_text
from mtnlg_parallel.kernels import gelu, loss, norm, rotary, rounding, softmax, swiglu
from mtnlg_parallel.kernels.dropout import bias_dropout_add
from mtnlg_parallel.model.eight_bit import BACKWARD, FORWARD

from .build import converts_to_eight_bits
from .compilation import active_target, collect_launches, describe, disassemble, run_backward

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from .compilation import Launch


class Gpu(NamedTuple):
    """Figures of a data sheet; the clock is that of its peak rate of bf16."""

    name: str
    target: str
    processors: int
    clock: float
    bandwidth: float
    goal: float  # least bound


GPUS: Final = (
    Gpu("A100 80 GB", "sm_80", 108, 1.41e9, 2.039e12, 0.95),
    Gpu("H100 SXM", "sm_90", 132, 1.83e9, 3.35e12, 0.90),
    Gpu("H200 SXM", "sm_90", 132, 1.83e9, 4.8e12, 0.90),
    Gpu("B200", "sm_100", 148, 1.85e9, 8e12, 0.0),
)
TOKENS, HIDDEN, MLP, HEADS, VOCABULARY = 2048, 20480, 10240, 16, 6400
"""A micro-batch of one sequence, and a rank's share of MT-NLG at tensor-parallel degree 8; heads have 160 values."""

SCRATCH: Final = {"sums_at", "means_at", "counters_at"}
PASSES: Final = {
    ("_softmax_forward", "p_at"): 1.5,
    ("_softmax_backward", "grad_at"): 1.5,
    ("_softmax_backward", "p_at"): 0.5,
    ("_loss_gradient", "logits_at"): 2.0,
}
"""How often a tensor is moved, where not once: half of causal scores are read, and all written."""

UNITS: Final = {
    "issue": (r"", 1 / 4, 1 / 4),
    "fma": (r"F(ADD|MUL|FMA)|IMAD|HFMA2", 1 / 2, 1 / 4),
    "imad": (r"IMAD", 1 / 2, 1 / 2),
    "alu": (
        r"(?!F(ADD|MUL|FMA)|IMAD|HFMA2|MUFU|[IF]2[IF]\b|FLO|POPC|SHFL|LD|ST|ATOM|U|S2|R2UR|CS2R|BRA|B?EXIT|NOP|B(AR|SS|SY))",
        1 / 2,
        1 / 2,
    ),
    "xu": (r"MUFU|[IF]2[IF]\b|FLO|POPC", 2, 2),
    "lsu": (r"SHFL|(LD|ST)[GS]", 1, 1),
}
"""Units of a multiprocessor: its opcodes, and the clocks that a warp's instruction takes it on an A100 and later.

Lanes are those of the CUDA programming guide's table of throughputs: 64 for integers and comparisons, 64 and from the
H100 on 128 for fp32, of which 64 multiply integers, 16 for exponentials and reciprocals, 32 for shuffles; 128 bytes of
loads. Products of integers that keep 64 bits or the upper 32 are taken for two, and conversions to 8 bits."""

INSTRUCTION: Final = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", re.MULTILINE)
GUARD: Final = re.compile(r"^@!?U?P\w+\s+")
WIDE: Final = {".WIDE": 2, ".HI": 2, ".128": 4, ".64": 2, ".E4M3": 2, ".E5M2": 2}
"""Turns of a unit for one instruction."""

BRANCH: Final = re.compile(r"\bBRA\b.* `?\(?(0x[0-9a-f]+)")


class Bound(NamedTuple):
    """A row of the table."""

    gpu: str
    kernel: str
    bound: float
    busy: float  # the busiest unit's share of the memory's time
    unit: str
    registers: int
    megabytes: float
    instructions: float  # an element of the largest tensor
    variant: str
    measured: str = ""  # no GPU has run them yet


def launch_bounded() -> None:
    """Forward and backward of every operation of MT-NLG's layer and head on one rank, and of Llama's kinds of them."""

    def leaf(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.bfloat16, device="meta", requires_grad=True)

    x_SBH, row, wide_SBF = leaf(TOKENS, 1, HIDDEN), leaf(HIDDEN), leaf(TOKENS, 1, MLP)
    run_backward(norm.layer_norm(x_SBH, row, row, 1e-5))
    run_backward(norm.rms_norm(x_SBH, row, 1e-5))
    run_backward(gelu.bias_gelu(wide_SBF, leaf(MLP)))
    run_backward(swiglu.swiglu(wide_SBF, wide_SBF))
    for rate in (0.0, 0.1):
        run_backward(bias_dropout_add(x_SBH, row, x_SBH, rate, True))
        run_backward(*norm.bias_dropout_add_norm(x_SBH, row, x_SBH, rate, True, row, row, 1e-5))
        run_backward(*norm.dropout_add_rms_norm(x_SBH, x_SBH, rate, True, row, 1e-5))
        q_BNSD = leaf(1, HEADS, TOKENS, 160)
        run_backward(softmax.core_attention(q_BNSD, q_BNSD, q_BNSD, 1.0, rate))
    angles_SB11R = leaf(TOKENS, 1, 1, 1, 128).detach()
    run_backward(rotary.rotate(leaf(TOKENS, 1, HEADS, 1, 128), angles_SB11R, angles_SB11R))
    logits_NV, targets_N = leaf(TOKENS, VOCABULARY).detach(), torch.empty(TOKENS, dtype=torch.int64, device="meta")
    loss.gradient(logits_NV, targets_N, 0, loss.statistics(logits_NV, targets_N, 0)[0], 1.0)
    if converts_to_eight_bits(active_target()):
        rounding.rounded(x_SBH[:, 0].detach(), FORWARD, False)
        for dtype in (FORWARD, BACKWARD):
            (values_RK, _), _ = rounding.rounded(x_SBH[:, 0].detach(), dtype, True)
        rounding.transpose(values_RK)


def bounds_of(target: str) -> list[Bound]:
    """The bound of every kernel that `launch_bounded` launches, on every GPU of this target."""
    launches = {
        compiled.hash: (compiled, arguments) for compiled, arguments in collect_launches(target, launch_bounded)
    }
    gpus = [gpu for gpu in GPUS if gpu.target == target]
    return sorted(_bound(gpu, launch) for gpu in gpus for launch in launches.values())


def _bound(gpu: Gpu, launch: Launch) -> Bound:
    compiled, arguments = launch
    kernel = describe(compiled)
    least, moved = _bytes(compiled.name, arguments)
    elements = max(x.numel() for x in _tensors(arguments).values())
    warps = elements / _elements_of_a_program(arguments) * compiled.metadata.num_warps
    code = _instructions_of_a_warp(compiled, arguments)
    clocks = {unit: warps * each for unit, each in _clocks(code, gpu.target).items()}
    unit = max(clocks, key=clocks.__getitem__)
    busy = clocks[unit] / (gpu.clock * gpu.processors) / (moved / gpu.bandwidth)
    return Bound(
        gpu.name,
        kernel.name,
        round(least / moved * min(1, 1 / busy), 3),
        round(busy, 2),
        unit,
        kernel.registers,
        round(least / 1e6, 1),
        round(32 * warps * sum(code.values()) / elements, 1),
        kernel.variant,
    )


def _tensors(arguments: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in arguments.items() if isinstance(value, Tensor) and name not in SCRATCH}


def _bytes(kernel: str, arguments: dict[str, Any]) -> tuple[float, float]:
    """Least bytes of a launch, and those that it moves."""
    least = sum(x.nbytes * PASSES.get((kernel, name), 1.0) for name, x in _tensors(arguments).items())
    return least, least + sum(2 * arguments[name].nbytes for name in SCRATCH & set(arguments))


def _elements_of_a_program(arguments: dict[str, Any]) -> int:
    """How many elements of its largest tensor a program computes."""
    if "ELEMENTS" in arguments:
        return int(arguments["ELEMENTS"])
    if "HALF" in arguments:
        return int(arguments["ROWS"]) * 2 * int(arguments["HALF"])
    if "ROWS" in arguments:
        return int(arguments["ROWS"]) * int(arguments["COLUMNS"])
    return int(arguments["columns" if "columns" in arguments else "t"])


ROW_GRADIENTS: Final = ("weight_grad_at", "shift_grad_at", "bias_grad_at")


def _trips(kernel: str, arguments: dict[str, Any]) -> list[tuple[float, int]]:
    """How often a program runs the body of each of its kernel's loops, in the order of the source, inner after outer.

    With it, loads of the body where the compiler may have unrolled it, else 0. Slabs' sums are added up by one program
    for all slabs' programs, so each has its share of that.
    """
    columns, block = arguments.get("columns", arguments.get("t", 1)), arguments.get("COLUMNS", 1)
    stride, blocks = arguments.get("STRIDE", 1), ceil(columns / block)
    sums = [(1 / stride, 0)] * sum(arguments.get(name) is not None for name in ROW_GRADIENTS)
    if kernel == "_norm_forward":
        return [(blocks - 1, 0), (blocks, 0)]
    if kernel == "_norm_backward":
        part, at_once = min(arguments["PART"], columns), 1024 // arguments["BLOCK"]
        shares = arguments["ROWS"] / at_once * ceil(columns / part) / blocks
        means = [(shares, 0), (shares * part / arguments["BLOCK"], 0), (1, 0)]
        return [*means, (arguments["ROWS"] / stride, 0), *sums]
    if kernel in {"_dropout_backward", "_gelu_backward"}:
        return [(arguments["ROWS"] / stride, 1 if kernel == "_dropout_backward" else 2), *sums]
    return [(blocks, 0)] if kernel == "_loss_statistics" else []


def _instructions_of_a_warp(compiled: Any, arguments: dict[str, Any]) -> dict[str, float]:  # noqa: ANN401  (Triton has no annotations)
    """How often a warp issues each opcode."""
    code = [(int(at, 16), GUARD.sub("", text)) for at, text in INSTRUCTION.findall(disassemble(compiled))]
    code = code[: 1 + max(number for number, (_, text) in enumerate(code) if "EXIT" in text)]  # padding follows
    jumps = [(int(found[1], 16), at) for at, text in code if (found := BRANCH.search(text))]
    loops, trips = sorted((start, end) for start, end in jumps if start < end), _trips(compiled.name, arguments)
    if len(loops) != len(trips):
        raise Failure(
            f"{compiled.name}: {len(loops)} loops in its binary, not the {len(trips)} of aot/bounds.py: _trips"
        )
    issued: dict[str, float] = dict(Counter(_opcode(text) for _, text in code))
    for (start, end), (count, loads) in zip(loops, trips, strict=True):
        inner = [(first, last) for first, last in loops if start < first and last < end]
        body = Counter(
            _opcode(text)
            for at, text in code
            if start <= at <= end and not any(first <= at <= last for first, last in inner)
        )
        unrolled = sum(body[opcode] for opcode in body if opcode.startswith("LDG")) // loads if loads else 1
        for opcode, each in body.items():
            issued[opcode] += (count / unrolled - 1) * each
    return issued


def _opcode(text: str) -> str:
    return text.split(maxsplit=1)[0]


def _clocks(issued: dict[str, float], target: str) -> dict[str, float]:
    """Clocks of a multiprocessor's units for a warp's instructions."""
    clocks = dict.fromkeys(UNITS, 0.0)
    for unit, (pattern, first, later) in UNITS.items():
        for opcode, count in issued.items():
            if re.match(pattern, opcode):
                wide = 1 if unit == "issue" else next((each for mark, each in WIDE.items() if mark in opcode), 1)
                clocks[unit] += count * wide * (first if target == "sm_80" else later)
    return clocks


def write_bounds(folder: Path, targets: Iterable[str]) -> None:
    """Write the bounds on all GPUs of these targets to ``folder/bounds.csv``; its rows of other GPUs stay."""
    known, path = sorted({gpu.target for gpu in GPUS} & set(targets)), folder / "bounds.csv"
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        rows = [[str(value) for value in row] for bounds in pool.map(bounds_of, known) for row in bounds]
    if path.exists():
        old = csv.reader(path.read_text(encoding="utf-8").splitlines()[1:])
        others = {gpu.name for gpu in GPUS if gpu.target not in known}
        rows += [row for row in old if row[0] in others]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Bound._fields)
    writer.writerows(sorted(rows))
    write_text(path, text.getvalue())
