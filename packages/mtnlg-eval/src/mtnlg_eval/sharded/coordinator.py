"""The sharded model: `Coordinator` on rank 0, `Worker` on every other rank.

`Coordinator` is an `Engine` (scoring/rolling_queue.py): its methods send commands, then do rank 0's own part of the
work with the code that every worker runs. Batches to score go to the replica with the fewest tokens in flight, and come
back when they come: no rank waits for another batch than the next of its own replica.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import distributed

from mtnlg_eval.scoring.decoder_lm import row_multiple
from mtnlg_eval.scoring.transfers import Arriving
from mtnlg_model.console import Failure

from . import messages
from .messages import Command
from .replica import Replica, StepCommand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from mtnlg_eval.scoring.generation import PromptBatch
    from mtnlg_eval.scoring.packing import Batch
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.tokenizer import Tokenizer
    from mtnlg_parallel.inference import DecoderShard

    from .messages import Channels

BATCHES_PER_STAGE = 2
"""Batches in flight for each pipeline stage of a replica: one that it computes, one that waits for it."""

PIPELINE_SHARE = 2
"""A pipeline's first stage ends, and its last begins, as many times a batch's time away as there are other stages."""


class Worker:
    """One rank's part of scoring and generation."""

    def __init__(self, shard: DecoderShard, tokenizer: Tokenizer, channels: Channels) -> None:
        self.shard, self.replica, self.channels = shard, Replica(shard, tokenizer, channels), channels
        self.config: ModelConfig = shard.config

    def serve(self) -> None:
        """Execute rank 0's commands until it sends STOP."""
        while True:
            command, numbers = messages.receive_command(self.channels.commands)
            match command:
                case Command.SCORE:
                    if self.replica.leads:
                        self.replica.lead_scoring()
                    else:
                        self.replica.follow()
                    self.shard.wait_for_sends()
                case Command.GENERATE:
                    self._generate(messages.decode_prompts(numbers))
                case Command.STOP:
                    return

    def _generate(self, batches: Sequence[PromptBatch]) -> Tensor:
        """Generate this replica's batches; on rank 0 returns new tokens of all prompts, [N, largest ``max_tokens``].

        Each token is stored plus 1, and 0 is padding.
        """
        shard, longest = self.shard, max(batch.options.max_tokens for batch in batches)
        rows_by_batch = [torch.zeros(len(batch.contexts), longest, dtype=torch.int64) for batch in batches]
        own = slice(shard.place.dp, None, shard.layout.dp)
        generated = self.replica.generate(batches[own])
        for rows, new in zip(rows_by_batch[own], generated, strict=self.replica.leads):
            for row, tokens in zip(rows, new, strict=True):
                row[: len(tokens)] = torch.tensor(tokens) + 1
        tokens_NT = torch.cat(rows_by_batch)
        # Each row comes from one rank and is zero on all others.
        distributed.reduce(tokens_NT, dst=0, group=self.channels.commands)
        return tokens_NT


class _InFlight(NamedTuple):
    """A batch in a replica: its tokens, and its scores, [2, N]."""

    dp: int
    tokens: int
    scores: Arriving


class Coordinator(Worker):
    """The whole model as rank 0 sees it."""

    def __init__(self, shard: DecoderShard, tokenizer: Tokenizer, channels: Channels) -> None:
        super().__init__(shard, tokenizer, channels)
        layout = shard.layout
        self.row_multiple = row_multiple(shard.device)
        self.capacity = layout.dp * BATCHES_PER_STAGE * layout.pp
        self.batch_share = 1 if layout.pp == 1 else PIPELINE_SHARE
        self._in_flight: deque[_InFlight] = deque()
        self._tokens_by_replica = [0] * layout.dp
        self._sends: deque[tuple[distributed.Work, Tensor]] = deque()
        self._series = False

    @property
    def embedding(self) -> torch.nn.Module:
        """Rank 0's slice of the embedding, for its device and dtype."""
        if self.shard.embedding is None:
            raise RuntimeError("rank 0 is not on the first stage")
        return self.shard.embedding

    def submit(self, batch: Batch) -> None:
        """Send a packed batch to the least loaded replica, rank 0's own being the last to choose."""
        if not self._series:
            messages.broadcast_command(Command.SCORE, [], self.channels.commands)
            self._series = True
        load = self._tokens_by_replica
        dp = min(reversed(range(len(load))), key=load.__getitem__)
        load[dp] += len(batch.tokens)
        scores_2N = self._give(dp, StepCommand.SCORE, batch)
        work = None
        if scores_2N is None:
            scores_2N = torch.empty(2, len(batch.scored), device=self.shard.device)
            layout = self.shard.layout
            work = distributed.irecv(scores_2N, layout.rank(0, layout.pp - 1, dp), group=self.channels.results)
        self._in_flight.append(_InFlight(dp, len(batch.tokens), Arriving(scores_2N, work)))

    def _give(self, dp: int, command: StepCommand, batch: Batch | None = None) -> Tensor | None:
        """Give a command to a replica; its scores, if rank 0 computes them itself."""
        numbers = [] if batch is None else messages.encode_batch(batch)
        if dp == self.shard.place.dp:
            self.replica.send_command(command, numbers)
            return None if batch is None else self.replica.score(batch)
        leader = self.shard.layout.rank(0, 0, dp)
        while len(self._sends) > 2 * self.capacity:  # no more batches are in flight: the oldest has been received
            self._sends.popleft()[0].wait()
        for part in ([command, len(numbers)], numbers):
            if part:
                tensor = torch.tensor(part)
                work = distributed.isend(tensor, leader, group=self.channels.commands)
                if work is not None:
                    self._sends.append((work, tensor))  # alive until it has been sent
        return None

    def collect(self) -> tuple[Tensor, Tensor]:
        """Scores of the oldest batch in flight."""
        dp, tokens, scores = self._in_flight.popleft()
        logp_N, greedy_N = scores.wait()
        self._tokens_by_replica[dp] -= tokens
        return logp_N, greedy_N > 0

    def finish(self) -> None:
        """Let every rank wait for the next command."""
        if self._series:
            for dp in range(self.shard.layout.dp):
                self._give(dp, StepCommand.END)
            for work, _ in self._sends:
                work.wait()
            self._sends.clear()
            self.replica.wait_for_sends()
            self.shard.wait_for_sends()
            self._series = False

    def generate(self, batches: Iterable[PromptBatch]) -> Iterator[list[list[int]]]:
        """Generate from batches of prompts, one in flight per stage."""
        layout, remaining = self.shard.layout, iter(batches)
        while wave := list(islice(remaining, layout.dp * layout.pp)):
            self._check_lengths(wave)
            messages.broadcast_command(Command.GENERATE, messages.encode_prompts(wave), self.channels.commands)
            tokens_NT = self._generate(wave)
            rows = iter([[token - 1 for token in row if token] for row in tokens_NT.tolist()])
            yield from (list(islice(rows, len(batch.contexts))) for batch in wave)

    def _check_lengths(self, batches: Sequence[PromptBatch]) -> None:
        """Raise ``Failure`` for a prompt that is too long before any command is sent: no rank may fail alone."""
        longest = max(len(context) for batch in batches for context in batch.contexts)
        if longest > self.config.sequence:
            raise Failure(f"a prompt has {longest} tokens; the model reads {self.config.sequence}")

    def close(self) -> None:
        """Tell the other ranks to stop."""
        messages.broadcast_command(Command.STOP, [], self.channels.commands)
