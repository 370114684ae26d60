"""The decoder cut over tensor, sequence and pipeline parallel ranks."""
