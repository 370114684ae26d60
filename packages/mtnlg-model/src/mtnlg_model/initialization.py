"""Initial weights as a pure function of (seed, tensor name), so every parallel layout starts from the same weights.

    weights and embeddings                N(0, std²),                std = config.std
    attention.out.weight, mlp.down.weight N(0, std² / 2l)            (Radford et al. 2019; paper.md section 1)
    norms                                 weight 1, or 0 if zero-centered; all biases 0

A tensor is drawn in blocks of `ROWS` rows, each with its own generator, so a process draws only the blocks of its rows.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .checkpoint.boxes import box_of, lengths

if TYPE_CHECKING:
    from .checkpoint.boxes import Box
    from .config import ModelConfig

ROWS = 64

THREADS = 8
"""Number of threads that draw blocks, also on fewer cores: with one, 7 billion weights take a minute."""


def initial_value(config: ModelConfig, name: str, seed: int, index: tuple[slice, ...] | None = None) -> Tensor:
    """Initial fp32 value of the box ``index`` (slices of step 1; None for all) of the global tensor ``name``.

    (seed, name) determines the global tensor, however it is cut into boxes. Raises ``KeyError`` for an unknown name.
    """
    shape = config.parameter_shape(name)
    box = box_of(index, shape)
    if len(shape) == 1:
        value = 0.0 if config.zero_centered_norm or name.endswith(".bias") else 1.0
        return torch.full(lengths(box), value, device="cpu")
    std = config.std
    if name.endswith(("attention.out.weight", "mlp.down.weight")):
        std /= math.sqrt(2 * config.layers)
    return _normal(shape, box, f"{seed}/{name}") * std


def initialize(decoder: nn.Module, config: ModelConfig, seed: int) -> None:
    """Set every parameter of a decoder to its initial value."""
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(initial_value(config, name, seed))


def _normal(shape: tuple[int, ...], box: Box, key: str) -> Tensor:
    (top, bottom), (left, right) = box
    out = torch.empty(lengths(box), device="cpu")

    def draw(first: int) -> None:
        digest = hashlib.sha256(f"{key}/{first}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        block = torch.randn(min(ROWS, shape[0] - first), shape[1], generator=generator, device="cpu")
        part = block[max(top - first, 0) : bottom - first, left:right]
        torch.narrow(out, 0, max(first - top, 0), len(part)).copy_(part)

    with ThreadPoolExecutor(THREADS) as threads:
        deque(threads.map(draw, range(top // ROWS * ROWS, bottom, ROWS)), maxlen=0)
    return out
