"""Whether a norm's backward pass ends on this GPU: its programs wait for sums of programs before them.

They rely on programs starting in the order of their numbers. So it runs here first, at few and many rows, alone and
beside another stream's products, in a process of its own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from mtnlg_parallel.kernels import norm

from .clock import DEVICE, DTYPE, GPU

if TYPE_CHECKING:
    from .results import Results

SHAPES = ((64, 1000), (256, 20480), (2048, 20480), (16384, 2048), (16384, 20480))
TINY = ((5, 40), (70, 512))
"""Masked, and with loads that run ahead."""
REPEATS = 20


def main(tiny: bool, results: Results) -> None:
    """Measure."""
    side = torch.randn(4096 if GPU else 8, 4096 if GPU else 8, device=DEVICE).to(DTYPE)
    other = torch.cuda.Stream() if GPU else None  # type: ignore[no-untyped-call]
    for rows, columns in TINY if tiny else SHAPES:
        for beside in (False, True):
            key = f"{rows} x {columns}{', beside products' if beside else ''}"
            if results.has(key):
                continue
            with results.attempt(key):
                x, dy = (torch.randn(rows, columns, device=DEVICE).to(DTYPE) for _ in range(2))
                x, weight = x.requires_grad_(), torch.ones(columns, device=DEVICE, dtype=DTYPE, requires_grad=True)
                out = norm.layer_norm(x, weight, weight, 1e-5)
                began = time.perf_counter()
                for _ in range(1 if tiny else REPEATS):
                    if beside and other:
                        with torch.cuda.stream(other):
                            torch.mm(side, side)
                    torch.autograd.grad(out, [x, weight], dy, retain_graph=True)
                if GPU:
                    torch.cuda.synchronize()
                seconds = time.perf_counter() - began
                results.add(key, f"ended, {seconds * 1e3:.1f} ms for all", {"seconds": seconds})
