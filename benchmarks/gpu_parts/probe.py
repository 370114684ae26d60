"""What this GPU's libraries do, where releases of PyTorch differ.

heads of D              the backend that attention takes, the share that each one drops at a rate of 0.1, and whether
                        backward drops the same
attention, heads of D   the engine's choice without dropout, forward and backward, against flash attention
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from mtnlg_model.functional import Rule, attention, attention_scale
from mtnlg_parallel.engine.pipeline_engine import native_attention
from record import gpu

from .clock import DEVICE, DTYPE, Clock, copy_bandwidth, release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    rows = 16 if tiny else 2048
    clock = Clock(tiny, rounds=3, repeats=10)  # whose reads hide the time of launches
    for head in HEADS:
        if not results.has(key := f"heads of {head}"):
            with results.attempt(key):
                find_backends(results, key, head, rows=64 if tiny else 4096)
        compare(
            results, f"attention, heads of {head}", clock, partial(attentions, rows, head), 4 * torch.finfo(DTYPE).eps
        )


def compare(
    results: Results, key: str, clock: Clock, make: Callable[[], Mapping[str, Callable[[], Tensor]]], allowed: float
) -> None:
    """Time the sides, and compare the first's numbers with the second's, relative to the largest."""
    if results.has(key):
        return
    with results.attempt(key):
        sides = make()
        ours, right, *_ = (side().float() for side in sides.values())
        error = ((ours - right).abs().max() / right.abs().max()).item()
        times = clock.compare(sides, key)
        figures = {"difference": error, "seconds": {name: each._asdict() for name, each in times.items()}}
        line = f"{', '.join(f'{name} {each.median * 1e6:,.0f} us' for name, each in times.items())}; {error:.1e} apart"
        results.add(key, line, figures | ({} if error <= allowed else {"error": line}))
    release()


def attentions(rows: int, head: int, heads: int = 16) -> dict[str, Callable[[], Tensor]]:
    """Causal attention without dropout and its gradients, by the kernel that our engine prefers and by others."""
    q, k, v = (random(1, heads, rows, head).requires_grad_() for _ in range(3))

    def both() -> Tensor:
        out = attention(q, k, v, None, Rule(attention_scale(head)))
        return torch.stack((out.detach(), *torch.autograd.grad(out, (q, k, v), v.detach())))

    def native() -> Tensor:
        with native_attention(DEVICE):
            return both()

    def flash() -> Tensor:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            return both()

    return {"engine's": native, "flash": flash}


def random(*size: int) -> Tensor:
    """Normal numbers in bf16."""
    return torch.randn(size, device=DEVICE).to(DTYPE)


def find_backends(results: Results, key: str, head: int, rows: int) -> None:
    """Find the default backend, and what each drops: all keys weigh the same, and values show which are left.

    The values' gradient is then that of what is left, by a product.
    """
    q_BNSD = torch.zeros(4, 8, rows, head, device=DEVICE, dtype=DTYPE)
    k_BNTD = torch.zeros(4, 8, head, head, device=DEVICE, dtype=DTYPE)
    v_BNTD = torch.eye(head, device=DEVICE, dtype=DTYPE).expand_as(k_BNTD).contiguous().requires_grad_()
    dropped: dict[str, float | None] = {}
    errors: dict[str, float] = {}
    for backend in BACKENDS:
        with sdpa_kernel(backend):
            try:
                dropped[backend.name], errors[backend.name] = drop(q_BNSD, k_BNTD, v_BNTD)
            except RuntimeError:  # not for this GPU or head
                dropped[backend.name] = None
    # As in training: as many keys as queries, causal.
    choice = torch._fused_sdp_choice(q_BNSD, q_BNSD, q_BNSD, dropout_p=RATE, is_causal=True)  # noqa: SLF001
    default = SDPBackend(choice).name
    shares = ", ".join(f"{name} {share:.4f}" for name, share in dropped.items() if share is not None)
    line = f"{default} by default; dropped of {RATE}: {shares}; gradients off by up to {max(errors.values()):.1e}"
    figures: dict[str, object] = {"default": default, "dropped": dropped, "errors": errors}
    is_wrong = max(errors.values()) > 4 * torch.finfo(DTYPE).eps
    results.add(key, line, figures | ({"error": line} if is_wrong else {}))


def drop(q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor) -> tuple[float, float]:
    """The share of zeros among the probabilities, and the relative error of the values' gradient."""
    p_BNST = scaled_dot_product_attention(q_BNSD, k_BNTD, v_BNTD, dropout_p=RATE)
    upstream_BNSD = torch.randn_like(p_BNST)
    (ours,) = torch.autograd.grad(p_BNST, v_BNTD, upstream_BNSD)
    right = p_BNST.float().transpose(-1, -2) @ upstream_BNSD.float()
    return (p_BNST == 0).float().mean().item(), ((ours - right).norm() / right.norm()).item()
