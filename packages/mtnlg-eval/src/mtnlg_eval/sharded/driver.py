"""The sharded model: what rank 0 asks of it, and what every rank does then.

`Driver` stands for the decoder (`mtnlg_model.generate` runs on it unchanged) and for a `Forward` (scoring) at once.
Every method of it tells the other ranks first and then does rank 0's own share, by the same code that they run.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import distributed

from mtnlg_model.cache import Cache

from . import messages
from .messages import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from mtnlg_eval.packing import Batch
    from mtnlg_model.config import ModelConfig
    from mtnlg_parallel.inference import Share

IN_FLIGHT = 4
"""Batches that a replica is given at once, a pipeline stage."""


class Server:
    """What any rank does at a message."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.config: ModelConfig = share.config
        self._cache: Cache | None = None

    def serve(self) -> None:
        """Do what rank 0 says until it says stop; on every rank but 0."""
        while True:
            kind, numbers = messages.receive(self.share.device)
            match kind:
                case Kind.SCORE:
                    self._score(messages.read(numbers))
                case Kind.HIDDEN:
                    self._hidden(numbers)
                case Kind.LOGITS:
                    self._logits(torch.empty(next(numbers), self.config.hidden, dtype=self.share.dtype))
                case Kind.STOP:
                    return

    def _score(self, batches: list[Batch]) -> Tensor:
        """Of all places of these batches log P(target) and whether it is likeliest, [2, N]; whole on rank 0."""
        share = self.share
        told = torch.zeros(2, sum(len(batch.rows) for batch in batches), device=share.device)
        start = 0
        for number, batch in enumerate(batches):
            end = start + len(batch.rows)
            if number % share.layout.dp == share.place.dp:
                here = batch.to(share.device)
                x_SBH = share.run(here.tokens, here.positions, here.mask)
                if x_SBH is not None:
                    logp_N, greedy_N = share.score(x_SBH[here.places, here.rows], here.targets)
                    if share.place.tp == 0:
                        told[0, start:end], told[1, start:end] = logp_N, greedy_N
            start = end
        share.settle()
        distributed.reduce(told, dst=0)  # each column is one rank's, zero on all others
        return told

    def _hidden(self, numbers: Iterator[int]) -> Tensor | None:
        """One step of generation on the first replica; the last place's x [1, B, H] on its last stage."""
        share = self.share
        b, s, width, capacity, kept = (next(numbers) for _ in range(5))
        if capacity:
            self._cache = Cache(self.config, capacity)
        if kept and self._cache is not None:
            self._cache.keep(messages.take(numbers, kept).to(share.device))
        tokens_BS, positions_BS = (messages.take(numbers, b, s).to(share.device) for _ in range(2))
        mask = None
        if width:
            mask = torch.empty(b, 1, s, width, dtype=torch.uint8, device=share.device)
            distributed.broadcast(mask, src=0)
        if share.place.dp:
            return None
        return self._step(tokens_BS, positions_BS, mask.bool() if mask is not None else None, self._cache)

    def _step(self, tokens_BS: Tensor, positions_BS: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor | None:
        share = self.share
        x_SBH = share.run(tokens_BS, positions_BS, mask, cache)
        share.settle()
        if share.layout.pp == 1:
            return x_SBH[-1:] if x_SBH is not None else None
        if x_SBH is not None and share.place.tp == 0:
            distributed.send(x_SBH[-1:].contiguous(), dst=0)
        if distributed.get_rank() == 0:
            last_1BH = torch.empty(1, tokens_BS.shape[0], self.config.hidden, dtype=share.dtype, device=share.device)
            distributed.recv(last_1BH, src=share.layout.rank(0, share.layout.pp - 1, 0))
            return last_1BH
        return None

    def _logits(self, x_BH: Tensor) -> Tensor | None:
        """x_BH of rank 0 → its logits [B, V], by the slices of the token table that its stage has."""
        share = self.share
        if share.place.dp or share.place.pp:
            return None
        x_BH = x_BH.to(share.device)
        group = share.slicing.group
        distributed.broadcast(x_BH, src=0, group=group)
        part_BW = share.slice_of_logits(x_BH)
        parts = [torch.empty_like(part_BW) for _ in range(share.layout.tp)]
        distributed.all_gather(parts, part_BW.contiguous(), group=group)
        return torch.cat(parts, dim=1)


class Driver(Server):
    """The whole model as rank 0 sees it."""

    training = False  # as `mtnlg_model.generate` asks of a decoder

    @property
    def embedding(self) -> torch.nn.Module:
        """Rank 0's slice of the embedding, for its device and dtype."""
        if self.share.embedding is None:
            raise RuntimeError("rank 0 is not on the first stage")
        return self.share.embedding

    def __call__(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """As `mtnlg_eval.model.Forward`."""
        layout, waiting = self.share.layout, iter(batches)
        at_once = layout.dp * (1 if layout.pp == 1 else IN_FLIGHT * layout.pp)
        while wave := list(islice(waiting, at_once)):
            messages.send(Kind.SCORE, messages.written(wave), self.share.device)
            told = self._score(wave).cpu()
            for part in torch.split(told, [len(batch.rows) for batch in wave], dim=1):
                yield part[0], part[1] > 0

    def cache(self, capacity: int) -> SharedCache:
        """Keys and values of every rank's own heads and layers, for one generation at a time."""
        return SharedCache(self.config, capacity)

    def hidden(
        self,
        tokens_BS: Tensor,
        positions_BS: Tensor | None = None,
        mask: Tensor | None = None,
        cache: SharedCache | None = None,
    ) -> Tensor:
        """As the decoder's, of the last place alone: x [1, B, H]; only with a cache, for that is generation."""
        if cache is None:
            raise ValueError("hidden(cache=...) is for generation; scoring goes by batches")
        b, s = tokens_BS.shape
        if positions_BS is None:
            positions_BS = torch.arange(cache.length, cache.length + s).expand(b, s)
        numbers = [b, s, 0 if mask is None else mask.shape[-1], *cache.news()]
        numbers += tokens_BS.flatten().tolist() + positions_BS.flatten().tolist()
        messages.send(Kind.HIDDEN, numbers, self.share.device)
        if mask is not None:
            distributed.broadcast(mask.expand(b, 1, s, -1).to(torch.uint8).contiguous(), src=0)
        last_1BH = self._step(tokens_BS, positions_BS.to(self.share.device), mask, cache)
        if last_1BH is None:
            raise RuntimeError("rank 0 gets every step's result")
        return last_1BH

    def logits(self, x_BH: Tensor) -> Tensor:
        """[B, H] → [B, V]."""
        if self.share.layout.tp == 1:
            return self.share.slice_of_logits(x_BH)
        messages.send(Kind.LOGITS, [len(x_BH)], self.share.device)
        logits_BV = self._logits(x_BH.contiguous())
        if logits_BV is None:
            raise RuntimeError("rank 0 gets all logits")
        return logits_BV

    def close(self) -> None:
        """Let the other ranks go."""
        messages.send(Kind.STOP, [], self.share.device)


class SharedCache(Cache):
    """Rank 0's cache, which remembers what the other ranks have still to do to theirs."""

    def __init__(self, config: ModelConfig, capacity: int) -> None:
        super().__init__(config, capacity)
        self._new, self._kept = capacity, list[int]()

    def keep(self, rows: Tensor) -> None:
        """As the cache's; the others are told with the next step."""
        super().keep(rows)
        self._kept = rows.tolist()

    def news(self) -> list[int]:
        """Capacity of a cache to make (0: go on with the one there is), rows to keep: how many (0: all), which."""
        told = [self._new, len(self._kept), *self._kept]
        self._new, self._kept = 0, []
        return told
