"""The engines, ours and DeepSpeed's, with ZeRO and AdamW, and how checkpoints save and restore their state."""
