"""Starts ranks on this machine or under Slurm, and watches them."""
