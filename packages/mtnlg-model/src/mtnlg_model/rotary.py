"""Rotary positions (Su et al. 2021): q and k are rotated by their position; their product depends on the distance only.

Value i of the first half of a head and value i of its second half are a pair, which position p rotates by p / λ_i

    x_i' = x_i cos(p / λ_i) - y_i sin(p / λ_i)        λ_i = base^(2i / R),  i < R/2
    y_i' = y_i cos(p / λ_i) + x_i sin(p / λ_i)

Only the first R = `ModelConfig.rotary_size` values of a head are rotated. `ModelConfig.rotary_scaling` changes λ_i (in
LongRoPE by the length of the text, which is where positions count from 0 to the next 0), and
`LayerConfig.rotary_base` gives a layer its own, so a decoder may have several rotations: `rotations`, by that base.

S sequence, B batch, R rotated values of a head.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch.utils._python_dispatch import _disable_current_modes

from .config import LinearScaling, LongRopeScaling, YarnScaling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from .config import ModelConfig


class Frequencies(NamedTuple):
    """1 / λ_i in fp32, and a factor of the result; Python numbers, so a compiled decoder has them as constants.

    Texts of more than ``reach`` tokens have the values ``long``, if there are any.
    """

    values: tuple[float, ...]
    magnitude: float = 1.0
    long: tuple[float, ...] = ()
    reach: int = 0


class Rotation(NamedTuple):
    """Cosine and sine of every position's angles, [S, B or 1, 1, 1, R]; the first half of the sines is negated."""

    cos: Tensor
    sin: Tensor


Rotations = dict[float | None, Rotation]
"""Rotations of a decoder's layers, by their ``rotary_base``."""


@lru_cache(maxsize=8)
def frequencies(config: ModelConfig, base: float | None = None) -> Frequencies:
    """The frequencies of a decoder's layers; with ``base``, of the layers that have it as their ``rotary_base``."""
    size, scaling = config.rotary_size, config.rotary_scaling if base is None else None
    with _disable_current_modes():  # real numbers for a decoder of fake tensors too
        long: tuple[float, ...] = ()
        wavelengths_R = (base or config.rotary_base) ** (torch.arange(0, size, 2, device="cpu").float() / size)
        frequencies_R = 1.0 / wavelengths_R
        if isinstance(scaling, LinearScaling):
            frequencies_R /= scaling.factor
        elif isinstance(scaling, LongRopeScaling):
            each = (scaling.factors, scaling.long_factors or scaling.factors)
            frequencies_R, long_R = (1.0 / (torch.tensor(factors, device="cpu") * wavelengths_R) for factors in each)
            long = tuple(long_R.tolist()) if scaling.long_factors else ()
        elif isinstance(scaling, YarnScaling):
            low, high = (_pair_of(config, scaling, turns) for turns in (scaling.beta_fast, scaling.beta_slow))
            if scaling.truncate:
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, size - 1)
            stretched_R = ((torch.arange(size // 2, device="cpu").float() - low) / (high - low or 0.001)).clamp(0, 1)
            kept_R = 1 - stretched_R
            frequencies_R = 1.0 / (scaling.factor * wavelengths_R) * (1 - kept_R) + frequencies_R * kept_R
        elif scaling is not None:
            # By turns within the first training's sequence: few are stretched, many are kept, those between blended.
            turns_R = scaling.original_sequence * frequencies_R / (2 * math.pi)
            low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
            kept_R = ((turns_R - low) / (high - low)).clamp(0, 1)
            frequencies_R = frequencies_R * (kept_R + (1 - kept_R) / scaling.factor)
        magnitude = getattr(scaling, "attention_factor", 1.0)
        return Frequencies(tuple(frequencies_R.tolist()), magnitude, long, config.longest_short_text or 0)


def _pair_of(config: ModelConfig, scaling: YarnScaling, turns: float) -> float:
    """Index, a fraction, of the pair of values that makes ``turns`` turns within a sample of the first training."""
    wavelength = scaling.original_sequence / (turns * 2 * math.pi)
    return config.rotary_size * math.log(wavelength) / (2 * math.log(config.rotary_base))


def by_base(config: ModelConfig) -> dict[float | None, Frequencies]:
    """The frequencies of each kind of layer, by its ``rotary_base``; none without rotary positions."""
    layers = [layer for layer in config.by_layer or (config.layer(0),) if config.rotates(layer)]
    return {base: frequencies(config, base) for base in dict.fromkeys(layer.rotary_base for layer in layers)}


def rotations(
    by_base: Mapping[float | None, Frequencies],
    x_SBF: Tensor,
    positions_BS: Tensor | None = None,
    lengths_BS: Tensor | None = None,
) -> Rotations:
    """The `rotation` of each kind of layer."""
    return {base: rotation(each, x_SBF, positions_BS, lengths_BS) for base, each in by_base.items()}


def rotation(
    frequencies: Frequencies, x_SBF: Tensor, positions_BS: Tensor | None = None, lengths_BS: Tensor | None = None
) -> Rotation:
    """Rotation of these positions, [B or 1, S], or of 0 to S - 1; computed in fp32, in dtype and device of ``x``.

    ``lengths_BS`` are `text_lengths`, needed where the positions are not of whole texts.
    """
    if positions_BS is not None:
        return _angles(frequencies, positions_BS, x_SBF.dtype, lengths_BS)
    counted = len(x_SBF), x_SBF.dtype, x_SBF.device
    if torch.compiler.is_compiling():
        return _from_start(frequencies, *counted)
    return _kept_from_start(frequencies, *counted, torch.is_inference_mode_enabled())


def _angles(
    frequencies: Frequencies, positions_BS: Tensor, dtype: torch.dtype, lengths_BS: Tensor | None = None
) -> Rotation:
    device, compiles = positions_BS.device, torch.compiler.is_compiling()
    on_device = _on_device if compiles else partial(_kept_on_device, inference=torch.is_inference_mode_enabled())
    frequencies_SBR = on_device(frequencies.values, device)
    if frequencies.long:
        lengths_BS = text_lengths(positions_BS) if lengths_BS is None else lengths_BS
        is_long_SB1 = (lengths_BS > frequencies.reach).t()[..., None]
        frequencies_SBR = torch.where(is_long_SB1, on_device(frequencies.long, device), frequencies_SBR)
    angles_SBR = positions_BS.t()[..., None].float() * frequencies_SBR
    cos, sin = angles_SBR.cos(), angles_SBR.sin()
    if frequencies.magnitude != 1:
        cos, sin = cos * frequencies.magnitude, sin * frequencies.magnitude
    both = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return Rotation(*(x[:, :, None, None].to(dtype) for x in both))


def text_lengths(positions_BS: Tensor) -> Tensor:
    """Length of the text of each position: 1 + the greatest of a row's positions from one 0 to the next."""
    text_BS = (positions_BS == 0).cumsum(1)
    last_BT = torch.zeros_like(F.pad(text_BS, (0, 1))).scatter_reduce(1, text_BS, positions_BS, "amax")
    return last_BT.gather(1, text_BS) + 1


def _from_start(frequencies: Frequencies, length: int, dtype: torch.dtype, device: torch.device, *_: bool) -> Rotation:
    return _angles(frequencies, torch.arange(length, device=device)[None], dtype)


def _on_device(frequencies: tuple[float, ...], device: torch.device, inference: bool = False) -> Tensor:
    del inference  # a key of the cache
    return torch.tensor(frequencies, device=device)


# Cached, since every layer and step needs them and a copy to a GPU waits for its queued work. Inference tensors must
# not reach training, so they are cached apart; a compiled decoder caches nothing.
_kept_from_start = lru_cache(maxsize=4)(_from_start)
_kept_on_device = lru_cache(maxsize=4)(_on_device)
