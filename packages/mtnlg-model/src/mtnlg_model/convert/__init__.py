"""Import and export: Hugging Face GPT-2, Megatron-LM torch_dist, Megatron-DeepSpeed."""
