"""One replica at generation: its first rank leads and has the decoder's place, the others do its steps with it.

What the leader says travels with the activations: within its own stage it is broadcast, from there each rank hands it
to the next stage, without waiting, before the activations that belong to it. So a stage that is still at one portion's
step holds up nobody: while the leader's thread of one portion waits for the last stage, those of the others work.

    STEP     one step of a portion's generation; its result, x of the last place [1, B, H], goes back to the leader
    LOGITS   a product with the token table, cut over the leader's stage
    END      no more steps
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import distributed

from mtnlg_eval.scoring.generation import run
from mtnlg_model.generation.cache import Cache

from .messages import take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from mtnlg_eval.scoring.generation import Portion
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer
    from mtnlg_parallel.inference import Share


class Kind(IntEnum):
    """What is to be done."""

    END = 0
    STEP = 1
    LOGITS = 2


class Replica:
    """What a rank does at its replica's generation."""

    def __init__(self, share: Share, tokenizer: Tokenizer) -> None:
        self.share, self.tokenizer = share, tokenizer
        self.config: ModelConfig = share.config
        layout, place = share.layout, share.place
        self.leads = place.tp == place.pp == 0
        self._leader, self._last = layout.rank(0, 0, place.dp), layout.rank(0, layout.pp - 1, place.dp)
        self._behind = layout.rank(place.tp, place.pp - 1, place.dp) if place.pp else -1
        self._ahead = layout.rank(place.tp, place.pp + 1, place.dp) if place.pp < layout.pp - 1 else -1
        self._caches: dict[int, Cache] = {}
        self._sent: list[tuple[distributed.Work, Tensor]] = []

    def generate(self, portions: Sequence[Portion]) -> list[list[list[int]]]:
        """The new tokens of these portions, as many at a time as there are stages; [] on all ranks but the leader."""
        self._caches.clear()
        if not self.leads:
            self._follow()
            self.settle()
            return []
        leader = Leader(self)
        as_here = (torch.get_num_threads(), self.share.device)
        with ThreadPoolExecutor(self.share.layout.pp, "portion", _settle_in, as_here) as pool:
            new = list(pool.map(leader.run, range(len(portions)), portions))
        self.tell(Kind.END, [])
        self.settle()
        return new

    def _follow(self) -> None:
        while True:
            kind, numbers, mask = self._hear()
            match kind:
                case Kind.STEP:
                    self.step(numbers, mask)
                case Kind.LOGITS:
                    self.logits(torch.empty(next(numbers), self.config.hidden, dtype=self.share.dtype))
                case Kind.END:
                    return

    def tell(self, kind: Kind, numbers: Sequence[int], mask: Tensor | None = None) -> None:
        """Tell the ranks of this stage and, through them, the other stages; by the leader."""
        self.settle()
        if self.share.layout.tp > 1:
            for part in _written(kind, numbers, mask, self.share.device):
                distributed.broadcast(part, src=self._leader, group=self.share.slicing.group)
        self._hand_on(kind, numbers, mask)

    def _hear(self) -> tuple[Kind, Iterator[int], Tensor | None]:
        """What the leader says, handed on to the next stage."""
        share = self.share

        def heard(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            part = torch.empty(shape, dtype=dtype, device=share.device)
            if share.place.pp:
                distributed.recv(part, self._behind)
            else:
                distributed.broadcast(part, src=self._leader, group=share.slicing.group)
            return part

        kind, length, *shape = heard(5).tolist()
        numbers = heard(length).tolist() if length else []
        mask = heard(shape[0], 1, *shape[1:], dtype=torch.uint8) if shape[0] else None
        self.settle()
        self._hand_on(Kind(kind), numbers, mask)
        return Kind(kind), iter(numbers), mask

    def _hand_on(self, kind: Kind, numbers: Sequence[int], mask: Tensor | None) -> None:
        if self._ahead >= 0 and kind != Kind.LOGITS:
            for part in _written(kind, numbers, mask, self.share.device):
                self._send(part, self._ahead)

    def _send(self, part: Tensor, to: int) -> None:
        work = distributed.isend(part, to)
        if work is not None:
            self._sent.append((work, part))  # which must live until it has gone

    def settle(self) -> None:
        """Wait until what was sent has gone, which is as soon as the next stage has come to it."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
        self.share.settle()

    def step(self, numbers: Iterator[int], mask: Tensor | None) -> Tensor | None:
        """A rank's part of a step; x of the last place [1, B, H] on the last stage."""
        portion, b, s, capacity, kept = (next(numbers) for _ in range(5))
        if capacity:
            self._caches[portion] = Cache(self.config, capacity)
        cache = self._caches[portion]
        if kept:
            cache.keep(take(numbers, kept).to(self.share.device))
        tokens_BS, positions_BS = (take(numbers, b, s).to(self.share.device) for _ in range(2))
        x_SBH = self.share.run(tokens_BS, positions_BS, cache.attend(mask.bool() if mask is not None else None))
        if x_SBH is None:
            return None
        last_1BH = x_SBH[-1:].contiguous()
        if not self.leads and self.share.place.tp == 0:
            self._send(last_1BH, self._leader)
        return last_1BH

    def logits(self, x_BH: Tensor) -> Tensor:
        """The leader's x_BH → its logits [B, V], by the slices of the token table that its stage has."""
        x_BH = x_BH.to(self.share.device)
        group = self.share.slicing.group
        distributed.broadcast(x_BH, src=self._leader, group=group)
        part_BW = self.share.slice_of_logits(x_BH)
        parts = [torch.empty_like(part_BW) for _ in range(self.share.layout.tp)]
        distributed.all_gather(parts, part_BW.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    def result(self, b: int) -> tuple[distributed.Work | None, Tensor]:
        """Where the last stage's answer to a step of B rows will be, and what to wait for before it is there."""
        x_1BH = torch.empty(1, b, self.config.hidden, dtype=self.share.dtype, device=self.share.device)
        return distributed.irecv(x_1BH, self._last), x_1BH


def _settle_in(threads: int, device: torch.device) -> None:
    """Give a new thread the cores and the device of its process, which it does not take over by itself."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _written(kind: Kind, numbers: Sequence[int], mask: Tensor | None, device: torch.device) -> list[Tensor]:
    shape = (mask.shape[0], *mask.shape[2:]) if mask is not None else (0, 0, 0)
    parts = [torch.tensor([kind, len(numbers), *shape], device=device)]
    parts += [torch.tensor(numbers, device=device)] if numbers else []
    return parts + ([mask] if mask is not None else [])


class Leader:
    """Leads a replica, from one thread a portion: all that they say and compute goes one after the other."""

    def __init__(self, replica: Replica) -> None:
        self.replica, self.turn = replica, threading.Lock()

    def run(self, number: int, portion: Portion) -> list[list[int]]:
        """The new tokens of one portion."""
        decoder = cast("Decoder", PortionDecoder(self, number))
        return run(decoder, self.replica.tokenizer, portion)


class PortionDecoder:
    """The whole decoder as `mtnlg_model.generation.generate` sees it, for one portion."""

    training = False

    def __init__(self, leader: Leader, number: int) -> None:
        self.config, self.embedding = leader.replica.config, leader.replica.share.embedding
        self._replica, self._turn, self._number = leader.replica, leader.turn, number

    def cache(self, capacity: int) -> PortionCache:
        """Keys and values of every rank's own heads and layers, for one portion."""
        return PortionCache(capacity)

    def hidden(self, tokens_BS: Tensor, positions_BS: Tensor, attend: PortionAttention) -> Tensor:
        """As the decoder's, but the last place only: x [1, B, H]."""
        b, s = tokens_BS.shape
        numbers = [self._number, b, s, *attend.cache.news(s)]
        numbers += tokens_BS.flatten().tolist() + positions_BS.expand(b, s).flatten().tolist()
        mask = attend.mask
        told = mask.expand(b, 1, s, -1).to(torch.uint8).contiguous() if mask is not None else None
        replica, waited_for = self._replica, None
        with self._turn:
            replica.tell(Kind.STEP, numbers, told)
            last_1BH = replica.step(iter(numbers), told)
            if last_1BH is None:
                waited_for, last_1BH = replica.result(b)
        if waited_for is not None:
            waited_for.wait()
        return last_1BH

    def logits(self, x_BH: Tensor) -> Tensor:
        """[B, H] → [B, V]."""
        with self._turn:
            if self._replica.share.layout.tp == 1:
                return self._replica.share.slice_of_logits(x_BH)
            self._replica.tell(Kind.LOGITS, [len(x_BH)])
            return self._replica.logits(x_BH.contiguous())


class PortionCache:
    """What `mtnlg_model.generation.generate` does to a cache, for every rank to do to its own with the next step."""

    def __init__(self, capacity: int) -> None:
        self.length, self._new, self._kept = 0, capacity, list[int]()

    def attend(self, mask: Tensor | None = None) -> PortionAttention:
        """Attention through every rank's own cache."""
        return PortionAttention(self, mask)

    def positions(self, tokens_BS: Tensor) -> Tensor:
        """Positions [1, S] of tokens that continue those held."""
        return torch.arange(self.length, self.length + tokens_BS.shape[1])[None]

    def keep(self, rows: Tensor) -> None:
        """Drop every row of the batch but these."""
        self._kept = rows.tolist()

    def news(self, s: int) -> list[int]:
        """Capacity of a cache to make (0: go on with the one there is), rows to keep: how many (0: all), which."""
        told = [self._new, len(self._kept), *self._kept]
        self.length, self._new, self._kept = self.length + s, 0, []
        return told


class PortionAttention(NamedTuple):
    """What stands for attention through the caches of all ranks: whose cache, and the step's mask."""

    cache: PortionCache
    mask: Tensor | None
