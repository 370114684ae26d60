"""Planner: step time and memory of a run, predicted before a cluster is booked. No torch here.

run            what is planned: model, batch, layout, recomputation, schedule, sharding
cluster        GPUs, nodes, network, measured constants
programs       training programs, as switches
costs/         what a rank's parts cost: products, attention, memory traffic, collectives
simulation     the pipeline schedule, event by event
step           all of it together: seconds of a step, broken down
memory         bytes by kind and stage, and whether they fit
interval       between which times 90 % of measured steps lie
search         every legal layout, ranked by step time
scaling        the run on several numbers of nodes
report, timeline, command    tables, JSON, pictures, the CLI
"""
