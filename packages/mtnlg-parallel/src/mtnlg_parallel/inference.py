"""Forward passes over a decoder cut in tensor and pipeline slices: what evaluation needs, without DeepSpeed.

Every rank builds its own parts and reads its own slices from the checkpoint. Ranks of a stage hand their activations to
those of the next, without waiting, so that a stage begins its next batch while the one behind it works: as many batches
are in flight as are given. Replicas (dp) know nothing of one another here.

N scored places, V vocabulary.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  (its usual name)
from torch import Tensor, distributed, nn

from mtnlg_model.console import UsageFailure
from mtnlg_parallel.model.slicing import Slicing, initialize
from mtnlg_parallel.model.stage_modules import Embedding, Head, Layer, Norm

from .layout import CUTS, refusal, stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mtnlg_model.checkpoint.reader import Checkpoint
    from mtnlg_model.functional import Attend

    from .layout import Layout

PATIENCE = timedelta(hours=1)
"""How long a rank waits for work: whoever has it may be reading data."""

PLACES_AT_ONCE = 512


def join(layout: Layout) -> torch.device:
    """Join the job whose rank this process is by its environment (RANK, WORLD_SIZE, …); returns the rank's device."""
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # megatron-core decorates with torch.compile what we never call
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE, device_id=device if cuda else None)
    initialize(layout)
    return device


class Share:
    """What one rank holds of a checkpoint's decoder: some layers, some heads, and no more of it ever."""

    def __init__(self, checkpoint: Checkpoint, layout: Layout, device: torch.device, dtype: torch.dtype) -> None:
        """Build and fill the parts; ``UsageFailure`` where the decoder cannot be cut so."""
        config = self.config = checkpoint.config
        if why := refusal(layout, config):
            raise UsageFailure(why)
        rank = distributed.get_rank()
        self.layout, self.place, self.device, self.dtype = layout, layout.coordinates(rank), device, dtype
        self.slicing = Slicing.here(sequence_parallel=False, device=device)
        stage = stages(config, layout, "none")[self.place.pp]
        self.first, self.last = self.place.pp == 0, self.place.pp == layout.pp - 1
        self.embedding = Embedding(config, self.slicing, device) if self.first else None
        self.layers = {n: Layer(config, n, self.slicing, "none", device) for n in stage.layers}
        self.norm = Norm(config, self.slicing, device) if self.last else None
        self.head = self.embedding or (Head(config, self.slicing, device) if self.last else None)
        self._behind = layout.rank(self.place.tp, self.place.pp - 1, self.place.dp) if not self.first else -1
        self._ahead = layout.rank(self.place.tp, self.place.pp + 1, self.place.dp) if not self.last else -1
        self._sent: list[tuple[distributed.Work, Tensor]] = []
        self._fill(checkpoint)

    def _fill(self, checkpoint: Checkpoint) -> None:
        shapes = self.config.parameter_shapes()
        parts: dict[str, nn.Module | None] = {"embedding": self.embedding, "final_norm": self.norm}
        parts |= {f"layers.{n}": layer for n, layer in self.layers.items()}
        if not self.first:
            parts["embedding"] = self.head
        for key, part in parts.items():
            if part is None:
                continue
            part.to(self.dtype).eval().requires_grad_(requires_grad=False)
            for name, parameter in part.named_parameters():
                whole = f"{key}.{name}"
                parameter.copy_(checkpoint.tensor(whole, self.slicing.box(shapes[whole], CUTS.get(name))))

    @torch.inference_mode()
    def run(
        self, tokens_BS: Tensor, positions_BS: Tensor | None, attend: Sequence[Attend] | None = None
    ) -> Tensor | None:
        """Run this stage on a batch: x_SBH after the final norm on the last stage, None on the others.

        All ranks of a replica must be given the same batches in the same order. ``attend`` replaces attention in each
        of the decoder's layers, by number, with this rank's own cache or packed paths.
        """
        if self.embedding is not None:
            x_SBH = self.embedding(tokens_BS, positions_BS)
        else:
            b, s = tokens_BS.shape
            x_SBH = torch.empty(s, b, self.config.hidden, dtype=self.dtype, device=self.device)
            distributed.recv(x_SBH, self._behind)
        for number, layer in self.layers.items():
            x_SBH = layer(x_SBH, attend[number] if attend else None)
        if self.norm is not None:
            normed: Tensor = self.norm(x_SBH)
            return normed
        self._send(x_SBH.contiguous())
        return None

    def _send(self, x_SBH: Tensor) -> None:
        work = distributed.isend(x_SBH, self._ahead)
        if work is not None:  # what is sent must live until it has gone
            self._sent = [(other, held) for other, held in self._sent if not other.is_completed()] + [(work, x_SBH)]

    @torch.inference_mode()
    def score(self, x_NH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log P(target) in fp32 and whether no token is likelier, [N] each; on the last stage's ranks, all together.

        Each rank sees its own slice of the vocabulary: a maximum, a sum and a logit cross the wire, [N] each.
        """
        chunks = zip(torch.split(x_NH, PLACES_AT_ONCE), torch.split(targets_N, PLACES_AT_ONCE), strict=True)
        scored = [self._score(*chunk) for chunk in chunks]
        return torch.cat([logp for logp, _ in scored]), torch.cat([greedy for _, greedy in scored])

    def _score(self, x_NH: Tensor, targets_N: Tensor) -> tuple[Tensor, Tensor]:
        logits_NW = self.slice_of_logits(x_NH)
        width = logits_NW.shape[1]
        local_N = targets_N - self.slicing.rank * width
        here_N = (local_N >= 0) & (local_N < width)
        target_N = logits_NW.gather(1, local_N.clamp(0, width - 1)[:, None])[:, 0] * here_N
        most_N, where_N = logits_NW.max(1)
        top_N = self._over_slices(most_N.clone(), distributed.ReduceOp.MAX)
        total_N = self._over_slices((logits_NW - top_N[:, None]).exp().sum(1), distributed.ReduceOp.SUM)
        target_N = self._over_slices(target_N, distributed.ReduceOp.SUM)
        # Of equally likely tokens the first is the greedy one, as for argmax over all of them.
        greedy_N = torch.where(most_N == top_N, where_N + self.slicing.rank * width, self.config.vocabulary)
        greedy_N = self._over_slices(greedy_N, distributed.ReduceOp.MIN)
        return target_N - top_N - total_N.log(), greedy_N == targets_N

    def slice_of_logits(self, x_NH: Tensor) -> Tensor:
        """[N, H] → this rank's logits [N, V / tp] in fp32; first and last stage have the token table."""
        if self.head is None:
            raise RuntimeError(f"stage {self.place.pp} of {self.layout.pp} has no token table")
        return F.linear(x_NH, self.head.token.weight).float()

    def _over_slices(self, x_N: Tensor, operation: distributed.ReduceOp.RedOpType) -> Tensor:
        distributed.all_reduce(x_N, operation, group=self.slicing.group)
        return x_N

    def settle(self) -> None:
        """Wait until everything that was sent has gone."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
