"""Collectives on JSON values between steps, sent as bytes in tensors: broadcast from rank 0, and all-gather.

All ranks of the job call these functions together, from their main thread.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mtnlg_model.console import Failure, error_line, error_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup


def wait_for_all(device: torch.device) -> None:
    """Return once every rank has called this."""
    waiting = torch.zeros(1, device=device)
    distributed.all_reduce(waiting)
    waiting.item()  # NCCL only queues the collective


def broadcast_from_rank0(decide: Callable[[], Any], device: torch.device, group: ProcessGroup | None = None) -> Any:  # noqa: ANN401  (any JSON value)
    """Call ``decide`` on rank 0 and return its result on every rank; raise its failure, with the same line, on all."""
    text, failure = b"", None
    if distributed.get_rank() == 0:
        try:
            text = json.dumps({"value": decide()}).encode()
        except (Failure, OSError) as error:
            failure = error
            text = json.dumps({"line": error_line(error), "status": error_status(error)}).encode()
    size = torch.tensor([len(text)], device=device)
    distributed.broadcast(size, 0, group=group)
    content = _to_tensor(text, int(size), device)
    distributed.broadcast(content, 0, group=group)
    if failure:
        raise failure
    decision = json.loads(_to_bytes(content))
    if "line" in decision:
        same = Failure(decision["line"])
        same.exit_status = decision["status"]
        raise same
    return decision["value"]


def all_gather_json(
    value: Any,  # noqa: ANN401  (any JSON value)
    device: torch.device,
    group: ProcessGroup | None = None,
) -> list[Any]:
    """The ``value`` of every rank, on every rank."""
    text = json.dumps(value).encode()
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, torch.tensor([len(text)], device=device), group=group)
    longest = max(map(int, sizes))
    contents = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in sizes]
    distributed.all_gather(contents, _to_tensor(text, longest, device), group=group)
    return [json.loads(_to_bytes(content[: int(size)])) for content, size in zip(contents, sizes, strict=True)]


def _to_tensor(text: bytes, size: int, device: torch.device) -> torch.Tensor:
    """A tensor of ``size`` bytes that begins with the text, padded with spaces."""
    return torch.frombuffer(bytearray(text.ljust(size)), dtype=torch.uint8).to(device)


def _to_bytes(content: torch.Tensor) -> bytes:
    return content.cpu().numpy().tobytes()
