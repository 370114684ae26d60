"""Import from and export to Hugging Face folders; import from Megatron-LM torch_dist and Megatron-DeepSpeed."""
