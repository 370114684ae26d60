"""ALiBi (Press et al. 2022): an attention score falls with the distance to its key, by a slope for each head.

    score_ij = scale · q_i k_j - slope (i - j)        slope_n = 2^(-8 n / N), n = 1 … N

if N is a power of two; otherwise the remaining heads get every second slope of the next power of two. Softmax ignores a
constant per row, so adding slope · j is enough, and that is a product: of slope / scale in q with j in k. So any
attention kernel computes it, also on a slice of the heads, without a bias for all pairs. j is split into a multiple of
256 and a remainder, and slope into two parts, since half precision has too few digits; kernels sum in fp32.

Falcon rounds slope · j to bf16 and scales it with q · k: one column of k with a value for each head (`Bf16Slope`).

B batch, N heads, G heads of keys and values, S queries, T keys, D head size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor

from .config import ALIBI_COLUMNS

RADIX = 256
"""Integers up to this are exact in bf16."""


class Bf16Slope(float):
    """A slope whose product with a key's position is rounded to bf16, and scaled as q · k is (Falcon)."""


KINDS: Final = {"alibi": float, "alibi-bf16": Bf16Slope}
"""Kind of slope, by `ModelConfig.positions`."""


def slopes(heads: int, kind: type[float] = float) -> tuple[float, ...]:
    """Slope of each head."""
    power = 1 << (heads.bit_length() - 1)
    values = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    values += [2 ** (-4 * n / power) for n in range(1, 2 * (heads - power) + 1, 2)]
    return tuple(map(kind, values))


def extended(  # noqa: PLR0917  (the figures of attention)
    q_BNSD: Tensor,
    k_BGTD: Tensor,
    v_BGTD: Tensor,
    slopes: tuple[float, ...],
    scale: float,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with `ALIBI_COLUMNS` more values per head, which add the slopes to the scores; v's are zeros.

    With slopes that are `Bf16Slope`, positions count from the first key of the ``mask``'s query with the most keys.
    """
    if isinstance(slopes[0], Bf16Slope):
        slopes_N1 = torch.tensor(slopes, device=k_BGTD.device).bfloat16()[:, None]
        bias_BNT1 = (slopes_N1 * _positions(mask, k_BGTD)[:, None])[..., None].to(k_BGTD.dtype)
        q, k = F.pad(q_BNSD, (0, 1), value=1.0), torch.cat((k_BGTD, bias_BNT1.expand(len(k_BGTD), -1, -1, -1)), -1)
        return F.pad(q, (0, ALIBI_COLUMNS - 1)), F.pad(k, (0, ALIBI_COLUMNS - 1)), F.pad(v_BGTD, (0, ALIBI_COLUMNS))
    figures = tuple(slope / scale for slope in slopes), q_BNSD.dtype, q_BNSD.device
    if torch.compiler.is_compiling():
        q_N18 = _of_queries(*figures)
    else:
        q_N18 = _kept_of_queries(*figures, torch.is_inference_mode_enabled())
    j_T = torch.arange(k_BGTD.shape[2], device=k_BGTD.device)
    high_T, low_T = j_T // RADIX, j_T % RADIX
    k_T8 = F.pad(torch.stack((high_T, high_T, low_T, low_T), -1), (0, ALIBI_COLUMNS - 4)).to(k_BGTD.dtype)
    columns_BNS8 = q_N18.expand(*q_BNSD.shape[:3], -1)
    columns_BGT8 = k_T8.expand(*k_BGTD.shape[:3], -1)
    q, k = torch.cat((q_BNSD, columns_BNS8), -1), torch.cat((k_BGTD, columns_BGT8), -1)
    return q, k, F.pad(v_BGTD, (0, ALIBI_COLUMNS))


def _positions(mask: Tensor | None, k_BGTD: Tensor) -> Tensor:
    """Positions [B or 1, T] of keys that are consecutive, but for some that are masked."""
    if mask is None:
        return torch.arange(k_BGTD.shape[2], device=k_BGTD.device)[None]
    mask_BST = mask.reshape(-1, *mask.shape[-2:])
    fullest_B11 = mask_BST.sum(-1).argmax(-1)[:, None, None].expand(-1, 1, mask_BST.shape[2])
    return (mask_BST.gather(1, fullest_B11)[:, 0].cumsum(-1) - 1).clamp(min=0)


def _of_queries(slopes: tuple[float, ...], dtype: torch.dtype, device: torch.device, *_: bool) -> Tensor:
    slopes_N = torch.tensor(slopes, dtype=torch.float64, device="cpu")
    first_N = slopes_N.to(dtype)
    rest_N = (slopes_N - first_N).to(dtype)
    columns = (first_N * RADIX, rest_N * RADIX, first_N, rest_N)
    return F.pad(torch.stack(columns, -1)[:, None], (0, ALIBI_COLUMNS - 4)).to(device)


_kept_of_queries = lru_cache(maxsize=64)(_of_queries)  # cached for the reasons given in `rotary`
