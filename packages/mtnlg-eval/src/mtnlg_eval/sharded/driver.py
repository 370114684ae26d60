"""The sharded model: what rank 0 asks of it, and what every rank does then.

`Driver` is a `Forward` (scoring) and a `Generation` at once: its methods tell the other ranks first and then do rank
0's own share, by the same code that they run.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import distributed

from mtnlg_model.console import Failure

from . import messages
from .messages import Kind
from .replica import Replica

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from mtnlg_eval.scoring.generation import Portion
    from mtnlg_eval.scoring.packing import Batch
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.tokenizer import Tokenizer
    from mtnlg_parallel.inference import Share

IN_FLIGHT = 4
"""Batches that a replica is given at once, a pipeline stage."""


class Server:
    """What any rank does at a message."""

    def __init__(self, share: Share, tokenizer: Tokenizer) -> None:
        self.share, self.replica = share, Replica(share, tokenizer)
        self.config: ModelConfig = share.config

    def serve(self) -> None:
        """Do what rank 0 says until it says stop; on every rank but 0."""
        while True:
            kind, numbers = messages.receive(self.share.device)
            match kind:
                case Kind.SCORE:
                    self._score(messages.read(numbers))
                case Kind.GENERATE:
                    self._generate(messages.read_portions(numbers))
                case Kind.STOP:
                    return

    def _score(self, batches: list[Batch]) -> Tensor:
        """Of all places of these batches log P(target) and whether it is likeliest, [2, N]; whole on rank 0."""
        share = self.share
        told = torch.zeros(2, sum(len(batch.places) for batch in batches), device=share.device)
        start = 0
        for number, batch in enumerate(batches):
            end = start + len(batch.places)
            if number % share.layout.dp == share.place.dp:
                here = batch.to(share.device)
                paths = here.paths()
                x_N1H = share.run(here.tokens[None], paths.depths[None], paths.attend(self.config.layers))
                if x_N1H is not None:
                    logp_N, greedy_N = share.score(x_N1H[:, 0], here.targets)
                    if share.place.tp == 0:
                        told[0, start:end], told[1, start:end] = logp_N, greedy_N
            start = end
        share.settle()
        distributed.reduce(told, dst=0)  # each column is one rank's, zero on all others
        return told

    def _generate(self, portions: Sequence[Portion]) -> Tensor:
        """Of all contexts of these portions the new tokens + 1, [N, most tokens], zeros behind; whole on rank 0."""
        share, most = self.share, max(portion.options.tokens for portion in portions)
        told = [torch.zeros(len(portion.contexts), most, dtype=torch.int64) for portion in portions]
        mine = slice(share.place.dp, None, share.layout.dp)
        for part, news in zip(told[mine], self.replica.generate(portions[mine]), strict=self.replica.leads):
            for row, new in zip(part, news, strict=True):
                row[: len(new)] = torch.tensor(new) + 1
        told_NT = torch.cat(told).to(share.device)
        distributed.reduce(told_NT, dst=0)  # each row is one rank's, zero on all others
        return told_NT


class Driver(Server):
    """The whole model as rank 0 sees it."""

    @property
    def embedding(self) -> torch.nn.Module:
        """Rank 0's slice of the embedding, for its device and dtype."""
        if self.share.embedding is None:
            raise RuntimeError("rank 0 is not on the first stage")
        return self.share.embedding

    def __call__(self, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
        """As `mtnlg_eval.scoring.decoder_lm.Forward`."""
        layout, waiting = self.share.layout, iter(batches)
        at_once = layout.dp * (1 if layout.pp == 1 else IN_FLIGHT * layout.pp)
        while wave := list(islice(waiting, at_once)):
            messages.send(Kind.SCORE, messages.written(wave), self.share.device)
            told = self._score(wave).cpu()
            for part in torch.split(told, [len(batch.places) for batch in wave], dim=1):
                yield part[0], part[1] > 0

    def generate(self, portions: Iterable[Portion]) -> Iterator[list[list[int]]]:
        """As `mtnlg_eval.scoring.generation.Generation`."""
        layout, waiting = self.share.layout, iter(portions)
        while wave := list(islice(waiting, layout.dp * layout.pp)):
            self._refuse(wave)
            messages.send(Kind.GENERATE, messages.written_portions(wave), self.share.device)
            told_NT = self._generate(wave).cpu()
            rows = iter([[token - 1 for token in row if token] for row in told_NT.tolist()])
            yield from (list(islice(rows, len(portion.contexts))) for portion in wave)

    def _refuse(self, portions: Sequence[Portion]) -> None:
        """``Failure`` for a prompt that is too long, before any rank is told: none may fail alone."""
        longest = max(len(context) for portion in portions for context in portion.contexts)
        if longest > self.config.sequence:
            raise Failure(f"a prompt has {longest} tokens; the model reads {self.config.sequence}")

    def close(self) -> None:
        """Let the other ranks go."""
        messages.send(Kind.STOP, [], self.share.device)
