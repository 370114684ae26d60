"""Cross-compiled kernels: limits are enforced, launches find what was built, and the tables are complete."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: nothing can be compiled")

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "docs" / "kernels"
SOURCES = ROOT / "packages" / "mtnlg-parallel" / "src" / "mtnlg_parallel" / "kernels"
TARGETS = ("sm_80", "sm_90", "sm_100")
OF_EIGHT_BITS = {"largest", "rounding"}
"""Kernels that GPUs without numbers of 8 bits have no use for."""

GREEDY = """
import sys

import torch
import triton
import triton.language as tl

from mtnlg_parallel.kernels.aot import build, compilation
from mtnlg_parallel.kernels.tiles import launch


@triton.jit
def spilling(x_at, COLUMNS: tl.constexpr):
    at = tl.arange(0, COLUMNS)
    x = tl.load(x_at + at)
    tl.store(x_at + at, x / tl.sum(x, 0))


@triton.jit
def transposing(x_at, SIDE: tl.constexpr):
    row, column = tl.arange(0, SIDE)[:, None], tl.arange(0, SIDE)[None, :]
    tl.store(x_at + row * SIDE + column, tl.trans(tl.load(x_at + row * SIDE + column)))


def launches():
    x = torch.empty(1 << 16, device="meta")
    launch(spilling, (1,), x, COLUMNS=8192, num_warps=1)
    launch(transposing, (1,), x, SIDE=256, num_warps=16)


try:
    build.check_limits("sm_80", map(compilation.describe, compilation.compile_launches("sm_80", launches)))
except build.Failure as failure:
    sys.exit(str(failure))
"""

LAUNCHED = """
import os
import types

import torch
from triton import knobs
from triton.runtime import driver

from mtnlg_parallel.kernels import dropout, gelu, loss, norm, rotary, rounding, swiglu
from mtnlg_parallel.kernels.aot import compilation


def train(device):
    x, b = (torch.zeros(*s, dtype=torch.bfloat16, device=device, requires_grad=True) for s in ((8, 2, 256), (256,)))
    gelu.bias_gelu(x, b).sum().backward()
    swiglu.swiglu(x, x).sum().backward()
    qkv, angles = x.view(8, 2, 2, 4, 32), torch.zeros(8, 1, 1, 1, 32, dtype=x.dtype, device=device)
    for part in (qkv[..., :2, :], qkv[..., 2:3, :]):
        rotary.rotate(part, angles, angles).sum().backward()
    dropout.bias_dropout_add(x, b, x, 0.1).sum().backward()
    sum(norm.bias_dropout_add_norm(x, b, x, 0.1, b, b, 1e-5)).sum().backward()
    factor, _ = rounding.rounded(x.detach().view(16, 256), torch.float8_e5m2, True)
    rounding.transpose(factor.values)
    logits, targets = torch.zeros(8, 4, device=device), torch.zeros(8, dtype=torch.int64, device=device)
    loss.gradient(logits, targets, 4, loss.statistics(logits, targets, 4)[0], 0.125)


class IdleDriver(compilation._FakeDriver):  # loads and launches, without effect
    launcher_cls = staticmethod(lambda source, metadata: lambda *arguments: launches.append(arguments))
    utils = types.SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": 1 << 20},
        load_binary=lambda *arguments: (None, None, 0, 0, 1024),
    )


launches = []
built = compilation.compile_launches("sm_90", lambda: train("meta"))
before = len(os.listdir(knobs.cache.dir))
driver.set_active(IdleDriver("sm_90"))
train("cpu")
print(len(built), "built;", len(launches), "launches;", len(os.listdir(knobs.cache.dir)) - before, "compiled anew")
"""


CONVERTED = """
import re

import torch

from mtnlg_parallel.kernels import rounding
from mtnlg_parallel.kernels.aot import compilation
from mtnlg_parallel.model.eight_bit import BACKWARD, FORWARD


def launches():
    for dtype in (FORWARD, BACKWARD):
        rounding.rounded(torch.empty(256, 256, dtype=torch.bfloat16, device="meta"), dtype, True)


for compiled in compilation.compile_launches("sm_90", launches):
    print(*sorted(set(re.findall(r"(?:cvt[.]rn[.]satfinite|div|mul|min|max)[.]\\S*", compiled.asm["ptx"]))))
"""


def run(*words: str, cache: Path) -> subprocess.CompletedProcess[str]:
    # Other tests interpret kernels and may have set it.
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = inherited | {"TRITON_CACHE_DIR": str(cache)}
    return subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True, env=environment)


def test_spills_and_excess_shared_memory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    error = run(str(tmp_path / "greedy.py"), cache=tmp_path).stderr
    assert re.search(r"spilling \(fp32 COLUMNS=8192 warps=1\) spills: 255 registers, [1-9]\d* bytes", error)
    assert re.search(r"transposing \(fp32 SIDE=256 warps=16\) needs 262,144 bytes .*, of 166,912", error)


def test_a_launch_finds_what_was_built_on_meta_tensors(tmp_path: Path) -> None:
    (tmp_path / "launched.py").write_text(LAUNCHED)
    done = run(str(tmp_path / "launched.py"), cache=tmp_path / "cache")
    assert re.fullmatch(r"\d+ built; \d+ launches; 0 compiled anew\n", done.stdout), done.stderr


def test_8_bit_conversion_rounds_to_nearest_and_saturates(tmp_path: Path) -> None:
    """By the PTX ISA to the nearest, ties to even, at most to the largest number; NaN stays, nothing flushes to 0."""
    (tmp_path / "converted.py").write_text(CONVERTED)
    done = run(str(tmp_path / "converted.py"), cache=tmp_path)
    by_dtype = [set(line.split()) for line in done.stdout.splitlines() if "cvt" in line]
    for words, kind in zip(by_dtype, ("e4m3", "e5m2"), strict=True):
        converted, bounded = f"cvt.rn.satfinite.{kind}x2.f32", {"min.NaN.xorsign.abs.f32", "max.NaN.f32"}
        assert {word for word in words if ".f32" in word} == {converted, "div.rn.f32", "mul.f32", *bounded}


@pytest.mark.parametrize("target", TARGETS)
def test_table_lists_every_kernel_without_spills(target: str) -> None:
    launched = {
        name.removeprefix("_")
        for path in SOURCES.glob("*.py")
        for name in re.findall(r"\b_?launch\(\s*(_\w+)", path.read_text(encoding="utf-8"))
    }
    branches = defaultdict(set)
    with (TABLES / f"{target}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        for constant, value in re.findall(r"(\w+)=(True|False|16n|any)", row["variant"]):
            branches[row["name"], constant].add(value)
    assert {row["name"] for row in rows} == launched - (OF_EIGHT_BITS if target == "sm_80" else set())
    assert not [row for row in rows if int(row["local"])]
    assert not [branch for branch, values in branches.items() if len(values) < 2]
