"""Which operations a device gets."""

from __future__ import annotations

from functools import cache, wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from mtnlg_model.console import say
from mtnlg_parallel.model.head import EAGER, ParallelOps

if TYPE_CHECKING:
    from collections.abc import Callable

OLDEST: Final = (8, 0)
"""Compute capability of the A100."""

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


def best(device: torch.device) -> ParallelOps:
    """Fused kernels where ``device`` has them, else PyTorch's operations, saying once why.

    Kernels run on CUDA devices of capability 8.0 and above; on the CPU, slowly, under ``TRITON_INTERPRET=1``; of meta
    tensors they are compiled (`launching`). Each leaves a call to its eager twin, saying so once, where dtypes differ
    or are none of fp32, bf16 and fp16, or where tensors are elsewhere.
    """
    if reason := _refusal(device):
        _say_once(f"no fused kernels: {reason}")
        return EAGER
    from . import dropout, gelu, loss, norm, softmax  # noqa: PLC0415  (import Triton)

    return ParallelOps(
        layer_norm=_guarded(norm.layer_norm, EAGER.layer_norm, device),
        bias_gelu=_guarded(gelu.bias_gelu, EAGER.bias_gelu, device),
        bias_dropout_add=_guarded(dropout.bias_dropout_add, EAGER.bias_dropout_add, device),
        bias_dropout_add_norm=_guarded(norm.bias_dropout_add_norm, EAGER.bias_dropout_add_norm, device),
        attention=_guarded(softmax.attention, EAGER.attention, device),
        statistics=_guarded(loss.statistics, EAGER.statistics, device),
        gradient=_guarded(loss.gradient, EAGER.gradient, device, judged=1),  # logsumexp is fp32 always
    )


def _refusal(device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed; pip install 'mtnlg-parallel[kernels]'"
    from triton import knobs  # noqa: PLC0415  (as above)

    if device.type == "meta" or (device.type == "cpu" and knobs.runtime.interpret):
        return None
    if device.type != "cuda" or torch.version.hip:
        return f"{device.type} is not an NVIDIA GPU"
    if torch.cuda.get_device_capability(device) < OLDEST:
        return f"{torch.cuda.get_device_name(device)} is older than the A100"
    return None


def _guarded(
    fused: Callable[..., Any], eager: Callable[..., Any], device: torch.device, judged: int | None = None
) -> Callable[..., Any]:
    """``fused`` for the tensors that it takes, else ``eager``; by all of them, or the first ``judged``."""

    @wraps(fused)
    def operation(*arguments: Any) -> Any:  # noqa: ANN401  (any operation)
        given = [argument for argument in arguments if isinstance(argument, Tensor) and argument.is_floating_point()]
        dtypes, places = {tensor.dtype for tensor in given[:judged]}, {tensor.device.type for tensor in given}
        if len(dtypes) == 1 and dtypes <= set(DTYPES) and places <= {device.type, "meta"}:
            return fused(*arguments)
        found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        _say_once(f"{fused.__name__}: no fused kernel for {found} on {', '.join(sorted(places))}")
        return eager(*arguments)

    return operation


@cache
def _say_once(line: str) -> None:
    say(line)
