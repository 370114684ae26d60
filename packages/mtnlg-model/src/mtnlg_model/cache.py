"""Keys and values of the tokens already seen, so that a new token costs one row instead of the whole sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from .config import ModelConfig


class LayerCache:
    """One layer's keys and values [B, N, capacity, D], of which the first ``length`` places are filled."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, k_BNSD: Tensor, v_BNSD: Tensor) -> tuple[Tensor, Tensor]:
        """Add S places and return all that are filled. Heads, width, dtype and device follow the first call."""
        end = self.length + k_BNSD.shape[2]
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} tokens and was given {end}; make it larger")
        if self._keys is None or self._values is None:
            b, n, _, d = k_BNSD.shape
            self._keys, self._values = (
                k_BNSD.new_empty(b, n, self.capacity, d),
                v_BNSD.new_empty(b, n, self.capacity, d),
            )
        self._keys[:, :, self.length : end] = k_BNSD
        self._values[:, :, self.length : end] = v_BNSD
        self.length = end
        return self._keys[:, :, :end], self._values[:, :, :end]

    def keep(self, rows: Tensor) -> None:
        """Drop every row of the batch but these."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = self._keys[rows], self._values[rows]


class Cache:
    """The caches of all layers; ``capacity`` tokens are allocated at the first use."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(config.layers)]

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.layers[0].length

    def keep(self, rows: Tensor) -> None:
        """Drop every row of the batch but these (indices [B'])."""
        for layer in self.layers:
            layer.keep(rows)
