"""Rotary positions (Su et al. 2021): q and k are turned by their position, so their product knows only the distance.

Value i of the first half of a head and value i of its second half are a pair, which position p turns by p / λ_i

    x_i' = x_i cos(p / λ_i) - y_i sin(p / λ_i)        λ_i = base^(2i / R),  i < R/2
    y_i' = y_i cos(p / λ_i) + x_i sin(p / λ_i)

Only the first R = `ModelConfig.rotary_size` values of a head are turned. `Llama3Scaling` stretches long wavelengths.

S sequence, B batch, R turned values of a head.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from .config import ModelConfig


class Rotation(NamedTuple):
    """Cosine and sine of every position's angles, [S, B or 1, 1, 1, R], the sine of each first half negated."""

    cos: Tensor
    sin: Tensor


def rotation(config: ModelConfig, positions_BS: Tensor, dtype: torch.dtype) -> Rotation:
    """The angles of these positions, [B or 1, S], computed in fp32."""
    frequencies_R = inverse_wavelengths(config, positions_BS.device)
    angles_SBR = positions_BS.t()[..., None].float() * frequencies_R
    cos, sin = angles_SBR.cos(), angles_SBR.sin()
    both = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return Rotation(*(x[:, :, None, None].to(dtype) for x in both))


@lru_cache(maxsize=2)
def rotation_from_start(config: ModelConfig, length: int, dtype: torch.dtype, device: torch.device) -> Rotation:
    """The angles of positions 0 to ``length``, for all rows alike; kept, since every layer and step asks for them."""
    with torch.inference_mode(mode=False), torch.no_grad():  # training may use what an evaluation left here
        return rotation(config, torch.arange(length, device=device)[None], dtype)


@lru_cache(maxsize=2)
def inverse_wavelengths(config: ModelConfig, device: torch.device) -> Tensor:
    """1 / λ_i, [R/2] in fp32, computed on the CPU; kept, since a copy to a GPU waits for what that computes."""
    with torch.inference_mode(mode=False), torch.no_grad():  # as above
        return _inverse_wavelengths(config).to(device)


def _inverse_wavelengths(config: ModelConfig) -> Tensor:
    size, scaling = config.rotary_size, config.rotary_scaling
    frequencies_R = 1.0 / config.rotary_base ** (torch.arange(0, size, 2, device="cpu").float() / size)
    if scaling is None:
        return frequencies_R
    # Turns within the sequence of the first training: few are stretched, many kept, and between them blended.
    turns_R = scaling.original_sequence * frequencies_R / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept_R = ((turns_R - low) / (high - low)).clamp(0, 1)
    return frequencies_R * (kept_R + (1 - kept_R) / scaling.factor)
