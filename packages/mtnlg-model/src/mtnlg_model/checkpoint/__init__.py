"""The checkpoint: safetensors pieces and one manifest, readable in any parallel layout."""
