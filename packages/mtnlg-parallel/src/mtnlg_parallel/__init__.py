"""Trains the MT-NLG decoder over tensor, pipeline and data parallelism with megatron-core and DeepSpeed."""
