"""Samples of the token stream by number, dealt out to data-parallel ranks, and read ahead of the training."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from mtnlg_data.stream import open_stream
from mtnlg_model.console import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from mtnlg_data.stream import TokenStream
    from mtnlg_parallel.recipe import Recipe

    MicroBatch = tuple[Tensor, Tensor]

AHEAD = 64
"""Micro-batches that wait to be taken, a few megabytes."""


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


def micro_batches(stream: TokenStream, samples: range, micro_batch: int, dp: int, dp_rank: int) -> Iterator[MicroBatch]:
    """Inputs and targets, each int64 [micro_batch, S], of one rank's share of ``samples``.

    Micro-batches go to the ranks in turn, so together the ranks read each sample once.
    """
    import torch  # noqa: PLC0415  (the rest of this module is for a parent that needs none)

    for start in samples[dp_rank * micro_batch :: dp * micro_batch]:
        rows = np.stack([stream[number] for number in range(start, start + micro_batch)])
        tokens_BS = torch.from_numpy(rows).long()
        yield tokens_BS[:, :-1], tokens_BS[:, 1:]


class Prefetch:
    """The micro-batches of one data-parallel rank, step after step to the recipe's end, read ahead by a thread.

    What the thread meets, such as a store cut short, is raised where the micro-batch is asked for.
    """

    def __init__(self, stream: TokenStream, recipe: Recipe, begin: int, dp_rank: int) -> None:
        self.waited = 0.0
        self._found: queue.Queue[MicroBatch | BaseException] = queue.Queue(AHEAD)
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._read, args=(stream, recipe, begin, dp_rank), name="samples", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Self:
        """An iterator over itself."""
        return self

    def __next__(self) -> MicroBatch:
        """The next one; ``waited`` counts the seconds until it was there."""
        began = time.perf_counter()
        found = self._found.get()
        self.waited += time.perf_counter() - began
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        while self._thread.is_alive():
            while not self._found.empty():
                self._found.get_nowait()
            self._thread.join(0.01)

    def _read(self, stream: TokenStream, recipe: Recipe, begin: int, dp_rank: int) -> None:
        train, layout = recipe.train, recipe.layout
        try:
            for before, batch in recipe.batch_size.steps(train.samples, begin):
                samples = range(before, before + batch)
                for found in micro_batches(stream, samples, train.micro_batch, layout.dp, dp_rank):
                    self._found.put(found)
                    if self._over.is_set():
                        return
        except BaseException as error:  # noqa: BLE001  (it is raised in the thread that trains)
            self._found.put(error)
