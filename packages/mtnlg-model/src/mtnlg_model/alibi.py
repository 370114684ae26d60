"""ALiBi (Press et al. 2022): an attention score falls with the distance to its key, by a slope for each head.

    score_ij = scale · q_i k_j - slope (i - j)        slope_n = 2^(-8 n / N), n = 1 … N

if N is a power of two; otherwise the remaining heads get every second slope of the next power of two. Softmax ignores a
constant per row, so adding slope · j is enough, and that is a product: of slope / scale in q with j in k. So any
attention kernel computes it, also on a slice of the heads, without a bias for all pairs. j is split into a multiple of
256 and a remainder, and slope into two parts, since half precision has too few digits; kernels sum in fp32.

B batch, N heads, G heads of keys and values, S queries, T keys, D head size.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor

from .config import ALIBI_COLUMNS

RADIX = 256
"""Integers up to this are exact in bf16."""


def slopes(heads: int) -> tuple[float, ...]:
    """Slope of each head."""
    power = 1 << (heads.bit_length() - 1)
    values = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    values += [2 ** (-4 * n / power) for n in range(1, 2 * (heads - power) + 1, 2)]
    return tuple(values)


def extended(
    q_BNSD: Tensor, k_BGTD: Tensor, v_BGTD: Tensor, slopes: tuple[float, ...], scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with `ALIBI_COLUMNS` more values per head, which add the slopes to the scores; v's are zeros."""
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


def _of_queries(slopes: tuple[float, ...], dtype: torch.dtype, device: torch.device, *_: bool) -> Tensor:
    slopes_N = torch.tensor(slopes, dtype=torch.float64, device="cpu")
    first_N = slopes_N.to(dtype)
    rest_N = (slopes_N - first_N).to(dtype)
    columns = (first_N * RADIX, rest_N * RADIX, first_N, rest_N)
    return F.pad(torch.stack(columns, -1)[:, None], (0, ALIBI_COLUMNS - 4)).to(device)


_kept_of_queries = lru_cache(maxsize=64)(_of_queries)  # cached for the reasons given in `rotary`
