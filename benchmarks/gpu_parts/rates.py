"""What the GPU itself gives: matrix products, copies, launches, and its power and clock under a steady load."""

from __future__ import annotations

import time
from functools import partial

import torch

from mtnlg_model.config import PRESETS

from .clock import DEVICE, DTYPE, GPU, Clock, Sampler, begin, copy_bandwidth

SQUARES = (4096, 8192, 16384)
LAUNCHES = 2000


def products(tiny: bool) -> list[tuple[int, int, int]]:
    """Return m, n, k of y = x Wᵀ: large squares, and a layer of the 530B's and of the 1.3B's own."""
    if tiny:
        return [(32, 32, 32)]
    shapes = [(size, size, size) for size in SQUARES]
    for name, tokens, tp in (("mt-nlg-530b", 2048, 8), ("dense-1.3b", 16384, 1)):
        h = PRESETS[name].hidden
        shapes += [(tokens, 3 * h // tp, h), (tokens, h, h // tp), (tokens, 4 * h // tp, h), (tokens, h, 4 * h // tp)]
    return shapes


def main() -> None:
    """Measure."""
    tiny, results = begin(__doc__, "rates")
    clock = Clock(tiny, rounds=3, repeats=10, flush=False)
    for m, n, k in products(tiny):
        if results.has(key := f"x {m} x {k}, y {m} x {n}"):
            continue
        x, weight, dy = (torch.randn(size, device=DEVICE).to(DTYPE) for size in ((m, k), (n, k), (m, n)))
        sides = {"x Wᵀ": (x, weight.t()), "dy W": (dy, weight), "dyᵀ x": (dy.t(), x)}
        times = clock.compare({side: partial(torch.mm, *pair) for side, pair in sides.items()}, key)
        rates = {side: 2 * m * n * k / each.median / 1e12 for side, each in times.items()}
        results.add(key, ", ".join(f"{side} {rate:.0f} TFLOP/s" for side, rate in rates.items()), {"tflops": rates})
    if not results.has("copy"):
        rate = copy_bandwidth(clock)
        results.add("copy", f"{rate / 1e12:.2f} TB/s read and written", {"bytes_per_second": rate})
    if not results.has("launch"):
        x = torch.zeros(8, device=DEVICE)
        began = time.perf_counter()
        for _ in range(LAUNCHES):
            x.add_(1)
        _synchronize()
        seconds = (time.perf_counter() - began) / LAUNCHES
        results.add("launch", f"{seconds * 1e6:.1f} us a call from Python", {"seconds": seconds})
    if not results.has("load"):
        size = 32 if tiny else 8192
        a, b = (torch.randn(size, size, device=DEVICE).to(DTYPE) for _ in range(2))
        with Sampler() as sampler:
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < (0.0 if tiny else 8.0) or not count:
                for _ in range(50):
                    torch.mm(a, b)
                _synchronize()
                count += 50
            rate = 2 * size**3 * count / (time.perf_counter() - began)
        line = f"{rate / 1e12:.0f} TFLOP/s over 8 s; {sampler.figures}"
        results.add("load", line, {"tflops": rate / 1e12, "during": sampler.figures})


def _synchronize() -> None:
    if GPU:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
