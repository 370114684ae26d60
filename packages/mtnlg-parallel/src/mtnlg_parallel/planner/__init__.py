"""Planner: predicts step time and memory of a run before a cluster is booked. Imports no torch.

run            the run to plan: model, batch, layout, recomputation, schedule, sharding, cluster, program
cluster        GPUs, nodes, network, measured constants
programs       training programs, as switches
costs/         costs of a rank's parts: products, attention, memory traffic, collectives
simulation     the pipeline schedule, event by event
step           seconds per step from all of these, with a breakdown
memory         bytes by kind and stage, and whether they fit
interval       90 % interval of step times
search         every legal layout, ranked by step time
report, page, command        figures, their text and HTML page, the CLI
"""
