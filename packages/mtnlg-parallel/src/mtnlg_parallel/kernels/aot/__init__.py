"""Ahead-of-time compilation of the kernels for a GPU that is not present.

build.py               the kernels of a recipe or all variants, for some targets; the record of what is built
compilation.py         cross-compilation of launches on meta tensors, and the resources that each kernel takes
bounds.py              the share of the memory's bandwidth that each can reach, from its binary
launch_signatures.py   what a recipe's ranks launch, and every variant of every kernel
"""
