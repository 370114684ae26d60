"""Checkpoints of other systems in and out: Hugging Face, Megatron-LM torch_dist, Megatron-DeepSpeed."""
