"""Commands from rank 0 to all ranks: one broadcast of command and length, one of integers.

Everything is integers (tokens, indices, the bytes of JSON), so nothing is ever pickled.
"""

from __future__ import annotations

import json
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import distributed

from mtnlg_eval.scoring.generation import Options, PromptBatch
from mtnlg_eval.scoring.packed_attention import Span
from mtnlg_eval.scoring.packing import Batch
from mtnlg_model.generation.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


class Command(IntEnum):
    """What the other ranks shall do."""

    STOP = 0
    SCORE = 1
    GENERATE = 2


def broadcast_command(command: Command, numbers: Sequence[int], device: torch.device) -> None:
    """Send a command and its integers to all ranks; called on rank 0."""
    distributed.broadcast(torch.tensor([command, len(numbers)], device=device), src=0)
    if numbers:
        distributed.broadcast(torch.tensor(numbers, device=device), src=0)


def receive_command(device: torch.device) -> tuple[Command, Iterator[int]]:
    """Receive the next command and its integers; called on every other rank."""
    head = torch.empty(2, dtype=torch.int64, device=device)
    distributed.broadcast(head, src=0)
    command, length = head.tolist()
    body = torch.empty(length, dtype=torch.int64, device=device)
    if length:
        distributed.broadcast(body, src=0)
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
