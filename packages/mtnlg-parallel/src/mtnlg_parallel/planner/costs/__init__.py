"""Costs of a rank's parts: matrix products, attention, memory traffic, collectives, host operations."""
