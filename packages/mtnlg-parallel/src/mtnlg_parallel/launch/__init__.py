"""Starts ranks on this machine or under Slurm, and supervises them."""
