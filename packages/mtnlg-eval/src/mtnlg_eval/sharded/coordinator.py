"""The sharded model: `Coordinator` on rank 0, `Worker` on every other rank.

`Coordinator` is an `Engine` (scoring/decoder_lm.py): its methods broadcast a command, then do rank 0's own part of the
work with the code that every worker runs.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import distributed

from mtnlg_model.console import Failure

from . import messages
from .messages import Command
from .replica import Replica

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from mtnlg_eval.scoring.generation import PromptBatch
    from mtnlg_eval.scoring.packing import Batch
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.tokenizer import Tokenizer
    from mtnlg_parallel.inference import DecoderShard

BATCHES_PER_STAGE = 4
"""Batches in flight for each pipeline stage of a replica."""


class Worker:
    """One rank's part of scoring and generation."""

    def __init__(self, shard: DecoderShard, tokenizer: Tokenizer) -> None:
        self.shard, self.replica = shard, Replica(shard, tokenizer)
        self.config: ModelConfig = shard.config

    def serve(self) -> None:
        """Execute rank 0's commands until it sends STOP."""
        while True:
            command, numbers = messages.receive_command(self.shard.device)
            match command:
                case Command.SCORE:
                    self._score(messages.decode_batches(numbers))
                case Command.GENERATE:
                    self._generate(messages.decode_prompts(numbers))
                case Command.STOP:
                    return

    def _score(self, batches: list[Batch]) -> Tensor:
        """Score this replica's batches; on rank 0 returns log P(target) and greedy flags of all batches, [2, N]."""
        shard = self.shard
        scores_2N = torch.zeros(2, sum(len(batch.scored) for batch in batches), device=shard.device)
        start = 0
        for number, batch in enumerate(batches):
            end = start + len(batch.scored)
            if number % shard.layout.dp == shard.place.dp:
                local = batch.to(shard.device)
                plan = local.attention_plan()
                x_N1H = shard.forward(local.tokens[None], plan.position_ids[None], plan.attend(self.config.layers))
                if x_N1H is not None:
                    logp_N, greedy_N = shard.score(x_N1H[:, 0], local.targets)
                    if shard.place.tp == 0:
                        scores_2N[0, start:end], scores_2N[1, start:end] = logp_N, greedy_N
            start = end
        shard.wait_for_sends()
        distributed.reduce(scores_2N, dst=0)  # each column comes from one rank and is zero on all others
        return scores_2N

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
        tokens_NT = torch.cat(rows_by_batch).to(shard.device)
        distributed.reduce(tokens_NT, dst=0)  # each row comes from one rank and is zero on all others
        return tokens_NT


class Coordinator(Worker):
    """The whole model as rank 0 sees it."""

    @property
    def embedding(self) -> torch.nn.Module:
        """Rank 0's slice of the embedding, for its device and dtype."""
        if self.shard.embedding is None:
            raise RuntimeError("rank 0 is not on the first stage")
        return self.shard.embedding

    def score(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """Score packed batches, several in flight per stage."""
        layout, remaining = self.shard.layout, iter(batches)
        in_flight = layout.dp * (1 if layout.pp == 1 else BATCHES_PER_STAGE * layout.pp)
        while wave := list(islice(remaining, in_flight)):
            messages.broadcast_command(Command.SCORE, messages.encode_batches(wave), self.shard.device)
            scores_2N = self._score(wave).cpu()
            for part_2N in torch.split(scores_2N, [len(batch.scored) for batch in wave], dim=1):
                yield part_2N[0], part_2N[1] > 0

    def generate(self, batches: Iterable[PromptBatch]) -> Iterator[list[list[int]]]:
        """Generate from batches of prompts, one in flight per stage."""
        layout, remaining = self.shard.layout, iter(batches)
        while wave := list(islice(remaining, layout.dp * layout.pp)):
            self._check_lengths(wave)
            messages.broadcast_command(Command.GENERATE, messages.encode_prompts(wave), self.shard.device)
            tokens_NT = self._generate(wave).cpu()
            rows = iter([[token - 1 for token in row if token] for row in tokens_NT.tolist()])
            yield from (list(islice(rows, len(batch.contexts))) for batch in wave)

    def _check_lengths(self, batches: Sequence[PromptBatch]) -> None:
        """Raise ``Failure`` for a prompt that is too long before any command is sent: no rank may fail alone."""
        longest = max(len(context) for batch in batches for context in batch.contexts)
        if longest > self.config.sequence:
            raise Failure(f"a prompt has {longest} tokens; the model reads {self.config.sequence}")

    def close(self) -> None:
        """Tell the other ranks to stop."""
        messages.broadcast_command(Command.STOP, [], self.shard.device)
