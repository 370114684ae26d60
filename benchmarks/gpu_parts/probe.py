"""What this GPU's libraries do, where releases of PyTorch differ.

adding in fp32    addmm of bf16 factors onto an fp32 sum, against a product and a sum: time, and the same numbers
heads of D        the backend that attention takes, and the share that each one drops at a rate of 0.1
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from mtnlg_parallel.model import products
from record import gpu

from .clock import DEVICE, DTYPE, GPU, Clock, copy_bandwidth, release

if TYPE_CHECKING:
    from torch import Tensor

    from .results import Results

HEADS = (64, 128, 160)
RATE = 0.1
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


def main(tiny: bool, results: Results) -> None:
    """Try each."""
    clock = Clock(tiny, rounds=3, repeats=10, flush=False)
    if not results.has("device"):
        about = gpu()
        results.add("device", f"{about['device']}, torch {about['torch']}, Triton {about['triton']}", about)
    if not results.has("copy"):
        bandwidth = copy_bandwidth(clock)
        results.add("copy", f"{bandwidth / 1e12:.2f} TB/s read and written", {"bytes_per_second": bandwidth})
    if not results.has(key := "adding in fp32"):
        with results.attempt(key):
            adding(results, key, clock, (8, 8, 8) if tiny else (10240, 2048, 20480))
        release()
    for head in HEADS:
        if not results.has(key := f"heads of {head}"):
            with results.attempt(key):
                attention(results, key, head, rows=64 if tiny else 4096)


def adding(results: Results, key: str, clock: Clock, size: tuple[int, int, int]) -> None:
    """Time both ways of adding dy xᵀ, of a feed-forward weight of a rank of the 530B."""
    o, n, i = size
    dy_ON, x_NI = (torch.randn(shape, device=DEVICE).to(DTYPE) for shape in ((o, n), (n, i)))
    total, other = (torch.ones(o, i, device=DEVICE) for _ in range(2))

    def after() -> None:
        other.add_(torch.mm(dy_ON, x_NI, out_dtype=other.dtype) if GPU else dy_ON.float() @ x_NI.float())

    within = partial(products.add_product, total, dy_ON, x_NI.t(), first=False)
    within()
    after()
    difference = ((total - other).abs().max() / other.abs().max()).item()
    times = clock.compare({"add_product": within, "mm, then add": after})
    ratio = times["mm, then add"].median / times["add_product"].median
    adds = products.adds_in_fp32(DEVICE)
    line = f"addmm {'adds' if adds else 'does NOT add'}; {ratio:.2f} x the time apart; differ by {difference:.1e}"
    seconds = {name: each._asdict() for name, each in times.items()}
    figures = {"adds": adds, "ratio": ratio, "difference": difference, "seconds": seconds}
    results.add(key, line, figures if difference < 1e-3 else {**figures, "error": line})


def attention(results: Results, key: str, head: int, rows: int) -> None:
    """Find the default backend, and what each drops: all keys weigh the same, and values show which are left."""
    q_BNSD = torch.zeros(4, 8, rows, head, device=DEVICE, dtype=DTYPE)
    k_BNTD = torch.zeros(4, 8, head, head, device=DEVICE, dtype=DTYPE)
    v_BNTD = torch.eye(head, device=DEVICE, dtype=DTYPE).expand_as(k_BNTD).contiguous()
    dropped: dict[str, float | None] = {}
    for backend in BACKENDS:
        with sdpa_kernel(backend):
            try:
                dropped[backend.name] = share_dropped(q_BNSD, k_BNTD, v_BNTD)
            except RuntimeError:  # not for this GPU or head
                dropped[backend.name] = None
    # As in training: as many keys as queries, causal.
    choice = torch._fused_sdp_choice(q_BNSD, q_BNSD, q_BNSD, dropout_p=RATE, is_causal=True)  # noqa: SLF001
    default = SDPBackend(choice).name
    shares = ", ".join(f"{name} {share:.4f}" for name, share in dropped.items() if share is not None)
    results.add(key, f"{default} by default; dropped of {RATE}: {shares}", {"default": default, "dropped": dropped})


def share_dropped(q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor) -> float:
    """The share of zeros among the probabilities."""
    p_BNST = scaled_dot_product_attention(q_BNSD, k_BNTD, v_BNTD, dropout_p=RATE)
    return (p_BNST == 0).float().mean().item()
