"""Evaluation of a decoder sharded over tensor, pipeline and data ranks (extra ``[parallel]``).

    ranks.py         starts the ranks, or joins torchrun's; sees that they end together
    messages.py      commands from rank 0 to the others, as integers
    coordinator.py   the model as rank 0 sees it, and the work of every rank
    replica.py       the work of one data-parallel replica, led by its first rank

lm-eval runs on rank 0 alone: data are read once, and nothing in it can differ between ranks. Each batch goes to the
replica with the fewest tokens in flight, and through its pipeline stages behind the one before. Of the logits of a
scored position only a maximum, a sum and the target's own logit ever leave a rank.
"""
