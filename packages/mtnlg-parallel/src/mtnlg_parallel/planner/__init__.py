"""Planner: step time and memory of a run, predicted before a cluster is booked. No torch here.

run          what is planned: model, batch, layout, recomputation, schedule
cluster      GPUs, nodes, network, measured constants; the training program as switches
layer_cost   matrix products, memory traffic and collectives of a decoder's parts
network      alpha-beta model of collectives and sends
simulation   the pipeline schedule, event by event
step         all of it together: seconds of a step, broken down
memory       bytes by kind and stage, and whether they fit
search       every legal layout, ranked by step time
report, measured, timeline, command    tables, JSON, comparison with measured runs, pictures, the CLI
"""
