"""Forward passes of a decoder under tensor and pipeline parallelism, for evaluation; without DeepSpeed.

Every rank builds only its own modules and reads only its own slices of the checkpoint. A stage sends its activations to
the next asynchronously and starts its next batch at once, so several batches are in flight. Replicas (dp) do not
communicate.

Shapes: S sequence, B batch, H hidden, N scored positions, V vocabulary, W = V / tp.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed

from mtnlg_model.console import UsageFailure
from mtnlg_model.functional import add_bias, fp32_logits, softcap
from mtnlg_parallel.model.head import real_rows
from mtnlg_parallel.model.slicing import Slicing, init_process_group, local_device, set_timeouts
from mtnlg_parallel.model.stage_modules import StageModules
from mtnlg_parallel.waiting import wait_for

from .layout import evaluation_error, stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.functional import Attend

    from .layout import Layout

TIMEOUT = timedelta(hours=1)
"""Timeout of collectives: long, since ranks without work wait in one while rank 0 reads data."""

SCORE_CHUNK = 512
"""Positions scored at once, which bounds the memory of their logits."""


def init_distributed() -> torch.device:
    """Initialize torch.distributed as `environment.this_rank`; returns this rank's device."""
    device = local_device()
    init_process_group(device, TIMEOUT)
    return device


class DecoderShard:
    """One rank's part of a checkpoint's decoder: the layers of its stage, with its slice of each."""

    def __init__(self, checkpoint: Checkpoint, layout: Layout, device: torch.device, dtype: torch.dtype) -> None:
        """Build the modules and read their weights. Raises ``UsageFailure`` if ``layout`` does not fit the decoder."""
        config = self.config = checkpoint.config
        if error := evaluation_error(layout, config):
            raise UsageFailure(error)
        rank = distributed.get_rank()
        self.layout, self.place, self.device, self.dtype = layout, layout.coordinates(rank), device, dtype
        self.slicing = Slicing.of_this_rank(layout, config, sequence_parallel=False)
        set_timeouts(TIMEOUT)
        stage = stages(config, layout, "none")[self.place.pp]
        if self.place.pp == 0 != layout.pp - 1:  # which draws the tokens that it continues
            stage = stage._replace(parts=(*stage.parts, "head"))
        self.is_last = self.place.pp == layout.pp - 1
        self.modules = StageModules(stage, config, self.slicing, "none", device).to(dtype)
        self.modules.eval().requires_grad_(requires_grad=False)
        for local in self.modules.local_parameters():
            local.parameter.copy_(checkpoint.tensor(local.name, local.box))
        self._previous, self._next = (
            layout.rank(self.place.tp, pp, self.place.dp) if 0 <= pp < layout.pp else None
            for pp in (self.place.pp - 1, self.place.pp + 1)
        )
        self._sends: list[tuple[distributed.Work, Tensor]] = []

    @torch.inference_mode()
    def forward(
        self, tokens_BS: Tensor, positions_BS: Tensor | None, attend: Sequence[Attend] | None = None
    ) -> Tensor | None:
        """Run this stage on a batch; returns x_SBH after the final norm on the last stage, None on the others.

        All ranks of a replica must call it with the same batches in the same order. ``attend`` has a replacement for
        the attention of each layer of the decoder, by layer number, to use this rank's cache or packed paths.
        """
        if self._previous is None:
            x = tokens_BS
        else:
            b, s = tokens_BS.shape
            x = torch.empty(s, b, self.config.hidden, dtype=self.dtype, device=self.device)
            distributed.recv(x, self._previous)
        x_SBH: Tensor = self.modules(x, positions_BS, attend)
        if self._next is None:
            return x_SBH
        self._send(x_SBH.contiguous(), self._next)
        return None

    def _send(self, x_SBH: Tensor, receiver: int) -> None:
        work = distributed.isend(x_SBH, receiver)
        if work is not None:  # keep the tensor alive until it has been sent
            self._sends = [send for send in self._sends if not send[0].is_completed()] + [(work, x_SBH)]

    @torch.inference_mode()
    def score(self, x_NH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log P(target) in fp32, and whether the target is the greedy token, [N] each.

        Collective over the last stage's tensor-parallel ranks, each with its slice of the vocabulary: all-reduces the
        maximum, the sum, the target's logit and the greedy token, [N] each.
        """
        chunks = zip(torch.split(x_NH, SCORE_CHUNK), torch.split(targets_N, SCORE_CHUNK), strict=True)
        scored = [self._score(*chunk) for chunk in chunks]
        return torch.cat([logp for logp, _ in scored]), torch.cat([greedy for _, greedy in scored])

    def _score(self, x_NH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        logits_NW = self.local_logits(x_NH)
        width = logits_NW.shape[1]
        first = self.slicing.rank * width
        column_N = targets_N - first
        is_local_N = (column_N >= 0) & (column_N < width)
        target_N = logits_NW.gather(1, column_N.clamp(0, width - 1)[:, None])[:, 0].masked_fill(~is_local_N, 0)
        local_max_N, argmax_N = logits_NW.max(1)
        max_N = self._all_reduce(local_max_N.clone(), distributed.ReduceOp.MAX)
        sum_N = self._all_reduce((logits_NW - max_N[:, None]).exp().sum(1), distributed.ReduceOp.SUM)
        target_N = self._all_reduce(target_N, distributed.ReduceOp.SUM)
        # Among equally likely tokens the first is the greedy one, as in an argmax over the full vocabulary.
        greedy_N = torch.where(local_max_N == max_N, argmax_N + first, self.config.vocabulary)
        greedy_N = self._all_reduce(greedy_N, distributed.ReduceOp.MIN)
        return target_N - max_N - sum_N.log(), greedy_N == targets_N

    def local_logits(self, x_NH: Tensor) -> Tensor:
        """[N, H] → this rank's slice of the logits, [N, W] in fp32, -Inf for padding; on the first and last stage."""
        weight_WH = self.modules.table
        logits_NW = add_bias(fp32_logits(x_NH, weight_WH), self.modules.table_bias)
        logits_NW = softcap(logits_NW, self.config.logit_softcap)
        logits_NW[:, real_rows(self.slicing, len(weight_WH), self.config.vocabulary_padding) :] = -torch.inf
        return logits_NW

    def _all_reduce(self, x_N: Tensor, operation: distributed.ReduceOp.RedOpType) -> Tensor:
        distributed.all_reduce(x_N, operation, group=self.slicing.group)
        return x_N

    def wait_for_sends(self) -> None:
        """Wait until all activations have been sent."""
        for work, _ in self._sends:
            wait_for(work)
        self._sends.clear()
