"""Fused Triton kernels for the A100 and later GPUs, listed with the eager functions that they replace.

    norm.py       layer_norm, bias_dropout_add_norm,         functional: the same names
                  rms_norm, dropout_add_rms_norm
    gelu.py       bias_gelu                                  functional.bias_gelu
    swiglu.py     swiglu                                     functional.swiglu
    rotary.py     rotate                                     functional.rotate
    dropout.py    bias_dropout_add, dropout_add              functional: the same names
    loss.py       statistics, gradient                       head.statistics, head.gradient
    rounding.py   rounded, transpose                         eight_bit: the same names

`best_ops` returns the kernels that a device supports, and eager functions elsewhere or without Triton (the extra
``kernels``).
"""

from __future__ import annotations

from .dispatch import best_ops

__all__ = ["best_ops"]
