"""What rank 0 tells the other ranks: one broadcast of a kind and a length, one of integers.

Everything is integers (tokens, positions, places, the bytes of JSON), so nothing is ever pickled.
"""

from __future__ import annotations

import json
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import distributed

from mtnlg_eval.scoring.generation import Options, Portion
from mtnlg_eval.scoring.packed_attention import Span
from mtnlg_eval.scoring.packing import Batch
from mtnlg_model.generation.generate import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


class Kind(IntEnum):
    """What is to be done."""

    STOP = 0
    SCORE = 1
    GENERATE = 2


def send(kind: Kind, numbers: Sequence[int], device: torch.device) -> None:
    """Tell all ranks; on rank 0."""
    distributed.broadcast(torch.tensor([kind, len(numbers)], device=device), src=0)
    if numbers:
        distributed.broadcast(torch.tensor(numbers, device=device), src=0)


def receive(device: torch.device) -> tuple[Kind, Iterator[int]]:
    """Hear the next message; on every other rank."""
    head = torch.empty(2, dtype=torch.int64, device=device)
    distributed.broadcast(head, src=0)
    kind, length = head.tolist()
    body = torch.empty(length, dtype=torch.int64, device=device)
    if length:
        distributed.broadcast(body, src=0)
    return Kind(kind), iter(body.tolist())


def written(batches: Sequence[Batch]) -> list[int]:
    """Batches as integers."""
    numbers = [len(batches)]
    for batch in batches:
        numbers += [len(batch.tokens), len(batch.spans), len(batch.places)]
        numbers += [number for span in batch.spans for number in span]
        for tensor in (batch.tokens, batch.places, batch.targets):
            numbers += tensor.tolist()
    return numbers


def read(numbers: Iterator[int]) -> list[Batch]:
    """The batches that `written` wrote."""
    return [_read_batch(numbers) for _ in range(next(numbers))]


def _read_batch(numbers: Iterator[int]) -> Batch:
    s, spans, n = (next(numbers) for _ in range(3))
    told = tuple(Span(*islice(numbers, 3)) for _ in range(spans))
    tokens, places, targets = (take(numbers, size) for size in (s, n, n))
    return Batch(tokens, told, places, targets)


def written_portions(portions: Sequence[Portion]) -> list[int]:
    """Portions as integers: the bytes of their JSON, which gives every float back as it was."""
    told = [
        {"contexts": contexts, "until": until, "tokens": tokens, "sampling": sampling.model_dump()}
        for contexts, (until, tokens, sampling) in portions
    ]
    return list(json.dumps(told).encode())


def read_portions(numbers: Iterator[int]) -> list[Portion]:
    """The portions that `written_portions` wrote."""
    return [
        Portion(
            tuple(map(tuple, told["contexts"])),
            Options(tuple(told["until"]), told["tokens"], Sampling(**told["sampling"])),
        )
        for told in json.loads(bytes(numbers))
    ]


def take(numbers: Iterator[int], *shape: int) -> Tensor:
    """The next integers as a tensor."""
    size = torch.Size(shape).numel()
    return torch.tensor([next(numbers) for _ in range(size)], dtype=torch.int64).view(shape)
