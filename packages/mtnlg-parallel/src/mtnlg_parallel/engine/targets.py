"""The weight of a target in a batch of which only some targets count.

The loss of a step is the mean over the T targets that count, of all ranks and micro-batches. An engine takes means:
over the N targets of a micro-batch, over M micro-batches, over dp ranks. So each target that counts weighs N M dp / T.
"""

from __future__ import annotations

import math
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
    """The batches, read ahead where targets are counted, and the weight of one that counts; None where all do.

    Collective over ``dp_group`` where they are counted. NaN where none counts, so that the step is skipped.
    """
    first = next(batches)
    if first.counted is None:
        return chain([first], batches), None
    read = [first, *islice(batches, micro_batches - 1)]
    counted = torch.tensor(sum(batch.counted or 0 for batch in read), device=device)
    wait_for(distributed.all_reduce(counted, group=dp_group, async_op=True))
    targets = first.targets.numel() * micro_batches * dp_group.size()
    return iter(read), targets / int(counted) if counted else math.nan
