"""Every sample goes to one rank, prefetching keeps the order, and an error of the thread is raised by ``next``."""

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mtnlg_model.config import ModelConfig
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_parallel.launch import run
from mtnlg_parallel.layout import Layout
from mtnlg_parallel.recipe import Recipe
from mtnlg_parallel.training.samples import Data, Prefetch, StreamFrom, micro_batches, open_data
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


@given(st.integers(0, 500), st.integers(1, 6), st.integers(1, 4), st.integers(1, 5))
def test_together_the_ranks_read_every_sample_once(begin: int, micro_batch: int, dp: int, rounds: int) -> None:
    samples = range(begin, begin + micro_batch * dp * rounds)
    shares = [micro_batches(Numbers(), samples, micro_batch, dp, rank) for rank in range(dp)]
    numbers = [number for share in shares for inputs, _ in share for number in inputs[:, 0].tolist()]
    assert sorted(numbers) == list(samples)


@pytest.mark.parametrize("begin", [0, 36])
def test_prefetching_gives_every_step_the_micro_batches_that_it_would_have_read(begin: int) -> None:
    recipe = recipe_of(dp=2, samples=100)
    prefetch = Prefetch(Numbers(), recipe, begin, dp_rank=1)
    for before, batch in recipe.batch_size.steps(recipe.train.samples, begin):
        for expected in micro_batches(Numbers(), range(before, before + batch), 2, 2, 1):
            assert all(bool((one == other).all()) for one, other in zip(next(prefetch), expected, strict=True))
    prefetch.close()


def test_for_a_gpu_micro_batches_are_contiguous_in_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the host would wait for each copy. Pinning needs a GPU, so only that it is asked for is seen."""
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    prefetch = Prefetch(Numbers(), recipe_of(dp=1, samples=100), 0, dp_rank=0, pinned=True)
    inputs, targets = next(prefetch)
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


def test_a_source_too_small_for_a_sample_is_named_once_by_the_process_that_starts_the_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Data(Numbers(), Path("t"), Numbers(), 40, left_out=("tokens/tiny.bin: 9 train tokens",))
    monkeypatch.setattr(run, "open_data", lambda *_: opened)
    assert run._fingerprint(Path("data"), recipe_of(dp=1, samples=100)) == ("numbers", Path("t"))
    warning, passes = capsys.readouterr().err.splitlines()
    assert (
        warning == "WARNING: tokens/tiny.bin: 9 train tokens; the source is left out, and its weight goes to the others"
    )
    assert passes == "data: samples 0 to 100 of the token stream, of the 40 in one pass over the corpus, so 2.5 passes"


@given(st.integers(0, 10_100), st.integers(-3, 10_100))
def test_a_stream_from_a_sample_on_numbers_its_samples_from_0(start: int, sample: int) -> None:
    stream = StreamFrom(Numbers(), start)
    if 0 <= sample < 10_000 - start:
        assert stream[sample].tolist() == Numbers()[start + sample].tolist()
    else:
        with pytest.raises(IndexError):
            stream[sample]


def test_a_stream_in_place_of_a_folder_is_refused() -> None:
    with pytest.raises(UsageFailure, match="Numbers"):
        open_data(cast("Path", Numbers()), recipe_of(dp=1, samples=100))
