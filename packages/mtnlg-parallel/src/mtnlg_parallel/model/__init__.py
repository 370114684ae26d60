"""The decoder under tensor, sequence and pipeline parallelism."""
