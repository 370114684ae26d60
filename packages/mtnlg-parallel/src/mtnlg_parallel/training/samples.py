"""Reads samples of the token stream, splits them over the data-parallel ranks, and prefetches them."""

from __future__ import annotations

import json
import queue
import threading
import time
from bisect import bisect_right
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from mtnlg_data.engine.machine import cores
from mtnlg_data.stream import BlendedStream, Sample, open_stream
from mtnlg_data.tokens.store import span_digest
from mtnlg_model.checkpoint.manifest import file_checksum
from mtnlg_model.checksums import cached_checksums
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.files import write_json
from mtnlg_parallel.engine.contract import MicroBatch
from mtnlg_parallel.identity import DataFingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from mtnlg_data.stream import TokenStream
    from mtnlg_parallel.recipe import Recipe, StreamPart

PREFETCH_DEPTH = 64
"""Most micro-batches in the queue: a few megabytes."""
MAX_UNREAD = 0.01
"""Share of a source's tokens that may be in no sample without a line that says so."""


class RunStream:
    """The samples of a run, numbered from 0: those of its parts' streams, without skipped ranges."""

    def __init__(self, parts: Sequence[tuple[StreamPart, TokenStream]], samples: int) -> None:
        self._parts, self._begins, self._samples = parts, [part.at for part, _ in parts], samples
        self.seq_length = parts[0][1].seq_length
        self.vocab_size = max(stream.vocab_size for _, stream in parts)
        self.masked = any(is_masked(stream) for _, stream in parts)

    def __len__(self) -> int:
        """Number of samples."""
        return self._samples

    def __getitem__(self, sample: int) -> NDArray[np.int32]:
        """Sample ``sample`` of the run, shape [seq_length + 1]. Raises ``IndexError`` outside [0, len)."""
        stream, number = self._place(sample)
        return stream[number]

    def sample(self, sample: int) -> Sample:
        """Sample ``sample`` of the run with its mask and documents. Raises as ``__getitem__``."""
        return _sample(*self._place(sample))

    @property
    def checksums(self) -> dict[tuple[Path, ...], str]:
        """`BlendedStream.checksums` of all parts."""
        streams = [stream for _, stream in self._parts if isinstance(stream, BlendedStream)]
        return {files: checksum for stream in streams for files, checksum in stream.checksums.items()}

    def _place(self, sample: int) -> tuple[TokenStream, int]:
        if not 0 <= sample < self._samples:
            raise IndexError(f"sample {sample} of {self._samples}")
        part, stream = self._part(sample)
        return stream, part.number(sample)

    def _part(self, sample: int) -> tuple[StreamPart, TokenStream]:
        return self._parts[bisect_right(self._begins, sample) - 1]

    def source(self, sample: int) -> str:
        """Name of the source of sample ``sample`` of the run, prefixed by its folder's name unless that is --data."""
        part, stream = self._part(sample)
        if not isinstance(stream, BlendedStream):
            return _source(part, "data")
        return _source(part, stream.sources[stream.blender.draw(part.number(sample))[0]].name)

    def read(self, samples: int) -> dict[str, tuple[int, float]]:
        """(samples, passes over the source) that each source contributed to the run's first ``samples`` samples."""
        found: dict[str, tuple[int, float]] = {}
        for (part, stream), end in zip(self._parts, [*self._begins[1:], samples], strict=True):
            if samples <= part.at:
                break
            last = min(end, samples)
            spans = [(part.number(last - 1) + 1, 1), (part.start, -1)]
            for first, stop in part.until(last).skip:
                spans += [(stop, -1), (max(first, part.start), 1)] if stop > part.start else []
            sources, drawn_until = _sources(stream)
            drawn = [[sign * n for n in drawn_until(at)] for at, sign in spans]
            for (name, windows), counts in zip(sources, zip(*drawn, strict=True), strict=True):
                before, passes = found.get(_source(part, name), (0, 0.0))
                found[_source(part, name)] = before + sum(counts), passes + sum(counts) / windows
        return found

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all samples."""
        return self.fingerprint_at(self._samples)

    def fingerprint_at(self, samples: int) -> str:
        """Fingerprint of the first ``samples`` samples: equal if two runs have read the same, whatever they read later.

        It is the stream's own fingerprint if one stream is read without gaps.
        """
        ends = [*self._begins[1:], samples]
        read = [
            (*part.until(min(end, samples)), stream.fingerprint)
            for (part, stream), end in zip(self._parts, ends, strict=True)
            if part.at < samples or not part.at
        ]
        if len(read) == 1 and not read[0][3]:
            return read[0][-1]
        told = [(at, start, skip, fingerprint) for at, _, start, skip, fingerprint in read]
        return blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


def is_masked(stream: TokenStream) -> bool:
    """Whether the loss may leave out targets of a stream, as unless it says that its samples have no masks."""
    return bool(getattr(stream, "masked", hasattr(stream, "sample")))


def _sample(stream: TokenStream, number: int) -> Sample:
    """A sample of a stream; if the stream has only tokens, all targets count and the sample is one document."""
    return stream.sample(number) if hasattr(stream, "sample") else Sample(stream[number])


def _sources(stream: TokenStream) -> tuple[list[tuple[str, int]], Callable[[int], list[int]]]:
    """(name, samples) of each source of a stream, and a function that counts each source's samples in the first N."""
    if isinstance(stream, BlendedStream):
        return [(source.name, source.windows) for source in stream.sources], stream.blender.drawn
    return [("data", len(stream))], lambda samples: [samples]


def _source(part: StreamPart, name: str) -> str:
    return f"{Path(part.data).name}/{name}" if part.data else name


class Data(NamedTuple):
    """A training stream, the tokenizer.json that made its tokens, and a held-out stream, if any.

    ``corpus``: samples in one pass over the training tokens; 0 means the stream's length. ``left_out`` has a line for
    each source that is too small for one training sample, or of which over `MAX_UNREAD` is in none.
    """

    train: TokenStream
    tokenizer: Path
    validation: TokenStream | None = None
    corpus: int = 0
    left_out: tuple[str, ...] = ()


class RunData(NamedTuple):
    """`Data` of a run, with the training stream indexed by the run's own sample numbers."""

    train: RunStream
    tokenizer: Path
    validation: TokenStream | None
    corpus: int
    left_out: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> DataFingerprint:
        """Fingerprint of the data that a checkpoint must have been trained on to resume."""
        return DataFingerprint(self.train.fingerprint_at, self.tokenizer)

    def verify(self) -> None:
        """Raise ``Failure`` for a token store whose checksum is not that of its blend.json, which a resume compares."""
        expected = self.train.checksums
        for files, checksum in cached_checksums(expected, partial(span_digest, threads=cores())).items():
            if checksum != expected[files]:
                again = "copy it again, or run the tokenize stage again"
                raise Failure(f"{files[0]}: damaged: its checksum is not that in blend.json; {again}")


def with_number_tokenizer(stream: TokenStream, folder: Path) -> Data:
    """A stream with a tokenizer of numbers, written into ``folder``: "3 14" is the tokens 3 and 14.

    The last token, which ends documents, is <|endoftext|>.
    """
    words = [*map(str, range(stream.vocab_size - 1)), "<|endoftext|>"]
    model = {"type": "WordLevel", "vocab": {word: n for n, word in enumerate(words)}, "unk_token": words[0]}
    path = folder / "tokenizer.json"
    write_json(path, {"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model})
    return Data(stream, path)


def open_data(source: Path | str | Data, recipe: Recipe) -> RunData:
    """Open the data of a run: a data folder, or streams in which each sample is a function of its number.

    Raises ``Failure`` if something is missing or does not fit the recipe.
    """
    train, sequence = recipe.train, recipe.model.sequence
    parts = train.stream_parts
    total = train.samples + train.batch  # the last step may end less than a batch behind
    ends = [*(part.at for part in parts[1:]), max(total, parts[-1].at + 1)]
    opened: list[tuple[StreamPart, TokenStream]] = []
    first: Data | None = None
    for part, end in zip(parts, ends, strict=True):
        needed = part.number(end - 1) + 1
        data = source if not part.data else part.data
        if isinstance(data, Data):
            place = type(data.train).__name__
            if len(data.train) < needed or data.train.seq_length != sequence:
                has = f"{len(data.train)} samples of {data.train.seq_length} tokens"
                raise UsageFailure(f"{place}: {has}; the recipe needs {needed} of {sequence} tokens")
        else:
            place = str(Path(data) / "tokens")
            data = _open_folder(Path(place), sequence, needed, bool(train.validation_every))
        first = first or data
        _check_vocabulary(place, data.train.vocab_size, recipe)
        if not data.tokenizer.is_file():  # which every checkpoint has
            raise Failure(f"{data.tokenizer}: no such file; it is written by the tokenize stage of mtnlg-data")
        if data.tokenizer != first.tokenizer and file_checksum(data.tokenizer) != file_checksum(first.tokenizer):
            raise UsageFailure(f"{data.tokenizer}: another tokenizer than {first.tokenizer}; tokenize with that one")
        if recipe.data.isolated:
            _check_documents(data)
        opened.append((part, data.train))
    assert first  # noqa: S101  (a run has a first part)
    if train.validation_every and not validation_samples(recipe, first.validation):
        held_out = 0 if first.validation is None else len(first.validation)
        raise Failure(
            f"{first.tokenizer.parent}: {held_out} held-out samples are fewer than layout.dp x train.micro_batch = "
            f"{recipe.batch_size.multiple}; set train.validation_every = 0"
        )
    corpus = first.corpus or len(first.train)
    return RunData(RunStream(opened, total), first.tokenizer, first.validation, corpus, first.left_out)


def _check_vocabulary(place: str, tokens: int, recipe: Recipe) -> None:
    """Raise ``Failure`` if the data's tokenizer has more tokens than the model.

    A tokenizer that is that of the initial weights may name tokens that have no row there and occur in no text.
    """
    model, train = recipe.model, recipe.train
    same_tokenizer = train.initial and not train.new_tokenizer  # as `identity.check_initial` sees to
    if tokens > (model.vocabulary if same_tokenizer else model.tokens):
        hint = f"set model.vocabulary to {tokens + model.vocabulary_padding} or more"
        if same_tokenizer:
            hint = "tokenize with the model's tokenizer, or add tokens to the model: --new-tokenizer"
        raise Failure(f"{place}: the data's tokenizer has {tokens} tokens, the model {model.tokens}; {hint}")


def _check_documents(data: Data) -> None:
    """Raise ``UsageFailure`` if a stream lacks the bounds of its documents."""
    for stream in (data.train, data.validation):
        if stream is not None and not hasattr(stream, "sample"):
            hint = "give the stream a method `sample`, as mtnlg_data.DocumentStream has it"
            raise UsageFailure(f'data.documents = "isolated": {type(stream).__name__} knows no documents; {hint}')


def samples_of(data: Path, sequence: int) -> int:
    """Number of samples in one pass over a data folder's training tokens."""
    return sum(source.windows for source in open_stream(data / "tokens", sequence).sources)


def _open_folder(tokens: Path, sequence: int, samples: int, validates: bool) -> Data:
    train = open_stream(tokens, sequence, "train", samples)
    corpus = sum(source.windows for source in train.sources)
    validation = open_stream(tokens, sequence, "validation") if validates else None
    notes = [f"{line}; the source is left out, and its weight goes to the others" for line in train.left_out]
    for source in train.sources:
        unread = source.tokens - 1 - source.windows * sequence
        if unread > MAX_UNREAD * source.tokens:
            rest = f"the rest of a source that does not fill model.sequence = {sequence}"
            notes.append(f"{source.name}: {unread} of {source.tokens} tokens are in no sample: {rest}")
    return Data(train, tokens / "tokenizer.json", validation, corpus, tuple(notes))


def validation_samples(recipe: Recipe, stream: TokenStream | None) -> int:
    """Number of held-out samples that a validation reads, rounded down to divide evenly over the ranks."""
    multiple = recipe.batch_size.multiple
    return 0 if stream is None else min(recipe.train.validation_samples, len(stream)) // multiple * multiple


def micro_batches(  # noqa: PLR0917  (which samples, whose share)
    stream: TokenStream, samples: range, micro_batch: int, dp: int, dp_rank: int, isolated: bool = False
) -> Iterator[MicroBatch]:
    """Yield one rank's share of ``samples`` as micro-batches of inputs and targets, each int64 [micro_batch, S].

    Micro-batches are assigned to the ranks in turn, so that together the ranks read each sample once.
    """
    import torch  # noqa: PLC0415  (the launching process uses the rest of this module without torch)

    for start in samples[dp_rank * micro_batch :: dp * micro_batch]:
        numbers = range(start, start + micro_batch)
        if isolated or is_masked(stream):
            yield _of_documents([_sample(stream, number) for number in numbers], isolated)
            continue
        tokens_BS = torch.from_numpy(np.stack([stream[number] for number in numbers])).long()
        yield MicroBatch(tokens_BS[:, :-1], tokens_BS[:, 1:])


def _of_documents(rows: Sequence[Sample], isolated: bool) -> MicroBatch:
    """A micro-batch in which only some targets count: with isolated documents, no document's first token does."""
    import torch  # noqa: PLC0415  (as above)

    tokens, every = np.stack([row.tokens for row in rows]).astype(np.int64), np.ones(len(rows[0].tokens), np.bool_)
    counts = np.stack([every if row.counts is None else row.counts for row in rows])[:, 1:]
    begins = np.stack([~every if row.begins is None else row.begins for row in rows])
    if isolated:
        counts = counts & ~begins[:, 1:]
    targets = torch.from_numpy(np.where(counts, tokens[:, 1:], -1))
    batch = MicroBatch(torch.from_numpy(tokens[:, :-1]), targets, counted=int(counts.sum()))
    if not isolated:
        return batch
    begins, places = begins[:, :-1], np.arange(tokens.shape[1] - 1)
    begins[:, 0] = True  # the rest of a document that an earlier sample began
    bounds = np.append(np.flatnonzero(begins), begins.size)
    return batch._replace(
        positions=torch.from_numpy(places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)),
        bounds=torch.from_numpy(bounds.astype(np.int32)),
        lengths=tuple(np.diff(bounds).tolist()),
    )


class Prefetch:
    """Iterates over one data-parallel rank's micro-batches until the recipe's end; a thread reads ahead.

    ``pinned``: use pinned memory, from which a GPU copies asynchronously. ``next`` raises an error of the thread, such
    as a truncated token store. ``waited`` is the total seconds for which ``next`` has blocked, ``counted`` the number
    of targets that the loss counts, as far as micro-batches say it.
    """

    def __init__(self, stream: TokenStream, recipe: Recipe, begin: int, dp_rank: int, pinned: bool = False) -> None:
        self.waited, self.counted, self._pinned = 0.0, 0, pinned
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
        self.counted += micro_batch.counted or 0
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
                for one in micro_batches(stream, samples, train.micro_batch, layout.dp, dp_rank, recipe.data.isolated):
                    self._queue.put(_pin(one) if self._pinned else one)
                    if self._closed.is_set():
                        return
        except BaseException as error:  # noqa: BLE001  (raised in the training thread)
            self._queue.put(error)


def _pin(batch: MicroBatch) -> MicroBatch:
    """Copy all tensors to pinned memory, contiguous: other layouts would be copied through pageable memory."""
    tensors = {name: each for name, each in batch._asdict().items() if hasattr(each, "pin_memory")}
    return batch._replace(**{name: tensor.contiguous().pin_memory() for name, tensor in tensors.items()})
