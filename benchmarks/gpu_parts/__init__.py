"""The parts of ``benchmarks/gpu.py``: what each measures on one GPU, in a process of its own."""
