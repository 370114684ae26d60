"""TokenStream (contract 1): samples by number, every token once per epoch, every source at its weight."""

from __future__ import annotations

import itertools
import json
import pickle
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtnlg_data.console import Failure
from mtnlg_data.stream import (
    BlendedStream,
    open_stream,
)
from mtnlg_data.tokens.blend import held_out
from mtnlg_data.tokens.store import TokenStore, writing_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def make_blend(
    folder: Path,
    sources: Sequence[tuple[str, float, list[int]]],
    *,
    validation: float = 0.0,
    seed: int = 7,
    vocabulary: int = 1 << 20,
) -> Path:
    """Stores of documents of these lengths; the tokens of a source count up, so that a token names its place."""
    entries = []
    for name, weight, lengths in sources:
        bounds = np.cumsum([0, *lengths])
        with writing_store(folder / name, vocabulary) as writer:
            for start, stop in itertools.pairwise(bounds):
                writer.add(np.arange(start, stop))
        store = TokenStore(folder / name)
        entries.append(
            {
                "name": name,
                "prefix": name,
                "weight": weight,
                "documents": store.documents,
                "tokens": store.tokens,
                "sha256": store.checksum(),
            }
        )
    blend = {"seed": seed, "vocabulary": vocabulary, "eod": 0, "validation": validation, "sources": entries}
    (folder / "blend.json").write_text(json.dumps(blend))
    return folder


# --- the windows of one source ---------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    seq_length=st.integers(1, 12),
    validation=st.sampled_from([0.0, 0.02, 0.3, 0.9]),
    epochs=st.integers(1, 3),
)
def test_epoch_has_every_token_once(
    lengths: list[int],
    seq_length: int,
    validation: float,
    epochs: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = make_blend(tmp_path_factory.mktemp("b"), [("one", 1.0, lengths)], validation=validation)
    kept = lengths[: len(lengths) - held_out(len(lengths), validation)]
    windows = (sum(kept) - 1) // seq_length
    if not windows:
        with pytest.raises(Failure, match=r"one\.bin: \d+ train tokens do not fill one sample"):
            open_stream(folder, seq_length)
        return
    stream = open_stream(folder, seq_length, samples=epochs * windows)
    for epoch in range(epochs):
        samples = [stream[n] for n in range(epoch * windows, (epoch + 1) * windows)]
        inputs = np.sort(np.concatenate([sample[:-1] for sample in samples]))
        assert inputs.tolist() == list(range(windows * seq_length))
        assert all((np.diff(sample) == 1).all() for sample in samples)  # each a run of consecutive tokens


def test_train_and_validation_share_no_document_and_cover_all(tmp_path: Path) -> None:
    folder = make_blend(tmp_path, [("one", 1.0, [5] * 100)], validation=0.1)
    train, validation = open_stream(folder, 1), open_stream(folder, 1, "validation")
    seen = {int(token) for n in range(len(train)) for token in train[n]}
    held = {int(token) for n in range(len(validation)) for token in validation[n]}
    assert seen == set(range(450))
    assert held == set(range(450, 500))


@given(documents=st.integers(0, 10**9), validation=st.floats(0, 0.99))
def test_held_out_share_leaves_each_side_a_document(documents: int, validation: float) -> None:
    held = held_out(documents, validation)
    assert 0 <= held <= max(0, documents - 1)
    if documents >= 2 and validation > 0:
        assert held >= 1
        assert abs(held - Fraction(validation) * documents) <= 1
    else:
        assert held == 0


# --- the contract ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_blend(tmp_path, [("a", 0.5, [300] * 4), ("b", 0.3, [50] * 9), ("c", 0.2, [900])], validation=0.25)


def test_length_is_as_requested_or_one_pass(folder: Path) -> None:
    assert len(open_stream(folder, 16)) == 899 // 16 + 349 // 16 + 899 // 16
    stream = open_stream(folder, 16, samples=10)
    assert (len(stream), stream.seq_length, stream.vocab_size) == (10, 16, 1 << 20)
    assert stream[np.int64(9)].tolist() == stream[9].tolist()
    with pytest.raises(ValueError, match="samples = -1"):
        open_stream(folder, 16, samples=-1)


def test_version_1_order_is_unchanged(folder: Path) -> None:
    """Another order breaks every run in flight: it needs a new ORDER_VERSION. Fingerprints follow the stores' sums.

    Processes that load samples get the stream pickled.
    """
    stream = pickle.loads(pickle.dumps(open_stream(folder, 16, samples=5000)))  # noqa: S301  (made in this line)
    firsts = [int(stream[n][0]) for n in (0, 1, 2, 3, 1023, 1024, 4999)]
    assert firsts == [752, 128, 672, 720, 320, 176, 496]
    assert stream.fingerprint == "ddfeacb3e8cab79fae3a24e8137e017a026a21c71146a329450e18559cd1eada"


def test_fingerprint_covers_data_and_order_but_not_samples(tmp_path: Path) -> None:
    def fingerprint(name: str, weight: float = 0.5, tokens: int = 100, seed: int = 7, **how: object) -> str:
        sources = [(name, weight, [50, tokens]), ("b", 0.5, [100, 100])]
        folder = make_blend(tmp_path / str(next(fresh)), sources, seed=seed, validation=0.5)
        return open_stream(folder, **{"seq_length": 8, **how}).fingerprint  # type: ignore[arg-type]

    fresh = itertools.count()
    same = {fingerprint("a"), fingerprint("a", samples=3)}
    assert len(same) == 1
    others = [
        fingerprint("z"),
        fingerprint("a", weight=0.4),
        fingerprint("a", tokens=101),
        fingerprint("a", seed=8),
        fingerprint("a", seq_length=9),
        fingerprint("a", split="validation"),
    ]
    assert len(same | set(others)) == 7


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "blend.json").unlink(), r"blend\.json: No such file"),
        (lambda f: (f / "blend.json").write_text("{"), r"blend\.json: Invalid JSON"),
        (lambda f: (f / "b.bin").unlink(), r"b\.bin: No such file"),
        (lambda f: (f / "b.idx").unlink(), r"b\.idx: No such file"),
        (lambda f: (f / "b.bin").write_bytes(b"12"), r"b\.bin: holds 2 bytes where its index says 1800"),
        (lambda f: _put_another(f, "b"), r"b\.bin: holds 1 documents of 9 tokens"),
    ],
)
def test_missing_truncated_or_foreign_file_is_named(folder: Path, spoil: object, message: str) -> None:
    spoil(folder)  # type: ignore[operator]
    with pytest.raises(Failure, match=message):
        open_stream(folder, 16)


@pytest.mark.parametrize("prefix", ["/web", "../web", "a/../../web"])
def test_a_prefix_that_leaves_the_folder_is_refused(folder: Path, prefix: str) -> None:
    blend = json.loads((folder / "blend.json").read_text())
    blend["sources"][0]["prefix"] = prefix
    (folder / "blend.json").write_text(json.dumps(blend))
    with pytest.raises(Failure, match="leaves the folder"):
        open_stream(folder, 8)


def _put_another(folder: Path, name: str) -> None:
    make_blend(folder / "x", [(name, 1.0, [9])])
    for suffix in ("bin", "idx"):
        (folder / "x" / f"{name}.{suffix}").replace(folder / f"{name}.{suffix}")


@pytest.mark.parametrize(
    ("weight", "name", "message"),
    [
        (0.0, "b", r"sources\.1\.weight: |sources: 1: weight: Input should be greater than 0"),
        (1e-12, "b", "weight 1e-12 of b is under 2..-32 of all; leave it out"),
        (0.5, "a", "sources share a name: a, a"),
    ],
)
def test_a_blend_that_cannot_be_mixed_is_refused(tmp_path: Path, weight: float, name: str, message: str) -> None:
    folder = make_blend(tmp_path, [("a", 1.0, [90]), (name, weight, [90])])
    with pytest.raises(Failure, match=message):
        open_stream(folder, 16)


def test_token_outside_the_vocabulary_is_located(tmp_path: Path) -> None:
    folder = make_blend(tmp_path, [("a", 1.0, [90])], vocabulary=90)
    blend = json.loads((folder / "blend.json").read_text())
    (folder / "blend.json").write_text(json.dumps({**blend, "vocabulary": 80}))
    stream = open_stream(folder, 8)
    samples = [_sample_or_failure(stream, number) for number in range(len(stream))]
    wrong = [failure for failure in samples if isinstance(failure, str)]
    assert len(wrong) == 2
    assert all(
        "a.bin: token 8" in failure and "is outside the vocabulary of 80; tokenize" in failure for failure in wrong
    )


def _sample_or_failure(stream: BlendedStream, number: int) -> list[int] | str:
    try:
        return list(stream[number].tolist())
    except Failure as failure:
        return str(failure)


def test_source_too_short_to_validate_still_trains(tmp_path: Path) -> None:
    folder = make_blend(tmp_path, [("a", 0.9, [100] * 50), ("short", 0.1, [100, 3])], validation=0.02)
    assert {open_stream(folder, 16, samples=100).locate(n)[0] for n in range(100)} == {0, 1}
    validation = open_stream(folder, 16, "validation", samples=100)
    assert [source.name for source in validation.sources] == ["a"]
    assert {int(validation[n][0]) // 100 for n in range(100)} == {49}


def test_source_without_a_window_is_left_out_and_named(tmp_path: Path) -> None:
    folder = make_blend(tmp_path, [("a", 0.5, [900]), ("tiny", 0.25, [9]), ("b", 0.25, [400])])
    stream = open_stream(folder, 16, samples=1000)
    assert [source.name for source in stream.sources] == ["a", "b"]
    (line,) = stream.left_out
    assert line == f"{folder / 'tiny'}.bin: 9 train tokens do not fill one sample of 16 + 1"
    shares = np.bincount([stream.locate(n)[0] for n in range(999)]) / 999
    assert shares.tolist() == pytest.approx([2 / 3, 1 / 3], abs=0.002)
    assert open_stream(folder, 8).left_out == ()


def test_a_token_of_64_bits_is_compared_before_it_is_cut_to_32(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open_stream(folder, 16)
    monkeypatch.setattr(TokenStore, "read", lambda _, start, end: np.full(end - start, 1 << 32, np.int64))
    with pytest.raises(Failure, match="4294967296, is outside the vocabulary"):
        stream[0]
