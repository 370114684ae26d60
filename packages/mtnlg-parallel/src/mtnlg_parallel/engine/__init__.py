"""The engines, ours and DeepSpeed's, with ZeRO-1 and AdamW, and how checkpoints save and restore their state."""
