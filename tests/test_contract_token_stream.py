"""Conformance tests of contract 1, the token stream.

``pytest tests/test_contract_token_stream.py --token-stream my_package:make`` tests another implementation.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest

from contract_streams import read_samples, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from contract_streams import Make
    from mtnlg_data.stream import TokenStream

OURS = "contract_streams:blend"
SEQ_LENGTH = 16


@pytest.fixture(scope="module")
def entry(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--token-stream") or OURS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stream")


@pytest.fixture(scope="module")
def make(entry: str) -> Make:
    return resolve(entry)


@pytest.fixture(scope="module")
def stream(make: Make, folder: Path) -> TokenStream:
    return make(folder, SEQ_LENGTH, 1)


def numbers_of(stream: TokenStream) -> list[int]:
    return sorted({0, 1, 2, len(stream) // 3, len(stream) // 2, len(stream) - 1})


def test_a_sample_is_one_token_longer_than_the_sequence(stream: TokenStream) -> None:
    for number in numbers_of(stream):
        sample = stream[number]
        assert sample.shape == (stream.seq_length + 1,)
        assert sample.dtype == np.int32


def test_every_token_is_in_the_vocabulary(stream: TokenStream) -> None:
    for number in numbers_of(stream):
        assert 0 <= stream[number].min() <= stream[number].max() < stream.vocab_size


def test_sample_is_a_function_of_its_number(make: Make, folder: Path) -> None:
    forward, backward = make(folder, SEQ_LENGTH, 1), make(folder, SEQ_LENGTH, 1)
    numbers = range(min(len(forward), 64))
    read_forward = [forward[number].tolist() for number in numbers]
    read_backward = [backward[number].tolist() for number in reversed(numbers)]
    assert read_forward == read_backward[::-1]


def test_another_process_reads_the_same_samples(entry: str, stream: TokenStream, folder: Path) -> None:
    numbers = numbers_of(stream)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        fingerprint, samples = pool.submit(read_samples, entry, folder, SEQ_LENGTH, numbers).result()
    assert fingerprint == stream.fingerprint
    assert samples == [stream[number].tolist() for number in numbers]


def test_writing_into_a_sample_does_not_change_the_next_read(stream: TokenStream) -> None:
    sample = stream[0]
    kept = sample.copy()
    with suppress(ValueError):  # of an array that is read-only
        sample[:] = kept + 1
    assert np.array_equal(stream[0], kept)


def test_a_number_outside_the_stream_is_an_index_error(stream: TokenStream) -> None:
    for number in (-1, len(stream), len(stream) + 1000):
        with pytest.raises(IndexError):
            stream[number]


def test_the_fingerprint_tells_streams_apart(make: Make, folder: Path) -> None:
    same, again = make(folder, SEQ_LENGTH, 1), make(folder, SEQ_LENGTH, 1)
    other_seed, other_length = make(folder, SEQ_LENGTH, 2), make(folder, SEQ_LENGTH * 2, 1)
    assert same.fingerprint == again.fingerprint
    assert len({same.fingerprint, other_seed.fingerprint, other_length.fingerprint}) == 3


def test_another_seed_gives_another_order(make: Make, folder: Path) -> None:
    one, two = make(folder, SEQ_LENGTH, 1), make(folder, SEQ_LENGTH, 2)
    numbers = range(min(len(one), len(two), 64))
    assert [one[n].tolist() for n in numbers] != [two[n].tolist() for n in numbers]
