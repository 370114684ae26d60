"""From requests to scores: packing, the forward pass, the answer store, the lm-eval harness."""
