"""A decoder cut in three dimensions behind lm-eval: rank 0 asks, every rank computes (extra ``[parallel]``).

    crew.py       starts the ranks, or joins those of torchrun; sees that they end together
    messages.py   what rank 0 tells the others, as integers
    driver.py     the model as rank 0 sees it, and what every rank does at each message
    replica.py    generation within one replica, which its first rank leads

lm-eval runs on rank 0 alone, so its data are read once and nothing that it does can differ between ranks. Batches go to
the replicas by turns; those of one replica go through its stages several at a time; and of the logits of a scored place
only a maximum, a sum and the target's own ever leave a rank.
"""
