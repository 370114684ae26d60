"""Evaluation of a decoder sharded over tensor, pipeline and data ranks (extra ``[parallel]``).

    ranks.py     starts the ranks, or joins torchrun's; ensures that they end together
    engine.py    a rank's part of scoring and generation

Every rank runs the whole command: it reads the same rows, builds the same requests in the same order and packs the same
batches, so no rank has to direct another. Only rank 0 has the store and writes results; it broadcasts the answers that
it finds stored, and all ranks sum the replicas' scores.
"""
