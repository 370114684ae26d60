"""What a rank's parts cost: matrix products, attention, memory traffic, collectives, host operations."""
