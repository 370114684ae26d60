"""Reads samples of the token stream, splits them over the data-parallel ranks, and prefetches them."""

from __future__ import annotations

import os
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from mtnlg_data.stream import open_stream
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.identity import DataFingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from mtnlg_data.stream import TokenStream
    from mtnlg_parallel.recipe import Recipe

    MicroBatch = tuple[Tensor, Tensor]

PREFETCH_DEPTH = 64
"""Micro-batches in the queue, a few megabytes."""


class StreamFrom:
    """The samples of a stream from ``start`` on, numbered from 0: those that a run with train.start_sample reads."""

    def __init__(self, stream: TokenStream, start: int) -> None:
        self._stream, self._start = stream, start
        self.seq_length, self.vocab_size, self.fingerprint = stream.seq_length, stream.vocab_size, stream.fingerprint

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._stream) - self._start

    def __getitem__(self, sample: int) -> NDArray[np.int32]:
        """Sample ``sample`` of the run, shape [seq_length + 1]. Raises ``IndexError`` outside [0, len)."""
        if sample < 0:
            raise IndexError(f"sample {sample} of {len(self)}")
        return self._stream[self._start + sample]


class Data(NamedTuple):
    """The training stream, the tokenizer.json that made its tokens, and a held-out stream if there is one.

    ``corpus``: samples in one pass over the training tokens, the stream's length unless given. ``left_out`` has a line
    for each source that is too small for one training sample.
    """

    train: TokenStream
    tokenizer: Path
    validation: TokenStream | None = None
    corpus: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> DataFingerprint:
        """What a checkpoint must have been trained on to resume."""
        return DataFingerprint(self.train.fingerprint, self.tokenizer)


def open_data(source: Path | str | Data, recipe: Recipe) -> Data:
    """The data of a run: a data folder's, or streams, of which each sample is a function of its number.

    The training stream begins at train.start_sample. Raises ``Failure`` where something is missing or does not fit the
    recipe.
    """
    train = recipe.train
    end = train.start_sample + train.samples + train.batch  # the last step may end less than a batch behind
    if isinstance(source, Data):
        data, place = source, type(source.train).__name__
        if (length := len(data.train)) < end or data.train.seq_length != recipe.model.sequence:
            needs = f"needs {end} of {recipe.model.sequence} tokens"
            raise UsageFailure(f"{place}: {length} samples of {data.train.seq_length} tokens; the recipe {needs}")
    elif isinstance(source, str | os.PathLike):
        place = str(Path(source) / "tokens")
        data = _open_folder(Path(place), recipe.model.sequence, end)
    else:
        hint = "give the folder that mtnlg-data run has made, or mtnlg_parallel.Data(stream, tokenizer)"
        raise UsageFailure(f"data is a {type(source).__name__}; {hint}")
    if data.train.vocab_size > recipe.model.vocabulary:
        raise Failure(
            f"{place}: {data.train.vocab_size} different tokens for model.vocabulary = {recipe.model.vocabulary}; "
            f"set model.vocabulary to {data.train.vocab_size} or more"
        )
    if train.validation_every and not validation_samples(recipe, data.validation):
        held_out = 0 if data.validation is None else len(data.validation)
        raise Failure(
            f"{place}: {held_out} held-out samples are fewer than layout.dp x train.micro_batch = "
            f"{recipe.batch_size.multiple}; set train.validation_every = 0"
        )
    if not data.tokenizer.is_file():  # which every checkpoint has
        raise Failure(f"{data.tokenizer}: no such file; it is written by the tokenize stage of mtnlg-data")
    return data._replace(train=StreamFrom(data.train, train.start_sample), corpus=data.corpus or len(data.train))


def _open_folder(tokens: Path, sequence: int, samples: int) -> Data:
    train = open_stream(tokens, sequence, "train", samples)
    corpus = sum(source.windows for source in train.sources)
    validation = open_stream(tokens, sequence, "validation")
    return Data(train, tokens / "tokenizer.json", validation, corpus, train.left_out)


def validation_samples(recipe: Recipe, stream: TokenStream | None) -> int:
    """Number of held-out samples that a validation reads, rounded down to divide evenly over the ranks."""
    multiple = recipe.batch_size.multiple
    return 0 if stream is None else min(recipe.train.validation_samples, len(stream)) // multiple * multiple


def micro_batches(stream: TokenStream, samples: range, micro_batch: int, dp: int, dp_rank: int) -> Iterator[MicroBatch]:
    """Yield inputs and targets, each int64 [micro_batch, S], of one rank's share of ``samples``.

    Micro-batches go to the ranks in turn, so that together the ranks read each sample once.
    """
    import torch  # noqa: PLC0415  (the launching process uses the rest of this module without torch)

    for start in samples[dp_rank * micro_batch :: dp * micro_batch]:
        rows = np.stack([stream[number] for number in range(start, start + micro_batch)])
        tokens_BS = torch.from_numpy(rows).long()
        yield tokens_BS[:, :-1], tokens_BS[:, 1:]


class Prefetch:
    """Iterates over one data-parallel rank's micro-batches until the recipe's end; a thread reads ahead.

    ``pinned``: in pinned memory, from which a GPU copies while the host goes on.
    An error in the thread, such as a truncated token store, is raised by ``next``. ``waited`` counts the seconds that
    ``next`` has blocked.
    """

    def __init__(self, stream: TokenStream, recipe: Recipe, begin: int, dp_rank: int, pinned: bool = False) -> None:
        self.waited, self._pinned = 0.0, pinned
        self._queue: queue.Queue[MicroBatch | BaseException] = queue.Queue(PREFETCH_DEPTH)
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._read, args=(stream, recipe, begin, dp_rank), name="samples", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Self:
        """The iterator itself."""
        return self

    def __next__(self) -> MicroBatch:
        """Wait for the next micro-batch."""
        began = time.perf_counter()
        micro_batch = self._queue.get()
        self.waited += time.perf_counter() - began
        if isinstance(micro_batch, BaseException):
            raise micro_batch
        return micro_batch

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        while self._thread.is_alive():
            while not self._queue.empty():
                self._queue.get_nowait()
            self._thread.join(0.01)

    def _read(self, stream: TokenStream, recipe: Recipe, begin: int, dp_rank: int) -> None:
        train, layout = recipe.train, recipe.layout
        try:
            for before, batch in recipe.batch_size.steps(train.samples, begin):
                samples = range(before, before + batch)
                for tensors in micro_batches(stream, samples, train.micro_batch, layout.dp, dp_rank):
                    self._queue.put(_pin(*tensors) if self._pinned else tensors)
                    if self._closed.is_set():
                        return
        except BaseException as error:  # noqa: BLE001  (raised in the training thread)
            self._queue.put(error)


def _pin(inputs: Tensor, targets: Tensor) -> MicroBatch:
    """Both in pinned memory, and contiguous: other tensors go to a GPU through memory that is not pinned."""
    return inputs.contiguous().pin_memory(), targets.contiguous().pin_memory()
