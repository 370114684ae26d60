"""Samples of the token stream by number, dealt out to data-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mtnlg_data.stream import open_stream
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from mtnlg_data.stream import TokenStream

    from .recipe import Recipe


class Data(NamedTuple):
    """What a run reads: the training stream, the held-out one, and the tokenizer that made both."""

    train: TokenStream
    validation: TokenStream
    tokenizer: Path


def open_data(folder: Path, recipe: Recipe) -> Data:
    """Open the tokens of a data folder. Raises ``Failure`` where they are missing or do not fit the recipe."""
    tokens, sequence = folder / "tokens", recipe.model.sequence
    most = recipe.train.samples + recipe.train.batch  # the last step may go beyond train.samples by less than a batch
    train = open_stream(tokens, sequence, "train", most)
    if train.vocab_size > recipe.model.vocabulary:
        raise Failure(
            f"{tokens}: has {train.vocab_size} different tokens, model.vocabulary = {recipe.model.vocabulary} rows; "
            f"set model.vocabulary to {train.vocab_size} or more"
        )
    validation = open_stream(tokens, sequence, "validation")
    if recipe.train.validation_every and not validation_samples(recipe, validation):
        raise Failure(
            f"{tokens}: {len(validation)} held-out samples are fewer than layout.dp x train.micro_batch = "
            f"{recipe.batch_size.multiple}; set train.validation_every = 0"
        )
    return Data(train, validation, tokens / "tokenizer.json")


def validation_samples(recipe: Recipe, stream: TokenStream) -> int:
    """How many of the held-out samples a validation reads: the first ones, as many as go evenly over the ranks."""
    multiple = recipe.batch_size.multiple
    return min(recipe.train.validation_samples, len(stream)) // multiple * multiple


def micro_batches(
    stream: TokenStream, samples: range, micro_batch: int, dp: int, dp_rank: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, each int64 [micro_batch, S], of one rank's share of ``samples``.

    Micro-batches go to the ranks in turn, so together the ranks read each sample once.
    """
    import torch  # noqa: PLC0415  (the rest of this module is for a parent that needs none)

    for start in samples[dp_rank * micro_batch :: dp * micro_batch]:
        rows = np.stack([stream[number] for number in range(start, start + micro_batch)])
        tokens_BS = torch.from_numpy(rows).long()
        yield tokens_BS[:, :-1], tokens_BS[:, 1:]
