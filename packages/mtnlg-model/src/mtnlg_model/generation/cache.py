"""Key-value cache: a new token costs one row of attention instead of a pass over the whole sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mtnlg_model.functional import window_blocks

if TYPE_CHECKING:
    from torch import Tensor

    from mtnlg_model.config import ModelConfig
    from mtnlg_model.functional import AttentionOp, Rule


class LayerCache:
    """One layer's keys and values [B, N, capacity, D], of which the first ``length`` tokens are filled.

    With a ``window`` below ``capacity``, tokens before the window are dropped.
    """

    def __init__(self, capacity: int, window: int | None = None) -> None:
        self.capacity, self.length, self.window = capacity, 0, capacity if window is None else window
        self._kept: list[Tensor] = []

    def append(self, k_BNSD: Tensor, v_BNSD: Tensor) -> tuple[Tensor, Tensor]:
        """Add S tokens; return the keys and values to attend to. The first call sets B, heads, D, dtype and device."""
        end = self.length + k_BNSD.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens, {end} were given; make it larger")
        slides, both = self.window < self.capacity, (k_BNSD, v_BNSD)
        if not self._kept:
            b, n, _, d = k_BNSD.shape
            self._kept = [x.new_empty(b, n, 0 if slides else self.capacity, d) for x in both]
        if slides:
            first = max(0, self._kept[0].shape[2] - self.window + 1)
            self._kept = [torch.cat((old[:, :, first:], x), dim=2) for old, x in zip(self._kept, both, strict=True)]
        else:
            for old, x in zip(self._kept, both, strict=True):
                old[:, :, self.length : end] = x
        self.length = end
        keys, values = (old[:, :, :end] for old in self._kept)
        return keys, values

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows of the batch (indices [B'])."""
        self._kept = [old[rows] for old in self._kept]


@dataclass(frozen=True)
class CachedAttention:
    """An `Attend` over one layer's cache and the tokens of this step."""

    cache: LayerCache
    mask: Tensor | None
    places: None = None

    def __call__(self, attention: AttentionOp, q_BNSD: Tensor, k_BNSD: Tensor, v_BNSD: Tensor, rule: Rule) -> Tensor:
        """Append the step's keys and values to the cache, then attend over all of them."""
        keys, values = self.cache.append(k_BNSD, v_BNSD)
        s, t = q_BNSD.shape[2], keys.shape[2]
        if self.mask is None:
            return attention(q_BNSD, keys, values, None, rule)
        mask = self.mask[..., -t:]
        blocks = window_blocks(s, t, self.cache.window) if self.cache.window < t else [(slice(s), slice(t))]
        parts = ((q_BNSD[:, :, i], keys[:, :, j], values[:, :, j], mask[..., i, j]) for i, j in blocks)
        return torch.cat([attention(*part, rule) for part in parts], 2)


class Cache:
    """The caches of all layers, for ``capacity`` tokens per row; memory is allocated at first use."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        self.layers = [LayerCache(capacity, config.layer(number).window) for number in range(config.layers)]
        self._short = config.longest_short_text

    @property
    def length(self) -> int:
        """Number of tokens cached; a pipeline stage fills only its own layers."""
        return max(layer.length for layer in self.layers)

    def attend(self, mask: Tensor | None = None) -> list[CachedAttention]:
        """One `Attend` per layer; ``mask`` as in `functional.attention`, causal without one."""
        return [CachedAttention(layer, mask) for layer in self.layers]

    def positions(self, tokens_BS: Tensor) -> Tensor:
        """Positions [1, S] of tokens that continue the cached ones. Raises ``ValueError`` if those would change."""
        if 0 < self.length <= (self._short or 0) < self.length + tokens_BS.shape[1]:
            raise ValueError(f"beyond {self._short} tokens the keys of all tokens are others; begin a new cache")
        return torch.arange(self.length, self.length + tokens_BS.shape[1], device=tokens_BS.device)[None]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows of the batch (indices [B'])."""
        for layer in self.layers:
            layer.keep(rows)
