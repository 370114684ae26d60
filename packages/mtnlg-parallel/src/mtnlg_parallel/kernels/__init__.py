"""Fused kernels for A100 and later, in Triton, each beside the eager function that it replaces.

    norm.py       layer_norm, bias_dropout_add_norm          functional.layer_norm, bias_dropout_add_norm
    gelu.py       bias_gelu                                  functional.bias_gelu
    dropout.py    bias_dropout_add                           functional.bias_dropout_add
    softmax.py    attention, where no flash attention is     functional.attention
    loss.py       statistics, gradient                       head.statistics, head.gradient

`best` chooses for a device. Without Triton (extra ``kernels``), or on another device, that is what PyTorch has.
"""

from __future__ import annotations

from .dispatch import best

__all__ = ["best"]
