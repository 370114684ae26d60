"""Interleaved 1F1B (Narayanan et al. 2021, section 2.2.2): each rank holds several parts of the decoder."""

from __future__ import annotations

from ._1f1b import OneForwardOneBackward


class Interleaved(OneForwardOneBackward):
    """1F1B with two or more parts per rank: with v parts a rank idles 1 / v as long."""

    help = (
        "each stage holds several parts of the decoder, `train.chunks`, and a micro-batch passes each stage as often: "
        "with two, filling and emptying take half as long, for more sends."
    )
    fewest_chunks = 2
    most_chunks = None


SCHEDULE = Interleaved()
