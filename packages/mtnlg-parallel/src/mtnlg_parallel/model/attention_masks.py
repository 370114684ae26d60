"""Attention with a dropout mask and slopes per tensor-parallel rank, since each rank has different heads.

All other dropout acts on values that the group's ranks replicate and must be the same on each, so the ranks share the
states of the default generators. The seed of a rank's own mask combines a number drawn from these with the rank. So
recomputation, which restores the states, draws the same masks. PyTorch's attention takes no seed, so the seed goes to a
generator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mtnlg_model import functional

if TYPE_CHECKING:
    from torch import Tensor

    from mtnlg_model.functional import Mask, Rule


def attention_of_rank(  # noqa: PLR0917  (the signature of attention, for a rank)
    rank: int, q_BNSD: Tensor, k_BNTD: Tensor, v_BNTD: Tensor, mask: Mask, rule: Rule
) -> Tensor:
    """`mtnlg_model.functional.attention` with this rank's own dropout mask, and its part of all heads' slopes.

    With dropout, draws one number from the CPU's default generator on every rank; GPU generators keep their states.
    """
    heads = q_BNSD.shape[1]
    rule = rule._replace(slopes=rule.slopes and rule.slopes[rank * heads : (rank + 1) * heads])
    if not rule.rate:
        return functional.attention(q_BNSD, k_BNTD, v_BNTD, mask, rule)
    seed = int(torch.randint(1 << 62, (), device="cpu")) ^ rank
    with torch.random.fork_rng(devices=[q_BNSD.device] if q_BNSD.is_cuda else []):
        torch.manual_seed(seed)
        return functional.attention(q_BNSD, k_BNTD, v_BNTD, mask, rule)
