"""Initial weights as a pure function of (seed, tensor name), so every parallel layout starts from the same weights.

    weights and embeddings                N(0, std²),                std = config.std
    attention.out.weight, mlp.down.weight N(0, std² / 2l)            (Radford et al. 2019; paper.md section 1)
    norms                                 weight 1, or 0 if zero-centered; all biases 0

A tensor is drawn in blocks of `ROWS` rows, each with its own generator, so a process draws only the blocks of its rows.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from .config import ModelConfig

ROWS = 64

THREADS = min(8, os.cpu_count() or 1)
"""Number of threads that draw blocks: with one, 7 billion weights take a minute."""


def initial_value(config: ModelConfig, name: str, seed: int, index: tuple[slice, ...] | None = None) -> Tensor:
    """Initial fp32 value of the box ``index`` (slices of step 1; None for all) of the global tensor ``name``.

    (seed, name) determines the global tensor, however it is cut into boxes. Raises ``KeyError`` for an unknown name.
    """
    shape = config.parameter_shape(name)
    index = index or ()
    index += (slice(None),) * (len(shape) - len(index))
    box = [range(*cut.indices(size)) for cut, size in zip(index, shape, strict=True)]
    if name.endswith(".bias"):
        return torch.zeros([len(axis) for axis in box], device="cpu")
    if len(shape) == 1:
        return torch.full([len(axis) for axis in box], 0.0 if config.zero_centered_norm else 1.0, device="cpu")
    std = config.std
    if name.endswith(("attention.out.weight", "mlp.down.weight")):
        std /= math.sqrt(2 * config.layers)
    return _normal(shape, (box[0], box[1]), f"{seed}/{name}") * std


def initialize(module: nn.Module, config: ModelConfig, seed: int, prefix: str = "") -> None:
    """Set every parameter of ``module`` to its initial value, named ``prefix`` (such as ``layers.3.``) + its name."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(initial_value(config, prefix + name, seed))


def _normal(shape: tuple[int, ...], box: tuple[range, range], key: str) -> Tensor:
    rows, columns = box
    out = torch.empty(len(rows), len(columns), device="cpu")

    def draw(first: int) -> None:
        digest = hashlib.sha256(f"{key}/{first}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
        block = torch.randn(min(ROWS, shape[0] - first), shape[1], generator=generator, device="cpu")
        top, bottom = max(first, rows.start), min(first + len(block), rows.stop)
        out[top - rows.start : bottom - rows.start] = block[top - first : bottom - first, columns.start : columns.stop]

    with ThreadPoolExecutor(THREADS) as threads:
        deque(threads.map(draw, range(rows.start // ROWS * ROWS, rows.stop, ROWS)), maxlen=0)
    return out
