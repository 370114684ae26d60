"""Weight of each target in a batch where only some targets count.

The loss of a step is the mean over the T targets that count, across all ranks and micro-batches. An engine averages
over the N targets of a micro-batch, M micro-batches and dp ranks. So each target that counts weighs N M dp / T. With
context parallelism each of cp ranks averages over N / cp of them and counts all, so the weight is the same.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mtnlg_parallel.waiting import wait_for

if TYPE_CHECKING:
    from .contract import MicroBatches


def weigh_targets(
    batches: MicroBatches,
    micro_batches: int,
    dp_group: Any,  # noqa: ANN401  (a ProcessGroup)
    device: torch.device,
) -> tuple[MicroBatches, float | None]:
    """The batches, and the weight of each target that counts; None if all targets count.

    If only some count, this reads all batches ahead and is collective over ``dp_group``. The weight is 0 if none
    counts: the loss is NaN then, its gradient 0.
    """
    first = next(batches)
    if first.counted is None:
        return chain([first], batches), None
    read = [first, *islice(batches, micro_batches - 1)]
    counted = torch.tensor(sum(batch.counted or 0 for batch in read), device=device)
    wait_for(distributed.all_reduce(counted, group=dp_group, async_op=True))
    targets = first.targets.numel() * micro_batches * dp_group.size()
    return iter(read), targets / int(counted) if counted else 0.0
