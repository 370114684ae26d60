"""Ahead-of-time compilation of the kernels for a GPU that is not present.

build.py               builds a recipe's kernels or all variants for some targets into Triton's cache; checks limits
compilation.py         cross-compilation of launches on meta tensors, and the resources that each kernel uses
launch_signatures.py   what a recipe's ranks launch, and every variant of every kernel
"""
