"""Commands from rank 0 to all ranks: one broadcast of command and length, one of integers.

Everything is integers (tokens, indices, the bytes of JSON), so nothing is ever pickled.

What ranks send each other has three ways, so that on GPUs none waits for another, or for its peer's order of calls:

    commands       hosts to hosts, over gloo: a host learns of the next batch while its GPU computes one
    activations    GPU to GPU in torch's default group, from each stage to the next alone
    results        GPU to GPU, from last stages back to rank 0 and to leaders

NCCL runs what two ranks send each other within a group in the order of each one's calls, and a receive holds up the
sends behind it. So in no group two ranks both send to each other.
"""

from __future__ import annotations

import json
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import distributed

from mtnlg_eval.scoring.generation import Options, PromptBatch
from mtnlg_eval.scoring.packed_attention import Span
from mtnlg_eval.scoring.packing import Batch
from mtnlg_model.generation.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta

    from torch import Tensor
    from torch.distributed import ProcessGroup


class Command(IntEnum):
    """What the other ranks shall do."""

    STOP = 0
    SCORE = 1
    GENERATE = 2


class Channels(NamedTuple):
    """Process groups of all ranks, beside torch's default one."""

    commands: ProcessGroup
    results: ProcessGroup

    @classmethod
    def open(cls, timeout: timedelta) -> Channels:
        """Make the groups; collective over all ranks."""
        return cls(distributed.new_group(backend="gloo", timeout=timeout), distributed.new_group(timeout=timeout))


def broadcast_command(command: Command, numbers: Sequence[int], group: ProcessGroup) -> None:
    """Send a command and its integers to all ranks; called on rank 0."""
    distributed.broadcast(torch.tensor([command, len(numbers)]), src=0, group=group)
    if numbers:
        distributed.broadcast(torch.tensor(numbers), src=0, group=group)


def receive_command(group: ProcessGroup) -> tuple[Command, Iterator[int]]:
    """Receive the next command and its integers; called on every other rank."""
    head = torch.empty(2, dtype=torch.int64)
    distributed.broadcast(head, src=0, group=group)
    command, length = head.tolist()
    body = torch.empty(length, dtype=torch.int64)
    if length:
        distributed.broadcast(body, src=0, group=group)
    return Command(command), iter(body.tolist())


def encode_batch(batch: Batch) -> list[int]:
    """Encode a scoring batch as integers."""
    numbers = [len(batch.tokens), len(batch.spans), len(batch.scored)]
    numbers += [number for span in batch.spans for number in span]
    for tensor in (batch.tokens, batch.scored, batch.targets):
        numbers += tensor.tolist()
    return numbers


def decode_batch(numbers: Iterator[int]) -> Batch:
    """Decode what `encode_batch` encoded."""
    s, span_count, n = (next(numbers) for _ in range(3))
    spans = tuple(Span(*islice(numbers, 3)) for _ in range(span_count))
    tokens, scored, targets = (take_tensor(numbers, size) for size in (s, n, n))
    return Batch(tokens, spans, scored, targets)


def encode_prompts(batches: Sequence[PromptBatch]) -> list[int]:
    """Encode prompt batches as the bytes of their JSON, which restores every float exactly."""
    values = [
        {"contexts": contexts, "until": until, "max_tokens": max_tokens, "sampling": sampling.model_dump()}
        for contexts, (until, max_tokens, sampling) in batches
    ]
    return list(json.dumps(values).encode())


def decode_prompts(numbers: Iterator[int]) -> list[PromptBatch]:
    """Decode what `encode_prompts` encoded."""
    return [
        PromptBatch(
            tuple(map(tuple, value["contexts"])),
            Options(tuple(value["until"]), value["max_tokens"], Sampling(**value["sampling"])),
        )
        for value in json.loads(bytes(numbers))
    ]


def take_tensor(numbers: Iterator[int], *shape: int) -> Tensor:
    """Read the next integers as a tensor of this shape."""
    size = torch.Size(shape).numel()
    return torch.tensor([next(numbers) for _ in range(size)], dtype=torch.int64).view(shape)
