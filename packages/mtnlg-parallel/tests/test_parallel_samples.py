"""Every sample goes to one rank, prefetching keeps the order, and an error of the thread is raised by ``next``."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe, StreamPart, Train
from mtnlg_parallel.training.samples import Data, Prefetch, RunStream, micro_batches, open_data
from mtnlg_parallel.training.schedule import Ramp


class Numbers:
    """A stream whose sample n is n, n + 1, n + 2; samples from ``damaged`` on raise."""

    seq_length, vocab_size, fingerprint = 2, 10_000, "numbers"

    def __init__(self, damaged: int = 1 << 30) -> None:
        self.damaged = damaged

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, sample: int) -> NDArray[np.int32]:
        if not 0 <= sample < len(self):
            raise IndexError(sample)
        if sample >= self.damaged:
            raise Failure(f"prose.bin: holds no sample {sample}")
        return np.arange(sample, sample + 3, dtype=np.int32)


def recipe_of(dp: int, samples: int) -> Recipe:
    model = ModelConfig(layers=1, hidden=8, heads=1, sequence=2, vocabulary=10_000)
    ramp = Ramp(start=2 * dp, increment=2 * dp, samples=30)
    train = {"samples": samples, "batch": 8 * dp, "micro_batch": 2, "ramp": ramp, "lr": 1.0, "decay": 1}
    more = {"checkpoint_every": 0, "validation_samples": 2 * dp}
    return Recipe.model_validate({"model": model, "layout": Layout(dp=dp), "train": train | more})


@pytest.mark.parametrize(
    ("vocabulary", "train", "hint"),
    [
        (10_000, {}, ""),
        (10_099, {}, "set model.vocabulary to 10100 or more"),
        (10_100, {}, ""),
        (10_099, {"initial": "hf"}, ""),  # whose own tokenizer this then is
        (9_999, {"initial": "hf"}, "add tokens to the model: --new-tokenizer"),
        (10_099, {"initial": "hf", "new_tokenizer": True}, "set model.vocabulary to 10100 or more"),
    ],
)
def test_padding_of_the_vocabulary_has_no_tokens(
    vocabulary: int, train: dict[str, object], hint: str, tmp_path: Path
) -> None:
    recipe = recipe_of(dp=1, samples=8)
    padding = 100 if vocabulary > 10_000 else 0
    model = recipe.model.model_copy(update={"vocabulary": vocabulary, "vocabulary_padding": padding})
    recipe = recipe.model_copy(update={"model": model, "train": recipe.train.model_copy(update=train)})
    (tmp_path / "tokenizer.json").touch()
    data = Data(Numbers(), tmp_path / "tokenizer.json")
    sizes = f"Numbers: the data's tokenizer has 10000 tokens, the model {model.tokens}; .*{hint}"
    with pytest.raises(Failure, match=sizes) if hint else nullcontext():
        open_data(data, recipe)


@given(st.integers(0, 500), st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
def test_together_the_ranks_read_every_sample_once(begin: int, micro_batch: int, dp: int, rounds: int) -> None:
    samples = range(begin, begin + micro_batch * dp * rounds)
    shares = [micro_batches(Numbers(), samples, micro_batch, dp, rank) for rank in range(dp)]
    numbers = [number for share in shares for batch in share for number in batch.inputs[:, 0].tolist()]
    assert sorted(numbers) == list(samples)


@pytest.mark.parametrize("begin", [0, 36])
def test_prefetching_reads_the_same_micro_batches(begin: int) -> None:
    recipe = recipe_of(dp=2, samples=100)
    prefetch = Prefetch(Numbers(), recipe, begin, dp_rank=1)
    for before, batch in recipe.batch_size.steps(recipe.train.samples, begin):
        for expected in micro_batches(Numbers(), range(before, before + batch), 2, 2, 1):
            assert all(bool((one == other).all()) for one, other in zip(next(prefetch)[:2], expected[:2], strict=True))
    prefetch.close()


def test_for_a_gpu_micro_batches_are_contiguous_in_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the host would wait for each copy. Pinning needs a GPU, so only that it is asked for is seen."""
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    prefetch = Prefetch(Numbers(), recipe_of(dp=1, samples=100), 0, dp_rank=0, pinned=True)
    inputs, targets, *_ = next(prefetch)
    prefetch.close()
    assert inputs is pinned[0]
    assert targets is pinned[1]
    assert len(inputs) > 1
    assert inputs.is_contiguous()
    assert targets.is_contiguous()


def test_a_damaged_store_raises_when_its_sample_is_due() -> None:
    prefetch = Prefetch(Numbers(damaged=9), recipe_of(dp=1, samples=100), 0, dp_rank=0)
    for _ in range(4):
        next(prefetch)
    with pytest.raises(Failure, match=r"prose.bin: holds no sample 9"):
        next(prefetch)
    prefetch.close()


def test_a_run_that_ends_early_leaves_no_thread_behind() -> None:
    prefetch = Prefetch(Numbers(), recipe_of(dp=1, samples=9000), 0, dp_rank=0)
    next(prefetch)
    prefetch.close()
    assert not prefetch._thread.is_alive()


ranges = st.lists(st.integers(0, 300), max_size=8, unique=True).map(
    lambda ends: tuple(zip(sorted(ends)[::2], sorted(ends)[1::2], strict=False))
)


@given(st.integers(0, 200), ranges, st.integers(1, 200))
def test_skip_is_a_stream_without_these_samples(start: int, skip: tuple[tuple[int, int], ...], count: int) -> None:
    left = [n for n in range(start, 10_000) if not any(first <= n < end for first, end in skip)]
    stream = RunStream([(StreamPart(0, "", start, skip), Numbers())], count)
    assert [int(stream[n][0]) for n in range(count)] == left[:count]
    for outside in (-1, count):
        with pytest.raises(IndexError):
            stream[outside]


@given(ranges, ranges, st.integers(0, 250))
def test_fingerprints_are_equal_as_long_as_the_samples_are(
    one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...], count: int
) -> None:
    parts = [StreamPart(0, "", 0, skip) for skip in (one, other)]
    streams = [RunStream([(part, Numbers())], 1000) for part in parts]
    prints = {stream.fingerprint_at(count) for stream in streams}
    read = [[int(stream[n][0]) for n in range(count)] for stream in streams]
    assert len(prints) == len({part.until(count) for part in parts})
    assert read[0] == read[1] or len(prints) == 2


def test_returning_to_an_earlier_token_folder_continues_there() -> None:
    changes = [{"at": 40, "data": "/anneal", "skip": [[2, 5]]}, {"at": 60, "data": ""}, {"at": 70, "data": "/anneal"}]
    recipe = recipe_of(dp=1, samples=100)
    train = Train.model_validate({**recipe.train.model_dump(), "skip": [[10, 20]], "change": changes}, strict=False)
    stream = RunStream([(part, Numbers()) for part in train.stream_parts], 100)
    read = [int(stream[n][0]) for n in range(100)]
    main = [n for n in range(1000) if not 10 <= n < 20]
    anneal = [n for n in range(1000) if not 2 <= n < 5]
    assert read == main[:40] + anneal[:20] + main[40:50] + anneal[20:50]


def test_any_stream_is_data_with_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    recipe = recipe_of(dp=1, samples=100)
    data = open_data(Data(Numbers(), tmp_path / "tokenizer.json"), recipe)
    assert data.train[3].tolist() == [3, 4, 5]
    assert data.fingerprint.stream(100) == "numbers"
    with pytest.raises(UsageFailure, match="Numbers: 10000 samples of"):
        open_data(Data(Numbers(), tmp_path / "tokenizer.json"), recipe_of(dp=1, samples=10_000))
