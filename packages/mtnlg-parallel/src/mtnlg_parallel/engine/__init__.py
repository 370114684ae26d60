"""DeepSpeed's pipeline engine with ZeRO-1 and AdamW, and its state to and from checkpoints."""
