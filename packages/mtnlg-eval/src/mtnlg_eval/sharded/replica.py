"""The work of one data-parallel replica: its first rank, the leader, gives the commands, the others follow them.

Commands travel ahead of the activations they belong to: the leader sends them to its own stage, and each rank passes
them on to the next stage, without waiting. So a stage that still computes one batch holds up nobody: the stages before
it go on with the next. A mask travels with the activations.

    SCORE    a packed batch; its log-likelihoods go from the last stage to rank 0
    STEP     one decoding step of a batch; x of the last position [1, B, H] returns to the leader
    LOGITS   product with the token table, sliced over the leader's stage
    END      no more batches or steps

Rank 0 sends SCORE and END to the leaders. Generation is each leader's own: a thread for every batch in flight. All
compute in one stream of the leader's GPU; so a thread waits on the host for the last stage's x, and no stream does.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from typing import TYPE_CHECKING, cast

import torch
from torch import distributed

from mtnlg_eval.scoring.fixed_order import fixed_order
from mtnlg_eval.scoring.generation import generate_batch
from mtnlg_eval.scoring.rolling_queue import set_up_thread
from mtnlg_eval.scoring.transfers import to_device, wait_on_host
from mtnlg_model.generation.cache import Cache

from .messages import decode_batch, take_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from mtnlg_eval.scoring.generation import PromptBatch
    from mtnlg_eval.scoring.packing import Batch
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer
    from mtnlg_parallel.inference import DecoderShard

    from .messages import Channels


class StepCommand(IntEnum):
    """What the followers shall do."""

    END = 0
    STEP = 1
    LOGITS = 2
    SCORE = 3


class Replica:
    """One rank's part of its replica's work."""

    def __init__(self, shard: DecoderShard, tokenizer: Tokenizer, channels: Channels) -> None:
        self.shard, self.tokenizer, self._channels = shard, tokenizer, channels
        self.config: ModelConfig = shard.config
        layout, place = shard.layout, shard.place
        self.leads = place.tp == place.pp == 0
        self._leader, self._last = layout.rank(0, 0, place.dp), layout.rank(0, layout.pp - 1, place.dp)
        self._previous = layout.rank(place.tp, place.pp - 1, place.dp) if place.pp else -1
        self._next = layout.rank(place.tp, place.pp + 1, place.dp) if place.pp < layout.pp - 1 else -1
        self._beside = [layout.rank(tp, 0, place.dp) for tp in range(1, layout.tp)]
        self.lock = threading.Lock()  # what the leader's threads send and compute goes one after the other
        self._caches: dict[int, Cache] = {}
        self._sends: list[tuple[distributed.Work, Tensor]] = []

    def generate(self, batches: Sequence[PromptBatch]) -> list[list[list[int]]]:
        """New tokens of these batches, one in flight per pipeline stage; [] on every rank but the leader."""
        self._caches.clear()
        if not self.leads:
            self.follow()
            return []
        settings = (torch.get_num_threads(), self.shard.device.index)
        with ThreadPoolExecutor(self.shard.layout.pp, "generation", set_up_thread, settings) as pool:
            new = list(pool.map(self.lead, range(len(batches)), batches))
        self.send_command(StepCommand.END, [])
        self.wait_for_sends()
        return new

    def lead(self, number: int, batch: PromptBatch) -> list[list[int]]:
        """Generate the new tokens of one batch, in a thread of the leader."""
        return generate_batch(cast("Decoder", RemoteDecoder(self, number)), self.tokenizer, batch)

    def follow(self) -> None:
        """Execute the leader's commands until END."""
        while True:
            command, numbers, mask = self._receive_command()
            match command:
                case StepCommand.SCORE:
                    self.score(decode_batch(numbers))
                case StepCommand.STEP:
                    self.step(numbers, mask)
                case StepCommand.LOGITS:
                    self.logits(torch.empty(next(numbers), self.config.hidden, dtype=self.shard.dtype))
                case StepCommand.END:
                    self.wait_for_sends()
                    return

    def lead_scoring(self) -> None:
        """Pass rank 0's commands on and do the leader's part of them, until END; on the leader of another replica."""
        command = StepCommand.SCORE
        while command != StepCommand.END:
            number, length = self._receive_numbers(2, 0)
            command, numbers = StepCommand(number), self._receive_numbers(length, 0)
            self.send_command(command, numbers)
            if command == StepCommand.SCORE:
                self.score(decode_batch(iter(numbers)))
        self.wait_for_sends()

    def score(self, batch: Batch) -> Tensor | None:
        """Score a batch as far as it is this rank's work; where it ends, log P(target) and greedy flags, [2, N].

        That rank sends them to rank 0, unless it is rank 0.
        """
        shard = self.shard
        plan = batch.attention_plan(shard.device)
        tokens_S, targets_N = (to_device(x, shard.device) for x in (batch.tokens, batch.targets))
        with fixed_order(shard.device):
            x_N1H = shard.forward(tokens_S[None], plan.position_ids[None], plan.attend(self.config.layers))
            if x_N1H is None:
                return None
            logp_N, greedy_N = shard.score(x_N1H[:, 0], targets_N)
        if shard.place.tp:
            return None
        scores_2N = torch.stack((logp_N, greedy_N.to(logp_N.dtype)))
        if distributed.get_rank():
            self._send(scores_2N, 0, self._channels.results)
        return scores_2N

    def send_command(self, command: StepCommand, numbers: Sequence[int], mask: Tensor | None = None) -> None:
        """Send a command to the ranks of this stage and, through them, to the other stages; called by the leader."""
        self.wait_for_sends()
        for rank in self._beside:
            self._send_numbers(command, numbers, mask, rank)
        if self._beside and mask is not None:
            distributed.broadcast(mask, src=self._leader, group=self.shard.slicing.group)
        self._forward_command(command, numbers, mask)

    def _receive_command(self) -> tuple[StepCommand, Iterator[int], Tensor | None]:
        """Receive the leader's next command and forward it to the next stage."""
        shard, mask = self.shard, None
        source = self._previous if shard.place.pp else self._leader
        command, length, *shape = self._receive_numbers(5, source)
        numbers = self._receive_numbers(length, source)
        if shape[0]:
            mask = torch.empty(shape[0], 1, *shape[1:], dtype=torch.uint8, device=shard.device)
            if shard.place.pp:
                distributed.recv(mask, source)
            else:
                distributed.broadcast(mask, src=source, group=shard.slicing.group)
        self.wait_for_sends()
        self._forward_command(StepCommand(command), numbers, mask)
        return StepCommand(command), iter(numbers), mask

    def _receive_numbers(self, length: int, source: int) -> list[int]:
        numbers = torch.empty(length, dtype=torch.int64)
        if length:
            distributed.recv(numbers, source, group=self._channels.commands)
        received: list[int] = numbers.tolist()
        return received

    def _forward_command(self, command: StepCommand, numbers: Sequence[int], mask: Tensor | None) -> None:
        if self._next >= 0 and command != StepCommand.LOGITS:
            self._send_numbers(command, numbers, mask, self._next)
            if mask is not None:
                self._send(mask, self._next)

    def _send_numbers(self, command: StepCommand, numbers: Sequence[int], mask: Tensor | None, rank: int) -> None:
        """Send a command: a head with the sizes of the rest, and the integers where there are any."""
        mask_shape = (mask.shape[0], *mask.shape[2:]) if mask is not None else (0, 0, 0)
        for part in ([command, len(numbers), *mask_shape], numbers):
            if part:
                self._send(torch.tensor(part), rank, self._channels.commands)

    def _send(self, tensor: Tensor, rank: int, group: ProcessGroup | None = None) -> None:
        work = distributed.isend(tensor, rank, group=group)
        if work is not None:
            self._sends.append((work, tensor))  # keep the tensor alive until it has been sent

    def wait_for_sends(self) -> None:
        """Wait until every send has completed, as soon as it has been received."""
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()
        self.shard.wait_for_sends()

    def step(self, numbers: Iterator[int], mask: Tensor | None) -> Tensor | None:
        """Run this rank's part of a decoding step; returns x of the last position [1, B, H] on the last stage."""
        batch, b, s, capacity, kept = (next(numbers) for _ in range(5))
        if capacity:
            self._caches[batch] = Cache(self.config, capacity)
        cache = self._caches[batch]
        if kept:
            cache.keep(to_device(take_tensor(numbers, kept), self.shard.device))
        tokens_BS, positions_BS = (to_device(take_tensor(numbers, b, s), self.shard.device) for _ in range(2))
        attend = cache.attend(mask.bool() if mask is not None else None)
        x_SBH = self.shard.forward(tokens_BS, positions_BS, attend)
        if x_SBH is None:
            return None
        last_1BH = x_SBH[-1:].contiguous()
        if not self.leads and self.shard.place.tp == 0:
            self._send(last_1BH, self._leader, self._channels.results)
        return last_1BH

    def logits(self, x_BH: Tensor) -> Tensor:
        """Logits [B, V] of the leader's x_BH, gathered from the slices of the token table in its stage."""
        x_BH = x_BH.to(self.shard.device)
        group = self.shard.slicing.group
        distributed.broadcast(x_BH, src=self._leader, group=group)
        local_BW = self.shard.local_logits(x_BH)
        slices = [torch.empty_like(local_BW) for _ in range(self.shard.layout.tp)]
        distributed.all_gather(slices, local_BW.contiguous(), group=group)
        return torch.cat(slices, dim=1)

    def receive_result(self, b: int) -> tuple[distributed.Work | None, Tensor]:
        """Start to receive the last stage's result of a step with B rows: the work to wait for, and its buffer."""
        x_1BH = torch.empty(1, b, self.config.hidden, dtype=self.shard.dtype, device=self.shard.device)
        return distributed.irecv(x_1BH, self._last, group=self._channels.results), x_1BH


class RemoteDecoder:
    """Stands in for the whole decoder in `mtnlg_model.generation.generate`, for one batch."""

    training = False

    def __init__(self, replica: Replica, number: int) -> None:
        self.config, self.embedding = replica.config, replica.shard.embedding
        self._replica, self._number = replica, number

    def cache(self, capacity: int) -> RemoteCache:
        """Cache of this batch on every rank, for the rank's own heads and layers."""
        return RemoteCache(capacity)

    def hidden(self, tokens_BS: Tensor, positions_BS: Tensor, attend: tuple[RemoteCache, Tensor | None]) -> Tensor:
        """Hidden states after the final norm, of the last position only: x [1, B, H]."""
        (b, s), (cache, mask) = tokens_BS.shape, attend
        numbers = [self._number, b, s, *cache.encode_changes(s)]
        numbers += tokens_BS.flatten().tolist() + positions_BS.expand(b, s).flatten().tolist()
        if mask is not None:
            mask = mask.expand(b, 1, s, -1).to(torch.uint8).contiguous()
        pending = None
        with self._replica.lock:
            self._replica.send_command(StepCommand.STEP, numbers, mask)
            last_1BH = self._replica.step(iter(numbers), mask)
            if last_1BH is None:
                pending, last_1BH = self._replica.receive_result(b)
        if pending is not None:
            wait_on_host(pending, last_1BH.device)
        return last_1BH

    def logits(self, x_BH: Tensor) -> Tensor:
        """[B, H] → [B, V]."""
        with self._replica.lock:
            if self._replica.shard.layout.tp == 1:
                return self._replica.shard.local_logits(x_BH)
            self._replica.send_command(StepCommand.LOGITS, [len(x_BH)])
            return self._replica.logits(x_BH.contiguous())


class RemoteCache:
    """Records what `mtnlg_model.generation.generate` does to its cache; every rank repeats it with the next step."""

    def __init__(self, capacity: int) -> None:
        self.length, self._new_capacity, self._kept_rows = 0, capacity, list[int]()

    def attend(self, mask: Tensor | None = None) -> tuple[RemoteCache, Tensor | None]:
        """Stand-in for attention through the caches of all ranks: this cache, and the mask of the step."""
        return self, mask

    def positions(self, tokens_BS: Tensor) -> Tensor:
        """Positions [1, S] of tokens that continue the cached ones."""
        return torch.arange(self.length, self.length + tokens_BS.shape[1])[None]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows of the batch."""
        self._kept_rows = rows.tolist()

    def encode_changes(self, s: int) -> list[int]:
        """Encode the new cache's capacity (0: none), the number of rows to keep (0: all) and their indices; adds S."""
        changes = [self._new_capacity, len(self._kept_rows), *self._kept_rows]
        self.length, self._new_capacity, self._kept_rows = self.length + s, 0, []
        return changes
