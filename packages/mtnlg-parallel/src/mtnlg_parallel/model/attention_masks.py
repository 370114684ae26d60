"""Attention whose dropout and slopes are a rank's own, since each tensor-parallel rank has other heads.

All other dropout acts on values that the group's ranks share and must be the same on each, so they share the default
generators' states. The seed of a rank's own mask is one number drawn from these and the rank. So recomputation, which
restores the states, draws the same masks again. PyTorch's attention takes no seed, so a generator is seeded with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from mtnlg_model import functional

if TYPE_CHECKING:
    from torch import Tensor

    from mtnlg_model.functional import Mask

EXACT_DROPOUT = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Without cuDNN, which PyTorch 2.10 and 2.11 prefer on Hopper: it rounds the rate to sixteenths (pytorch PR 174245)."""


def attention_of_rank(  # noqa: PLR0917  (the signature of attention, for a rank)
    rank: int,
    q_BNSD: Tensor,
    k_BNTD: Tensor,
    v_BNTD: Tensor,
    mask: Mask,
    scale: float,
    rate: float,
    window: int | None = None,
    cap: float | None = None,
    slopes: tuple[float, ...] | None = None,
) -> Tensor:
    """`mtnlg_model.functional.attention` with a dropout mask of this rank's own, and its part of all heads' ``slopes``.

    Of the default generators the CPU's moves on by one number, on every rank; those of GPUs are as before.
    """
    heads = q_BNSD.shape[1]
    slopes = slopes and slopes[rank * heads : (rank + 1) * heads]
    if not rate:
        return functional.attention(q_BNSD, k_BNTD, v_BNTD, mask, scale, rate, window, cap, slopes)
    seed = int(torch.randint(1 << 62, (), device="cpu")) ^ rank
    fork = torch.random.fork_rng(devices=[q_BNSD.device] if q_BNSD.is_cuda else [])
    with fork, sdpa_kernel(EXACT_DROPOUT):
        torch.manual_seed(seed)
        return functional.attention(q_BNSD, k_BNTD, v_BNTD, mask, scale, rate, window, cap, slopes)
