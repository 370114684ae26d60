"""Who runs a step: DeepSpeed with ZeRO-1, the optimizer, and how their state maps to a checkpoint."""
