"""Ahead-of-time compilation of the kernels for a GPU that is not present.

build.py               the kernels of a recipe or all variants, for some targets, into Triton's cache; their limits
compilation.py         cross-compilation of launches on meta tensors, and the resources that each kernel takes
launch_signatures.py   what a recipe's ranks launch, and every variant of every kernel
"""
