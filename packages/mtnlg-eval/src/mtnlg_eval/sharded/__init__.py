"""Evaluation of a decoder sharded over tensor, pipeline and data ranks (extra ``[parallel]``).

    ranks.py     starts the ranks, or joins torchrun's; sees that they end together
    engine.py    a rank's part of scoring and generation

Every rank runs the whole command: it reads the same rows, builds the same requests in the same order and packs the same
batches, so no rank tells another what to do. Rank 0 alone has the store and writes results; what it finds stored it
shares, and what each replica computes all add up.
"""
