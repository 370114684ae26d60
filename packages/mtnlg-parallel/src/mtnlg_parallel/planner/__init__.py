"""Predicts step time and memory of a run before a cluster is booked. No torch anywhere below.

hardware   what a cluster is made of            software   what the training program does, as switches
gemm       a matrix product by its shape        layer      what a decoder's parts cost a GPU and its host
network    collectives and point-to-point       simulation the pipeline schedule, event by event
memory     bytes by kind and stage              step       all of it together: a prediction
search     every legal layout, ranked           rows, scaling, report, timeline: what a person or a machine reads
"""
