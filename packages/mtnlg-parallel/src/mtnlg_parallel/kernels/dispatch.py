"""Choice of fused or eager operations for a device."""

from __future__ import annotations

from functools import cache, wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from mtnlg_model.console import say
from mtnlg_parallel.model.eight_bit import Rounding
from mtnlg_parallel.model.head import EAGER, ParallelOps

if TYPE_CHECKING:
    from collections.abc import Callable

OLDEST: Final = (8, 0)
"""Oldest supported compute capability: the A100's."""

OLDEST_OF_EIGHT_BITS: Final = (8, 9)
"""Oldest compute capability with conversions to 8 bits."""

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


def best_ops(device: torch.device) -> ParallelOps:
    """Fused kernels if ``device`` supports them, else eager operations, with one message that says why.

    Kernels run on CUDA devices of capability 8.0 and above and, slowly, on the CPU under ``TRITON_INTERPRET=1``. On
    meta tensors they are only compiled (`tiles.launch`). Each falls back to its eager function, with one message, if a
    dtype is not fp32, bf16 or fp16 (bf16 alone to round to 8 bits), if dtypes of activations differ, or if tensors are
    on another device.
    """
    if reason := _unsupported_reason(device):
        _say_once(f"no fused kernels: {reason}")
        return EAGER
    from . import dropout, gelu, loss, norm, rotary, rounding, swiglu  # noqa: PLC0415  (import Triton)

    fused = {
        "layer_norm": (norm, 1),
        "bias_gelu": (gelu, None),
        "bias_dropout_add": (dropout, None),
        "bias_dropout_add_norm": (norm, 3),
        "dropout_add": (dropout, None),
        "rms_norm": (norm, 1),
        "dropout_add_rms_norm": (norm, 2),
        "swiglu": (swiglu, None),
        "rotate": (rotary, None),
        "statistics": (loss, None),
        "gradient": (loss, 1),  # logsumexp is always fp32
    }
    ops: dict[str, Any] = {
        name: _with_fallback(name, module, EAGER, device, checked=checked) for name, (module, checked) in fused.items()
    }
    if _converts_to_eight_bits(device):
        # In fp32 the transposed numbers were wrong on an H200: ptxas 12.8, of Triton 3.6, drops some.
        rounded = _with_fallback("rounded", rounding, EAGER.eight_bit, device, dtypes=(torch.bfloat16,))
        ops["eight_bit"] = Rounding(rounded, rounding.transpose)
    return ParallelOps(**ops)  # attention is PyTorch's own


def _unsupported_reason(device: torch.device) -> str | None:
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


def _converts_to_eight_bits(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= OLDEST_OF_EIGHT_BITS
    return device.type == "meta"  # Triton's interpreter rounds to 8 bits otherwise than a GPU


def _with_fallback(
    name: str,
    module: object,
    operations: object,
    device: torch.device,
    *,
    checked: int | None = None,
    dtypes: tuple[torch.dtype, ...] = DTYPES,
) -> Callable[..., Any]:
    """A function that calls kernel ``name`` of a module for supported tensors, else the eager operation of that name.

    The first ``checked`` tensors (None: all) must have the same dtype.
    """
    fused, eager = getattr(module, name), getattr(operations, name)
    devices = (device.type, "meta")

    @wraps(eager)
    def operation(*arguments: Any) -> Any:  # noqa: ANN401  (any operation)
        tensors = [argument for argument in arguments if isinstance(argument, Tensor) and argument.is_floating_point()]
        is_one = len({tensor.dtype for tensor in tensors[:checked]}) == 1
        if is_one and all(tensor.dtype in dtypes and tensor.device.type in devices for tensor in tensors):
            return fused(*arguments)
        names = ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))
        places = ", ".join(sorted({tensor.device.type for tensor in tensors}))
        _say_once(f"{name}: no fused kernel for {names} on {places}")
        return eager(*arguments)

    return operation


@cache
def _say_once(line: str) -> None:
    say(line)
