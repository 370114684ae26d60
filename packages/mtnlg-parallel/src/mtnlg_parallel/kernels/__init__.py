"""Fused Triton kernels for A100 and later, each beside the eager function that it replaces.

    norm.py       layer_norm, bias_dropout_add_norm,         functional: the same names
                  rms_norm, dropout_add_rms_norm
    gelu.py       bias_gelu                                  functional.bias_gelu
    swiglu.py     swiglu                                     functional.swiglu
    rotary.py     rotate                                     functional.rotate
    dropout.py    bias_dropout_add, dropout_add              functional: the same names
    loss.py       statistics, gradient                       head.statistics, head.gradient
    rounding.py   rounded, transpose                         eight_bit: the same names

`best_ops` returns those that a device supports. Without Triton (extra ``kernels``) or on other devices they are eager.
"""

from __future__ import annotations

from .dispatch import best_ops

__all__ = ["best_ops"]
