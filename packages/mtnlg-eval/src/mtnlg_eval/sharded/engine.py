"""A rank's part of a sharded model: an `Engine` (scoring/decoder_lm.py) that all ranks call in the same way.

    activations   GPU to GPU in torch's default group, only from each stage to the next
    logits        per decoding step: over the tensor slices of the last stage, then along the pipeline
    hosts         scores, texts and stored answers, host to host over gloo: no GPU waits for them

Batches are assigned to the replicas in turn. A stage sends its activations of a batch and begins the next one, so a
replica has a batch in each of its stages; no rank waits for scores until `BATCHES_PER_STAGE` more batches per stage
have begun. Only a maximum, a sum and the target's own logit of a scored position's logits ever leave a rank.
"""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed

from mtnlg_eval.scoring.answer_store import AnswerStore
from mtnlg_eval.scoring.decoder_lm import Arriving, DecoderLM, lagging, request_scores, row_multiple
from mtnlg_eval.scoring.fixed_order import fixed_order
from mtnlg_eval.scoring.generation import generate_batch
from mtnlg_eval.scoring.open_model import answers_identity
from mtnlg_eval.scoring.packing import pack_rows
from mtnlg_model.console import Failure
from mtnlg_model.generation.cache import Cache
from mtnlg_parallel.inference import TIMEOUT, DecoderShard, init_distributed
from mtnlg_parallel.layout import Layout, parse_layout
from mtnlg_parallel.training.collectives import all_gather_json, broadcast_from_rank0

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from mtnlg_eval.scoring.decoder_lm import Score
    from mtnlg_eval.scoring.generation import Prompt
    from mtnlg_eval.scoring.open_model import ModelOptions, OpenedModel
    from mtnlg_eval.scoring.packing import Request, Row
    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.config import ModelConfig
    from mtnlg_model.decoder import Decoder
    from mtnlg_model.tokenizer import Tokenizer

HOST = torch.device("cpu")
BATCHES_PER_STAGE = 2
"""Batches that a stage runs ahead of the scores: one fills the pipeline, another evens out different batch times."""

PIPELINE_SHARE = 2
"""In a pipeline, batches are this many times smaller: filling and draining takes one batch's time per extra stage."""


class ShardedEngine:
    """One rank's part of scoring and generation."""

    def __init__(self, shard: DecoderShard, tokenizer: Tokenizer, hosts: ProcessGroup) -> None:
        self.shard, self.tokenizer, self._hosts = shard, tokenizer, hosts
        layout, place = shard.layout, shard.place
        self._row_multiple = row_multiple(shard.device)
        pipeline = [layout.rank(place.tp, stage, place.dp) for stage in range(layout.pp)]
        group = distributed.new_group(pipeline, use_local_synchronization=True)
        self._decoder = cast("Decoder", ReplicaDecoder(shard, group, pipeline[-1]))

    def score(self, batches: Iterable[Sequence[Row]]) -> Iterator[dict[Request, Score]]:
        """Score batches; each stage begins the next batch while earlier ones are in later stages."""
        layout = self.shard.layout
        computing = ((rows, self._compute(rows, number % layout.dp)) for number, rows in enumerate(batches))
        adding = (self._add_up(*each) for each in lagging(computing, layout.dp))
        for rows, scores_2N, work in lagging(adding, layout.dp * layout.pp * BATCHES_PER_STAGE):
            work.wait()
            yield request_scores(rows, scores_2N)
        self.shard.wait_for_sends()

    def _compute(self, rows: Sequence[Row], replica: int) -> Arriving:
        """Part of a batch's scores on this rank, [2, N]: zeros except on the one rank that computes them."""
        shard, batch = self.shard, pack_rows(rows, self._row_multiple)
        nothing = Arriving(torch.zeros(2, len(batch.scored)))
        if replica != shard.place.dp:
            return nothing
        inputs, targets_N = batch.on(shard.device, shard.config.layers)
        with fixed_order(shard.device):
            x_N1H = shard.forward(*inputs)
            if x_N1H is None:
                return nothing
            logp_N, greedy_N = shard.score(x_N1H[:, 0], targets_N)
        return nothing if shard.place.tp else Arriving(torch.stack((logp_N, greedy_N.to(logp_N.dtype))))

    def _add_up(self, rows: Sequence[Row], part: Arriving) -> tuple[Sequence[Row], Tensor, distributed.Work]:
        """Start the all-reduce of a batch's scores, which are zero on all ranks but one."""
        scores_2N = part.wait()
        return rows, scores_2N, distributed.all_reduce(scores_2N, group=self._hosts, async_op=True)

    def generate(self, batches: Iterable[Sequence[Prompt]]) -> Iterator[list[list[int]]]:
        """Generate from batches of prompts, one batch per replica at a time."""
        place, layout, remaining = self.shard.place, self.shard.layout, iter(batches)
        while wave := list(islice(remaining, layout.dp)):
            new = generate_batch(self._decoder, self.tokenizer, wave[place.dp]) if place.dp < len(wave) else list[Any]()
            self.shard.wait_for_sends()
            texts = all_gather_json(new if place.tp == place.pp == 0 else [], HOST, self._hosts)
            yield from (texts[layout.rank(0, 0, replica)] for replica in range(len(wave)))


class ReplicaDecoder:
    """The decoder for `generate`: every rank of a replica makes the same steps, and gets the logits."""

    training = False

    def __init__(self, shard: DecoderShard, pipeline: ProcessGroup, last: int) -> None:
        self._shard, self._pipeline, self._last = shard, pipeline, last
        self.config: ModelConfig = shard.config
        self.embedding = SimpleNamespace(token=SimpleNamespace(weight=torch.empty(0, device=shard.device)))

    def cache(self, capacity: int) -> Cache:
        """Cache in which this rank fills its heads of its layers."""
        return Cache(self.config, capacity)

    def hidden(self, tokens_BS: Tensor, positions_BS: Tensor, attend: Sequence[Any]) -> Tensor:
        """Hidden states after the final norm, x_SBH, on the last stage; an empty tensor of one position on others."""
        x_SBH = self._shard.forward(tokens_BS, positions_BS, attend)
        return torch.empty(1, len(tokens_BS), 0) if x_SBH is None else x_SBH

    def logits(self, x_BH: Tensor) -> Tensor:
        """[B, H] of the last stage → [B, V] on every rank."""
        shard = self._shard
        if not shard.is_last:
            logits_BV = torch.empty(len(x_BH), self.config.vocabulary, device=shard.device)
        else:
            local_BW = shard.local_logits(x_BH).contiguous()
            slices = [torch.empty_like(local_BW) for _ in range(shard.layout.tp)]
            distributed.all_gather(slices, local_BW, group=shard.slicing.group)
            logits_BV = torch.cat(slices, dim=1)
        distributed.broadcast(logits_BV, src=self._last, group=self._pipeline)
        return logits_BV


class SharedStore(AnswerStore):
    """Rank 0's store: all ranks get the answers that it finds; only rank 0 saves new ones."""

    def __init__(self, identity: str, path: Path | None, hosts: ProcessGroup) -> None:
        self._hosts, self._leads = hosts, distributed.get_rank() == 0
        super().__init__(identity if self._leads else "", path if self._leads else None)

    def lookup(self, keys: Sequence[bytes]) -> dict[bytes, Any]:
        """Rank 0's answers to these keys; all ranks must call it with the same requests."""

        def find() -> list[Any]:
            found = super(SharedStore, self).lookup(keys)
            return [found.get(key) for key in keys]

        answers = broadcast_from_rank0(find, HOST, self._hosts)
        if len(answers) != len(keys):
            raise Failure(f"rank 0 built {len(answers)} requests, this one {len(keys)}: a task is not deterministic")
        return {key: answer for key, answer in zip(keys, answers, strict=True) if answer is not None}

    def save(self, answers: Iterable[tuple[bytes, Any]]) -> None:
        """Write these answers on rank 0; no effect on others."""
        if self._leads:
            super().save(answers)


@contextmanager
def open_sharded(model: OpenedModel, store: Path, options: ModelOptions) -> Iterator[DecoderLM]:
    """Join the process group of the layout with this rank's part of a model; rank 0 has the answers in ``store``."""
    device = init_distributed()
    try:
        layout = Layout(**parse_layout(str(options.layout)))
        shard = DecoderShard(cast("Checkpoint", model.weights), layout, device, model.dtype)
        # Two groups, because stored answers are looked up in a separate thread.
        hosts, lookups = (distributed.new_group(backend="gloo", timeout=TIMEOUT) for _ in range(2))
        engine = ShardedEngine(shard, model.tokenizer, hosts)
        answers = SharedStore(answers_identity(model), store, lookups)
        batch_tokens = options.batch_tokens // (PIPELINE_SHARE if layout.pp > 1 else 1)
        yield DecoderLM(model, engine, answers, batch_tokens, distributed.get_rank())
        distributed.barrier(hosts)
    finally:
        distributed.destroy_process_group()
