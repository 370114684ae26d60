"""How the next token is drawn: greedy, or from the softmax under temperature, top-k, top-p and min-p.

    logit z of a token that a row has already              z / penalty if positive, else z penalty
    p = softmax(logits / temperature)                        cut to the top_k likeliest, then to the fewest whose sum
                                                             is at least top_p, then to those of at least min_p max p

B rows of the batch, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from mtnlg_model.console import Failure
from mtnlg_model.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Sampling(Settings):
    """Sampling options. Temperature 0 is greedy. Each row has its own random stream, decided by (seed, row)."""

    temperature: Annotated[float, Field(ge=0.0)] = 0.0
    top_k: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    repetition_penalty: Annotated[float, Field(gt=0.0)] = 1.0
    seed: Annotated[int, Field(gt=-(1 << 43), lt=1 << 43)] = 0


GREEDY = Sampling()
NO_TOKEN = -1
TINY = 1e-30
"""Lower bound for temperature and top_p, since smaller values are 0 in fp32; the likeliest token has all the mass."""
NO_NUMBERS = "the model's output is not a number (NaN): its weights are damaged, or too large for their precision"


def row_generators(sampling: Sampling, rows: int, seeds: Sequence[int] | None = None) -> list[torch.Generator]:
    """One random generator per row, seeded by (seed, row) alone, or by the row's entry in ``seeds``."""
    return [torch.Generator().manual_seed(seed) for seed in seeds or row_seeds(sampling.seed, rows)]


def row_seeds(seed: int, rows: int) -> list[int]:
    """The seed of each row's generator."""
    return [seed * 1_000_003 + row for row in range(rows)]


def penalize(logits_BV: Tensor, seen_BV: Tensor, penalty: float) -> Tensor:
    """Logits, with those of tokens that a row has ``seen`` reduced by ``penalty`` (Keskar et al. 2019)."""
    return torch.where(seen_BV, torch.where(logits_BV < 0, logits_BV * penalty, logits_BV / penalty), logits_BV)


def draw_tokens(logits_BV: Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> list[int]:
    """The next token of every row: the likeliest at temperature 0, else drawn with that row's generator.

    Synchronizes the host with the device once, to read the tokens. Raises ``Failure`` if a logit is not a number.
    """
    if sampling.temperature == 0:
        greatest_B, token_B = logits_BV.max(-1)
    else:
        u_B1 = torch.stack([torch.rand(1, generator=generator) for generator in generators]).double()
        cdf_BV = probabilities(logits_BV, sampling).double().cumsum(-1)
        greatest_B = cdf_BV[:, -1]
        # u is scaled by the last sum, which rounding leaves a little off 1; the first sum above u has p > 0.
        token_B = torch.searchsorted(cdf_BV, to_device(u_B1, cdf_BV.device) * cdf_BV[:, -1:], right=True)[:, 0]
    tokens: list[int] = token_B.masked_fill(greatest_B.isnan(), NO_TOKEN).tolist()  # NaN if a logit of the row is
    if NO_TOKEN in tokens:
        raise Failure(NO_NUMBERS)
    return tokens


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to ``device``, without waiting for work that is queued on a GPU."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def probabilities(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Distribution [B, V] that tokens are drawn from, in fp32; requires a temperature above 0."""
    p_BV = torch.softmax(logits_BV.float() / max(sampling.temperature, TINY), dim=-1)
    if sampling.top_k is not None:
        p_BV = _without(p_BV, p_BV < p_BV.topk(min(sampling.top_k, p_BV.shape[-1])).values[:, -1:])
    if sampling.top_p < 1:
        sorted_BV, order_BV = p_BV.sort(descending=True, stable=True)
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        beyond_BV = before_BV >= max(sampling.top_p, TINY)
        p_BV = _without(p_BV, torch.zeros_like(beyond_BV).scatter(1, order_BV, beyond_BV))
    if sampling.min_p > 0:
        p_BV = _without(p_BV, p_BV < sampling.min_p * p_BV.amax(-1, keepdim=True))
    return p_BV


def _without(p_BV: Tensor, excluded_BV: Tensor) -> Tensor:
    """The distribution of the tokens that are left."""
    p_BV = p_BV.masked_fill(excluded_BV, 0)
    return p_BV / p_BV.sum(-1, keepdim=True)
